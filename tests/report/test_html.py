"""The page holds all it shows, says it in order, and takes no word of a user's for HTML."""

import base64
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scorelens.report.html import Block, Cell, Code, Definitions, Figure, Page, Section, Table, Text, write_page
from scorelens.types import ScorelensError
from tests.report.pages import page_of_everything, picture

HOSTILE = """</title></style></pre>"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}&amp;"""
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Parsed(HTMLParser):
    """The elements of a page: (tag, attributes, all text inside)."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any], list[str]]] = []
        self.open: list[int] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        for index in self.open:
            self.elements[index][2].append(data)

    def all(self, *tags: str) -> list[tuple[str, dict[str, Any], str]]:
        return [(tag, attrs, "".join(text).strip()) for tag, attrs, text in self.elements if tag in tags]

    def skeleton(self) -> list[tuple[str, list[str]]]:
        return [(tag, list(attrs)) for tag, attrs, _ in self.elements]

    def texts(self, *tags: str) -> list[str]:
        return [text for _, _, text in self.all(*tags)]


def written(page: Page, folder: Path) -> Parsed:
    write_page(page, folder / "page.html")
    return Parsed((folder / "page.html").read_text(encoding="utf-8"))


def of_blocks(*blocks: Block) -> Page:
    return Page("title", "summary", [Section("section", blocks)])


def test_pictures_are_embedded_byte_for_byte(tmp_path: Path) -> None:
    path = picture(tmp_path / "figure.png")
    [(_, attributes, _)] = written(of_blocks(Figure(path, "caption")), tmp_path).all("img")
    kind, data = attributes["src"].split(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data, validate=True) == path.read_bytes()


@pytest.mark.parametrize(("dpi", "width"), [(160, 960), (96, 1600), (72, 1600), (320, 480)])
def test_a_picture_keeps_its_inches_and_its_place(tmp_path: Path, dpi: int, width: int) -> None:
    """1600 dots at 160 dpi are ten inches, which CSS calls 960 px; a coarse picture is not enlarged."""
    figure = Figure(picture(tmp_path / "figure.png", (1600, 400), dpi=dpi), "caption")
    [(_, attributes, _)] = written(of_blocks(figure), tmp_path).all("img")
    assert (int(attributes["width"]), int(attributes["height"])) == (width, width // 4)


@pytest.mark.parametrize(("color", "card"), [("white", "paper"), ("black", None), ("#fdfdfd", "paper"), ("red", None)])
def test_white_pictures_are_marked_for_the_dark(tmp_path: Path, color: str, card: str | None) -> None:
    figure = Figure(picture(tmp_path / "figure.png", color=color), "caption")
    assert written(of_blocks(figure), tmp_path).all("img")[0][1].get("class") == card


def test_transparent_pictures_count_as_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    page = written(of_blocks(Figure(tmp_path / "clear.png", "caption")), tmp_path)
    assert page.all("img")[0][1]["class"] == "paper"


def test_alternative_text(tmp_path: Path) -> None:
    path = picture(tmp_path / "figure.png")
    page = written(of_blocks(Figure(path, "caption", alt="words"), Figure(path, "caption")), tmp_path)
    assert [attributes["alt"] for _, attributes, _ in page.all("img")] == ["words", "caption"]
    assert page.texts("figcaption") == ["caption", "caption"]


def test_nothing_is_loaded_or_run(tmp_path: Path) -> None:
    page = written(page_of_everything(tmp_path), tmp_path)
    references = [value for _, attributes, _ in page.elements for name, value in attributes.items()
                  if name in ("src", "srcset", "href", "data", "action", "poster")]
    assert len(references) == 5  # a picture and four lines of contents
    assert all(value.startswith(("data:image/png;base64,", "#section-")) for value in references)
    assert not page.all("script", "link", "iframe", "object", "embed", "base")
    source = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?:|//\w|@import|url\(", re.sub(r"base64,[^\"]+", "", source))


def test_the_browser_is_told_to_load_and_run_nothing(tmp_path: Path) -> None:
    metas = [attributes for _, attributes, _ in written(of_blocks(), tmp_path).all("meta")]
    [policy] = [meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "script-src" not in policy


def texts_of(page: Page) -> Counter[str]:
    """Every word a page was given, and how often it must be seen."""
    said = Counter([page.title, page.title, page.summary, page.footer])  # the title is also the window's
    for section in page.sections:
        said.update([section.title] * 2)  # in the contents, too
        for block in section.blocks:
            said.update(texts_of_block(block))
    return said


def texts_of_block(block: Block) -> list[str]:
    match block:
        case Table():
            cells = [Cell(cell) if isinstance(cell, str) else cell for row in block.rows for cell in row]
            return [*block.header, block.caption, *[c.text for c in cells], *[c.note for c in cells if c.note]]
        case Figure():
            return [block.caption]
        case Text():
            return list(block.paragraphs)
        case Definitions():
            return [text for entry in block.entries.items() for text in entry]
        case Code():
            return [block.text]


def test_hostile_words_are_shown_not_obeyed(tmp_path: Path) -> None:
    """The page has the same elements and attributes with and without markup in every field, and shows it as it was."""
    tame, wild = page_of_everything(tmp_path), page_of_everything(tmp_path, HOSTILE)
    plain, parsed = written(tame, tmp_path), written(wild, tmp_path)
    assert parsed.skeleton() == plain.skeleton()
    seen = parsed.texts("title")[0] + parsed.texts("body")[0]
    for text, count in texts_of(wild).items():
        assert seen.count(text) >= count, text
    assert seen.count(HOSTILE) == texts_of(wild).total()
    assert parsed.all("img")[0][1]["alt"] == "The alternative" + HOSTILE
    assert parsed.all("div")[0][1]["aria-label"] == "A wide table." + HOSTILE


def test_headings_in_order(tmp_path: Path) -> None:
    page = written(page_of_everything(tmp_path), tmp_path)
    assert [tag for tag, _, _ in page.all("h1", "h2", "h3", "h4")] == ["h1", "h2", "h2", "h2", "h2"]
    assert page.texts("h1") == page.texts("title") == ["A page"]
    assert page.texts("h2") == ["Words", "Table", "Figure", "Code"]
    assert page.all("html")[0][1] == {"lang": "en"}


@pytest.mark.parametrize(("count", "listed"), [(3, False), (4, True)])
def test_contents_of_a_long_page(tmp_path: Path, count: int, listed: bool) -> None:
    titles = [f"part {k}" for k in range(count)]
    page = written(Page("title", "summary", [Section(title, []) for title in titles]), tmp_path)
    assert page.texts("a") == (titles if listed else [])
    targets = [attributes["id"] for _, attributes, _ in page.all("section")]
    assert [attributes["href"] for _, attributes, _ in page.all("a")] == [f"#{t}" for t in targets if listed]


@pytest.mark.parametrize(("shade", "name", "style"), [
    (None, "number", None), (float("nan"), "number", None), (0.0, "number gain", "--shade: 0.00"),
    (0.5, "number gain", "--shade: 0.50"), (-0.25, "number loss", "--shade: 0.25"),
    (7.0, "number gain", "--shade: 1.00"), (float("-inf"), "number loss", "--shade: 1.00"),
])
def test_shades(tmp_path: Path, shade: float | None, name: str, style: str | None) -> None:
    table = Table(["name", "difference"], [["a", Cell("+1", shade=shade)]])
    [(_, attributes, _)] = written(of_blocks(table), tmp_path).all("td")
    assert (attributes["class"], attributes.get("style")) == (name, style)


@pytest.mark.parametrize(("cells", "kind"), [
    (["0.5", "−1.2", "+3%", "<0.01", ".5", "–", "", "nan"], "number"),
    (["yes", "no"], "words"), (["0.5", "none"], "words"),
])
def test_columns_of_numbers_are_aligned_to_the_right(tmp_path: Path, cells: list[str], kind: str) -> None:
    table = Table(["name", "value"], [["1", cell] for cell in cells])
    page = written(of_blocks(table), tmp_path)
    assert {attributes["class"] for _, attributes, _ in page.all("td")} == {kind}
    assert {attributes["class"] for _, attributes, _ in page.all("th") if attributes["scope"] == "row"} == {"name"}
    assert [attributes["class"] for _, attributes, _ in page.all("th")][:2] == ["name", kind]


def test_the_best_and_the_notes(tmp_path: Path) -> None:
    table = Table(["name", "value"], [["a", Cell("1", note="0 – 2", strong=True)], ["b", "0"]])
    page = written(of_blocks(table), tmp_path)
    assert page.texts("strong") == ["1"] and page.texts("small") == ["0 – 2"]


def test_tables_without_rows_or_caption(tmp_path: Path) -> None:
    page = written(of_blocks(Table(["name", "value"], [])), tmp_path)
    assert page.texts("th") == ["name", "value"] and page.texts("figcaption") == []


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(ScorelensError, match=r"a row of 1 cells under a header of 2: \['a'\]"):
        Table(["name", "value"], [["a"]])


def test_one_string_is_one_paragraph(tmp_path: Path) -> None:
    assert written(of_blocks(Text("one string")), tmp_path).texts("p")[1:] == ["one string"]


def test_code_keeps_its_lines(tmp_path: Path) -> None:
    code = "for x in y:\n    print(x)\n\tend"
    assert written(of_blocks(Code(code)), tmp_path).texts("pre") == [code]


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    """A file name of stray bytes reaches Python as lone surrogates, which UTF-8 cannot hold."""
    assert written(of_blocks(Text(["caf\udce9"])), tmp_path).texts("p")[1:] == ["caf?"]


@pytest.mark.parametrize(("make", "reason"), [
    (lambda path: None, "No such file or directory"),
    (lambda path: path.write_bytes(b"words"), "not a PNG, or a damaged one"),
    (lambda path: path.write_bytes(picture(path).read_bytes()[:-60]), "not a PNG, or a damaged one"),
    (lambda path: Image.new("RGB", (8, 8)).save(path, format="GIF"), "not a PNG, or a damaged one"),
], ids=["missing", "words", "truncated", "gif"])
def test_a_bad_picture_is_one_line_and_leaves_no_page(tmp_path: Path, make: Callable[[Path], Any], reason: str) -> None:
    path = tmp_path / "figure.png"
    make(path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ScorelensError) as error:
        write_page(of_blocks(Figure(path, "caption")), tmp_path / "page.html")
    assert str(error.value) == f"cannot show the picture {path}: {reason}"
    assert sorted(tmp_path.iterdir()) == before


def test_a_failing_page_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up halfway neither spoils the page of yesterday nor leaves half of today's."""
    written(of_blocks(Text("yesterday")), tmp_path)

    def full(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:100])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ScorelensError, match=r"cannot write to .*page\.html: No space"):
        write_page(of_blocks(Text("today")), tmp_path / "page.html")
    assert "yesterday" in (tmp_path / "page.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
