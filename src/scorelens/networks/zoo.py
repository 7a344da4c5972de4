"""The trained networks that come with Scorelens: the digits' in the package, the others in the zoo/ of a checkout."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def zoo_names() -> list[str]:
    """The networks at hand, by name."""
    return sorted({card.parent.name for place in _places() for card in place.glob("*/card.json")})


def zoo_folder(name: str) -> Path | None:
    """Where the network `name` is, if it is in the zoo."""
    return next((place / name for place in _places() if name in zoo_names() and (place / name).is_dir()), None)


def another_seed(name: str, names: Collection[str] | None = None) -> str | None:
    """The network of the zoo (or of `names`) that differs from `name` in its seed alone, if there is one."""
    other = name.removesuffix("-seed1") if name.endswith("-seed1") else f"{name}-seed1"
    return other if other in (zoo_names() if names is None else names) else None


def _places() -> Iterator[Path]:
    """$SCORELENS_ZOO first, then the package, then the checkout around it."""
    if os.environ.get("SCORELENS_ZOO"):
        yield Path(os.environ["SCORELENS_ZOO"]).expanduser()
    yield PACKAGE / "zoo"
    yield PACKAGE.parents[1] / "zoo"
