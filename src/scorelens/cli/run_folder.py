"""The output folder of a command."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from scorelens.files import FolderTaken, reserve_folder

LONGEST = 200  # characters of a name


def output_folder(command: str, label: str, out: Path | None) -> Path:
    """The folder for a command's results, reserved: `out`, which must not exist, or the next free runs/<name>."""
    if out is not None:
        return reserve_folder(Path(out))
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{command}-{label}")[:LONGEST]
    for name in chain([stem], (f"{stem}-{k}" for k in count(2))):
        with suppress(FolderTaken):
            return reserve_folder(Path("runs") / name)
    raise AssertionError("count never ends")
