"""Self-contained HTML pages: embedded pictures, no scripts, no external resources; all text is escaped."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scorelens.files import atomic_file
from scorelens.types import ScorelensError

NUMBER = re.compile(r"[~≈<>≤≥±+−-]?\s*\.?\d|(nan|[–—-]?)$")  # the start of a number, or a placeholder for one


@dataclass(frozen=True)
class Cell:
    """A table cell: `shade` in [-1, 1] colours it from red to green, `strong` makes it bold."""

    text: str
    note: str = ""
    shade: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table; its first column names the rows, columns of numbers are right-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ScorelensError(f"a row of {len(row)} cells under a header of {len(self.header)}: {row}")


@dataclass(frozen=True)
class Figure:
    """A PNG file, shown at the size given by its resolution."""

    path: Path
    caption: str
    alt: str = ""


@dataclass(frozen=True)
class Text:
    """Plain paragraphs."""

    paragraphs: Sequence[str]


@dataclass(frozen=True)
class Definitions:
    """Terms and their definitions."""

    entries: Mapping[str, str]


@dataclass(frozen=True)
class Code:
    """A command line or code."""

    text: str


Block = Table | Figure | Text | Definitions | Code


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    title: str
    summary: str
    sections: Sequence[Section]
    footer: str = ""


def write_page(page: Page, path: Path) -> None:
    """Write the page as one file; on an error no file is written."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("scorelens.report"), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"kind": lambda block: type(block).__name__, "as_cell": _as_cell,
                            "alignments": _alignments, "tint": _tint, "picture": _picture}
    html = environment.get_template("page.html").render(page=page)
    with atomic_file(path) as partial:
        partial.write_bytes(html.encode("utf-8", "replace"))  # file names that are not Unicode hold lone surrogates


def _as_cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _alignments(table: Table) -> list[str]:
    """The CSS class of each column: name, number or words."""
    columns = list(zip(*table.rows, strict=True))[1:]
    numeric = [all(NUMBER.match(_as_cell(cell).text) for cell in column) for column in columns]
    return ["name", *("number" if yes else "words" for yes in numeric or [True] * (len(table.header) - 1))]


def _tint(cell: Cell) -> tuple[str, float] | None:
    """The CSS class of a shade and its strength, at most 1."""
    if cell.shade is None or math.isnan(cell.shade):
        return None
    return "gain" if cell.shade >= 0 else "loss", min(abs(cell.shade), 1.0)


def _picture(path: Path) -> dict[str, Any]:
    """The PNG as a data URI, its size in CSS pixels (its inches are kept), and whether its corners are white."""
    from PIL import Image

    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            scale = 96 / max(96.0, image.info.get("dpi", (96.0, 96.0))[0])
            corners = np.asarray(image.convert("RGBA"))[[0, 0, -1, -1], [0, -1, 0, -1]]  # [4, rgba]
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for some damaged files
        reason = getattr(error, "strerror", None) or "not a PNG, or a damaged one"
        raise ScorelensError(f"cannot show the picture {path}: {reason}") from error
    return {"uri": f"data:image/png;base64,{base64.b64encode(data).decode()}",
            "width": max(1, round(image.width * scale)), "height": max(1, round(image.height * scale)),
            "on_white": bool(np.all((corners[:, 3] == 0) | (corners[:, :3].min(axis=1) >= 250)))}
