"""The output folder of a command."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path

from scorelens.files import check_fresh


def output_folder(command: str, label: str, out: Path | None) -> Path:
    """The folder for a command's results: `out`, which must not exist, or the next free runs/<command>-<label>."""
    if out is None:
        stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{command}-{label}")
        names = chain([stem], (f"{stem}-{k}" for k in count(2)))
        out = next(path for path in (Path("runs") / name for name in names) if not path.exists())
    return check_fresh(Path(out))
