"""One page of HTML that holds all it shows: no network, no scripts, pictures embedded; everything in it is escaped."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scorelens.files import atomic_file
from scorelens.types import ScorelensError

if TYPE_CHECKING:
    from jinja2 import Environment
    from PIL.Image import Image

NUMBER = re.compile(r"[~≈<>≤≥±+−-]?\s*\.?\d|(nan|[–—-]?)$")  # how a number begins, or what stands where one is missing


@dataclass(frozen=True)
class Cell:
    """A cell of a table: `shade` in [-1, 1] colours it from red to green, `strong` marks the best of its column."""

    text: str
    note: str = ""
    shade: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under a header; the first column names its row, columns of numbers are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ScorelensError(f"a row of {len(row)} cells under a header of {len(self.header)}: {row}")


@dataclass(frozen=True)
class Figure:
    """A PNG, shown at the size its resolution asks for."""

    path: Path
    caption: str
    alt: str = ""


@dataclass(frozen=True)
class Text:
    """Plain paragraphs."""

    paragraphs: Sequence[str]


@dataclass(frozen=True)
class Definitions:
    """Terms and what they mean."""

    entries: Mapping[str, str]


@dataclass(frozen=True)
class Code:
    """Lines to be typed."""

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
    """The page as one file; a page that cannot be made leaves none."""
    html = _environment().get_template("page.html").render(page=page)
    with atomic_file(path) as partial:
        partial.write_bytes(html.encode("utf-8", "replace"))  # file names that are not Unicode hold lone surrogates


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("scorelens.report"), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"kind": _kind, "as_cell": _as_cell, "alignments": _alignments, "tint": _tint,
                            "picture": _picture}
    return environment


def _kind(block: Block) -> str:
    return type(block).__name__


def _as_cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _alignments(table: Table) -> list[str]:
    """The class of each column: a name, numbers or words."""
    columns = list(zip(*table.rows, strict=True))[1:]
    numeric = [all(NUMBER.match(_as_cell(cell).text) for cell in column) for column in columns]
    return ["name", *("number" if yes else "words" for yes in numeric or [True] * (len(table.header) - 1))]


def _tint(cell: Cell) -> tuple[str, float] | None:
    """The colour of a shade, and how much of it; what is beyond the scale gets its end."""
    if cell.shade is None or math.isnan(cell.shade):
        return None
    return "gain" if cell.shade >= 0 else "loss", min(abs(cell.shade), 1.0)


@dataclass(frozen=True)
class _Picture:
    """An embedded picture with its size in CSS pixels."""

    uri: str
    width: int
    height: int
    on_white: bool


def _picture(path: Path) -> _Picture:
    from PIL import Image

    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            width, height = _css_size(image)
            on_white = _on_white(image)
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for some damaged files
        reason = getattr(error, "strerror", None) or "not a PNG, or a damaged one"
        raise ScorelensError(f"cannot show the picture {path}: {reason}") from error
    return _Picture(f"data:image/png;base64,{base64.b64encode(data).decode()}", width, height, on_white)


def _css_size(image: Image) -> tuple[int, int]:
    """A figure saved at 160 dpi keeps its inches: its letters match the page's and stay sharp on fine screens."""
    scale = 96 / max(96.0, image.info.get("dpi", (96.0, 96.0))[0])
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))


def _on_white(image: Image) -> bool:
    """Whether the corners are white or transparent: such a picture needs a white card on a dark page."""
    corners = np.asarray(image.convert("RGBA"))[[0, 0, -1, -1], [0, -1, 0, -1]]  # [4, rgba]
    return bool(np.all((corners[:, 3] == 0) | (corners[:, :3].min(axis=1) >= 250)))
