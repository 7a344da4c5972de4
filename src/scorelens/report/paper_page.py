"""The report of a benchmark: tables in three formats, figures in two, and one page with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scorelens.files import atomic_file
from scorelens.paper.presets import PRESETS
from scorelens.paper.results import Results, Row
from scorelens.report.html import Block, Cell, Code, Definitions, Page, Section, Table, Text, write_page
from scorelens.report.paper_figures import FIGURES, Drawing
from scorelens.report.paper_tables import VIEWS
from scorelens.report.tables import comma_separated, latex, markdown

DEFINITIONS = {
    "r2": "1 − Σ(prediction − reference)² / Σ(reference − its mean)², per image over all pixels and channels, on the "
          "raw prediction of the last step; the network is the reference",
    "MSE": "mean squared difference to the network's prediction, images in [−1, 1]",
    "novelty": "mean squared distance per pixel to the nearest training image (the paper's L2)",
    "interval": "95 % bootstrap interval over images",
    "order": "by mean r2; > where the 95 % interval of the difference, paired by image on the same noise, excludes "
             "zero, ≈ where it does not",
    "cosine": "between a network's mean sensitivity field and the row of the Wiener filter, over all input pixels",
    "precision, recall": "share of generated images that are closer to some real image than its third-nearest real "
                         "neighbour, and the same with the roles swapped (Kynkäänniemi et al. 2019), on pixels",
    "els": "the patch model of Kamb & Ganguli, with the softmax over all images and all circular translations",
    "batch-mean": "the softmax of the published code: normalized within batches of 512 images, which get equal weight",
    "as published": "masks and softmax of the published code, at the paper's threshold: the source of its numbers",
    "threshold chosen": "locality at the best threshold of the ablation below, which uses other noise",
    "another seed": "the same network trained from another seed: an upper bound for predictions from the data alone",
}


def write_bench(results: Results, folder: Path, repeat: str) -> Path:
    """Write the tables, figures and page of all finished cells; returns the page."""
    sections = [section for name in PRESETS for section in _section(name, results, folder)]
    page = Page("The benchmark", _summary(results), [*sections, *_appendix(results, repeat)],
                footer="Every number on this page comes from a row of rows.jsonl in the same folder; tables/ has the "
                       "tables as Markdown, LaTeX and CSV, figures/ the figures as PNG and PDF.")
    write_page(page, folder / "report.html")
    return folder / "report.html"


def _section(name: str, results: Results, folder: Path) -> Iterator[Section]:
    """One preset: its question, tables and figures."""
    if not results.rows_of(name):
        return
    preset, tables = PRESETS[name], 0
    blocks: list[Block] = [Text([f"{preset.question} {preset.source}"])]
    for block in VIEWS[name](results, name):
        blocks.append(block)
        if isinstance(block, Table):
            tables += 1
            write_table(block, folder / "tables", f"{name}-{tables}" if tables > 1 else name)
    if name in FIGURES:
        blocks += FIGURES[name](results, name, Drawing(folder, folder / "figures"))
    yield Section(preset.title, blocks)


def write_table(table: Table, folder: Path, name: str) -> None:
    """Write a table as Markdown, LaTeX and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = plain_rows(table)
    texts = {".md": f"{table.caption}\n\n{markdown(table.header, rows)}\n",
             ".tex": latex(table.header, rows, table.caption), ".csv": comma_separated(table.header, rows)}
    for suffix, text in texts.items():
        with atomic_file(folder / f"{name}{suffix}") as temporary:
            temporary.write_text(text, encoding="utf-8")


def plain_rows(table: Table) -> list[list[str]]:
    """Cells as text, notes in brackets."""
    cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]
    return [[f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row] for row in cells]


def _summary(results: Results) -> str:
    rows = [row for row in results.rows if not row.failed]
    datasets = ", ".join(dict.fromkeys(row.settings["dataset"] for row in rows))
    return (f"{len(rows)} measurements on {datasets}, at the scale “{results.scale}”, beside the numbers of the paper "
            "(Lukoianov et al., NeurIPS 2025).")


def _appendix(results: Results, repeat: str) -> Iterator[Section]:
    if results.failed:
        yield Section("What failed", [Table(["cell", "error"], [[row.name, row.failed] for row in results.failed])])
    yield Section("What was compared", [_data_table(results)])
    yield Section("Definitions", [Definitions(DEFINITIONS)])
    yield Section("Environment", [Definitions(_environment(results.rows)), Code(repeat)])


def _data_table(results: Results) -> Table:
    """Every dataset and its network."""
    rows = {row.settings["dataset"]: row for row in results.rows if not row.failed}
    lines = [[name, f"{row.data['count']:,}", " × ".join(map(str, row.data["shape"])), row.data["fingerprint"],
              Path(row.settings["reference"]).name, f"{row.network.get('parameters', 0):,}"]
             for name, row in rows.items()]
    return Table(["data", "images", "shape", "fingerprint", "network", "parameters"], lines)


def _environment(rows: Sequence[Row]) -> dict[str, str]:
    """The machines and versions that the rows were measured with."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, value in {**row.environment, **row.environment["versions"]}.items():
            if key not in ("versions", "scorelens") and value is not None:
                values.setdefault(key, {})[str(value)] = None
    hours = sum(row.seconds for row in rows) / 3600
    peak = max((row.peak_memory_bytes or 0 for row in rows), default=0)
    return {**{key: ", ".join(each) for key, each in values.items()},
            "time": f"{hours:.2f} hours for all cells", "peak memory": f"{peak / 1e9:.2f} GB for the largest cell"}
