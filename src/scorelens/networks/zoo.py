"""The trained networks of Scorelens by name: in the package (digits), in a checkout, or downloaded once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from scorelens.networks.zoo_source import fetched_folders

PACKAGE = Path(__file__).resolve().parents[1]


def zoo_names() -> list[str]:
    """Names of the networks on this machine."""
    return sorted({card.parent.name for folder in _zoo_folders() for card in folder.glob("*/card.json")})


def zoo_folder(name: str) -> Path | None:
    """The folder of the network `name`, or None if it is not on this machine."""
    if name not in zoo_names():
        return None
    return next((folder / name for folder in _zoo_folders() if (folder / name).is_dir()), None)


def another_seed(name: str, names: Collection[str] | None = None) -> str | None:
    """The network in the zoo (or in `names`) that differs from `name` only in its seed, or None."""
    other = name.removesuffix("-seed1") if name.endswith("-seed1") else f"{name}-seed1"
    return other if other in (zoo_names() if names is None else names) else None


def _zoo_folders() -> Iterator[Path]:
    """$SCORELENS_ZOO first, then the package, the checkout around it, and downloaded networks."""
    if os.environ.get("SCORELENS_ZOO"):
        yield Path(os.environ["SCORELENS_ZOO"]).expanduser()
    yield PACKAGE / "zoo"
    yield PACKAGE.parents[1] / "zoo"
    yield from fetched_folders()
