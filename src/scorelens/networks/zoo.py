"""The trained networks of Scorelens: those of the digits in the package, the others in zoo/ of a checkout."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def zoo_names() -> list[str]:
    """Names of the available networks."""
    return sorted({card.parent.name for folder in _zoo_folders() for card in folder.glob("*/card.json")})


def zoo_folder(name: str) -> Path | None:
    """The folder of the network `name`, or None if it is not in the zoo."""
    if name not in zoo_names():
        return None
    return next((folder / name for folder in _zoo_folders() if (folder / name).is_dir()), None)


def another_seed(name: str, names: Collection[str] | None = None) -> str | None:
    """The network in the zoo (or in `names`) that differs from `name` only in its seed, or None."""
    other = name.removesuffix("-seed1") if name.endswith("-seed1") else f"{name}-seed1"
    return other if other in (zoo_names() if names is None else names) else None


def _zoo_folders() -> Iterator[Path]:
    """$SCORELENS_ZOO first, then the package, then the checkout around it."""
    if os.environ.get("SCORELENS_ZOO"):
        yield Path(os.environ["SCORELENS_ZOO"]).expanduser()
    yield PACKAGE / "zoo"
    yield PACKAGE.parents[1] / "zoo"
