"""Pages to test with: one that holds a block of each kind, wide and long enough to overflow a small window."""

from pathlib import Path

from PIL import Image

from scorelens.report.html import Cell, Code, Definitions, Figure, Page, Section, Table, Text


def picture(path: Path, size: tuple[int, int] = (1600, 400), color: str = "white", dpi: int = 160) -> Path:
    """A PNG of one colour."""
    Image.new("RGB", size, color).save(path, dpi=(dpi, dpi))
    return path


def page_of_everything(folder: Path, hostile: str = "") -> Page:
    """A page whose every text ends in `hostile`, even the name of its picture."""
    def said(text: str) -> str:
        return text + hostile

    path = picture(folder / (said("wide").replace("/", "|") + ".png"))
    best = Cell(said("0.861"), note=said("0.849 – 0.872"), strong=True)
    methods = [[Cell(said(f"method {k}"), note=said("exact")), best, Cell(said("−0.1"), shade=-0.1 * k),
                *[said("12345.678")] * 9] for k in (1, 2, 3)]
    return Page(said("A page"), said("What it found."), [
        Section(said("Words"), [Text([said("One."), said("unbreakable" * 30)]),
                                Definitions({said("term"): said("long" * 90)})]),
        Section(said("Table"), [Table([said(f"column {k}") for k in range(12)], methods, said("A wide table."))]),
        Section(said("Figure"), [Figure(path, said("The caption"), said("The alternative"))]),
        Section(said("Code"), [Code(said("scorelens demo --out " + "folder/" * 60))]),
    ], said("The footer."))
