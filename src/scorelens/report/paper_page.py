"""The report of a benchmark: tables in three formats, figures in two, and one page that holds everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scorelens.files import atomic_file
from scorelens.paper.presets import PRESETS, Preset
from scorelens.paper.results import Results, Row
from scorelens.report.html import Block, Cell, Code, Definitions, Page, Section, Table, Text, write_page
from scorelens.report.paper_figures import FIGURES, Drawing
from scorelens.report.paper_tables import VIEWS
from scorelens.report.tables import comma_separated, latex, markdown

DEFINITIONS = {
    "r2": "1 − Σ(prediction − reference)² / Σ(reference − its mean)², of one image over all pixels and channels, on "
          "the raw prediction of the last step; the network is the reference",
    "MSE": "mean squared difference to the network's prediction, images in [−1, 1]",
    "novelty": "mean squared distance per pixel to the nearest training image (the paper's L2)",
    "interval": "bootstrap over images, 95 %",
    "order": "by mean r2; > where the 95 % interval of the difference, image by image on common noise, excludes zero, "
             "≈ where it does not",
    "cosine": "between a network's mean sensitivity field and the row of the Wiener filter, over all input pixels",
    "precision, recall": "share of generated images within the ball of a real one that reaches to its third-nearest "
                         "neighbour, and the same with the roles swapped (Kynkäänniemi et al. 2019), on pixels",
    "els": "the patch model of Kamb & Ganguli, with the softmax over all images and all circular translations",
    "batch-mean": "the softmax of the published code: normalized within batches of 512 images, which count equally",
    "as published": "masks and softmax of the published code, at the paper's threshold: what its numbers come from",
    "threshold chosen": "locality at the best threshold of the ablation below, which has other noise",
    "another seed": "the same network trained from another seed: what a prediction from the data alone can at most "
                    "reach",
}


def write_bench(results: Results, folder: Path, repeat: str) -> Path:
    """Everything that a run found so far; returns the page."""
    sections = [section for name, preset in PRESETS.items() for section in _section(name, preset, results, folder)]
    page = Page("The benchmark", _summary(results), [*sections, *_ends(results, repeat)],
                footer="Every number on this page comes from a row of rows.jsonl beside it; tables are in tables/ as "
                       "Markdown, LaTeX and CSV, figures in figures/ as PNG and PDF.")
    write_page(page, folder / "report.html")
    return folder / "report.html"


def _section(name: str, preset: Preset, results: Results, folder: Path) -> Iterator[Section]:
    """One preset: its question, tables, what they say, and figures."""
    if not results.of(name):
        return
    blocks: list[Block] = [Text([f"{preset.question} " + (f"In the paper: {preset.paper}." if preset.paper
                                                          else "Not in the paper.")])]
    tables = 0
    for block in VIEWS[name](results, name):
        blocks.append(block)
        if isinstance(block, Table):
            tables += 1
            write_table(block, folder / "tables", f"{name}-{tables}" if tables > 1 else name)
    if name in FIGURES:
        blocks += FIGURES[name](results, name, Drawing(folder, folder / "figures"))
    yield Section(preset.title, blocks)


def write_table(table: Table, folder: Path, name: str) -> None:
    """As Markdown, LaTeX and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = plain_rows(table)
    texts = {".md": f"{table.caption}\n\n{markdown(table.header, rows)}\n",
             ".tex": latex(table.header, rows, table.caption), ".csv": comma_separated(table.header, rows)}
    for suffix, text in texts.items():
        with atomic_file(folder / f"{name}{suffix}") as temporary:
            temporary.write_text(text)


def plain_rows(table: Table) -> list[list[str]]:
    """Cells as text, notes in brackets."""
    return [[_plain(cell) for cell in row] for row in table.rows]


def _plain(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell.text} ({cell.note})" if cell.note else cell.text


def _summary(results: Results) -> str:
    rows = [row for row in results.rows if not row.failed]
    datasets = list(dict.fromkeys(row.settings["dataset"] for row in rows))
    return (f"{len(rows)} measurements on {', '.join(datasets)}, at the scale "
            f"“{results.scale}”; the numbers of the paper (Lukoianov et al., NeurIPS 2025) beside ours.")


def _ends(results: Results, repeat: str) -> Iterator[Section]:
    if results.failed:
        lines = [[row.name, row.failed] for row in results.failed]
        yield Section("What failed", [Table(["cell", "error"], lines)])
    yield Section("What was compared", [_data_table(results)])
    yield Section("Definitions", [Definitions(DEFINITIONS)])
    yield Section("Environment", [Definitions(_environment(results.rows)), Code(repeat)])


def _data_table(results: Results) -> Table:
    """Every dataset and its network."""
    lines = []
    for row in {row.settings["dataset"]: row for row in results.rows if not row.failed}.values():
        data, network = row.data, row.network
        lines.append([row.settings["dataset"], f"{data['count']:,}", " × ".join(map(str, data["shape"])),
                      data["fingerprint"], Path(row.settings["reference"]).name, f"{network.get('parameters', 0):,}"])
    return Table(["data", "images", "shape", "fingerprint", "network", "parameters"], lines)


def _environment(rows: Sequence[Row]) -> dict[str, str]:
    """What the rows say of the machines they ran on."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        found: dict[str, Any] = {**row.environment, **row.environment["versions"]}
        for key, value in found.items():
            if key not in ("versions", "scorelens") and value is not None:
                seen.setdefault(key, {})[str(value)] = None
    hours = sum(row.seconds for row in rows) / 3600
    peak = max((row.peak_memory_bytes or 0 for row in rows), default=0)
    return {**{key: ", ".join(values) for key, values in seen.items()},
            "time": f"{hours:.2f} hours in all cells", "peak memory": f"{peak / 1e9:.2f} GB in the largest"}
