"""docs/results.md and the README's table of datasets, from the committed rows of the benchmark.

    python -m tools.results_page RUN       copies rows and figures from the folder of a run

Figures of samples are kept only for data that come with the package; for photographs there are only curves and numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from perf.rows import DOCS, RESULTS, results

from scorelens.networks.folders import CARD
from scorelens.networks.zoo import zoo_folder
from scorelens.paper.presets import ANOTHER_SEED, PRESETS, cells_of
from scorelens.paper.results import Results, family
from scorelens.paper.runner import ROWS
from scorelens.report.html import Figure, Table, Text
from scorelens.report.paper_figures import FIGURES, Drawing
from scorelens.report.paper_page import DEFINITIONS, plain_rows
from scorelens.report.paper_tables import VIEWS, label
from scorelens.report.tables import markdown
from scorelens.results import Row, read_rows, write_rows
from tools.tables import MISSING

FIGURE_FOLDER = DOCS / "figures" / "bench"
SHOWN_DATA = ("digits", "leaves")  # whose images are ours to show
OUTDATED = """
The networks of {datasets} have been retrained since. The rows below are still those of the earlier networks.
"""
SUMMARY_METHODS = ("optimal", "wiener", "els", "locality", "kernel", ANOTHER_SEED)


def results_regions(rows: list[Row]) -> dict[str, str]:
    """The definitions of the metrics; every preset that has rows: its question, tables, text and figures."""
    found, old = Results(rows), ", ".join(outdated(rows))
    definitions = "\n".join(f"- **{name}**: {text}" for name, text in DEFINITIONS.items())
    parts = []
    for name, preset in PRESETS.items():
        if not found.of(name):
            continue
        parts.append(f"## {preset.title}\n\n{preset.question} {preset.source}\n")
        for block in VIEWS[name](found, name):
            if isinstance(block, Table):
                parts.append(f"{block.caption}:\n\n{markdown(block.header, plain_rows(block))}\n")
            elif isinstance(block, Text):
                parts += [f"{paragraph}\n" for paragraph in block.paragraphs]
        parts += [f"![{path.stem}](figures/bench/{path.name})\n" for path in figures_of(name)]
    hours = sum(row.seconds for row in rows) / 3600
    parts.append(f"{len(rows)} cells, {hours:.1f} hours in all.\n")
    note = OUTDATED.format(datasets=old) if old else ""
    return {"definitions": f"{definitions}\n{note}", "presets": "\n".join(parts)}


def outdated(rows: list[Row]) -> list[str]:
    """The datasets whose rows were measured on another network than the zoo holds now."""
    folders = {row.settings["reference"]: zoo_folder(row.settings["reference"]) for row in rows}
    predictions = {name: json.loads((folder / CARD).read_text())["prediction"]
                   for name, folder in folders.items() if folder}
    return list(dict.fromkeys(row.settings["dataset"] for row in rows if row.settings["reference"] in predictions
                              and row.network["parametrization"] != predictions[row.settings["reference"]]))


def figures_of(preset: str) -> list[Path]:
    """The committed figures of a preset."""
    return sorted(FIGURE_FOLDER.glob(f"{preset}.*.png"))


def summary_table(rows: list[Row]) -> str:
    """r2 by dataset and method, with its 95 % interval."""
    measured = Results(rows)
    datasets = {**measured.of("table1"), **measured.of("table-appendix")}
    scores = {(name, family(row)): f"{row.r2['mean']:.3f} ± {(row.r2['high'] - row.r2['low']) / 2:.3f}"
              for name, data in datasets.items() for row in data}
    return markdown(["data", *map(label, SUMMARY_METHODS)], [
        [name, *(scores.get((name, method), MISSING) for method in SUMMARY_METHODS)] for name in datasets]) + "\n"


def commit(run: Path) -> None:
    """Copy rows and figures of a run, except rows that no preset uses any more."""
    wanted = {cell.key for preset in PRESETS for cell in cells_of(preset)}
    write_rows(RESULTS / "bench.jsonl", [row for row in read_rows(run / ROWS) if row.name in wanted])
    measured = Results(results())
    FIGURE_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        for old in figures_of(name):
            old.unlink()
        for figure in draw(measured, name, Drawing(run, run / "figures")):
            if _may_be_shown(figure):
                (FIGURE_FOLDER / f"{name}.{figure.path.name}").write_bytes(figure.path.read_bytes())


def _may_be_shown(figure: Figure) -> bool:
    """Curves always; images only of data that we may show."""
    kind, _, dataset = figure.path.stem.partition("-")
    return kind not in ("samples", "steps", "single") or dataset in SHOWN_DATA


if __name__ == "__main__":
    commit(Path(sys.argv[1]).expanduser())
