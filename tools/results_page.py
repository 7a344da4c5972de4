"""docs/results.md and the README's table of datasets, from the committed rows of the benchmark.

    python -m tools.results_page RUN       commits the rows of a run's folder, and the pictures that may be shown

The pictures show samples of data that come with the package; of photographs there are curves and numbers only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from perf.rows import DOCS, RESULTS, results

from scorelens.networks.export import CARD
from scorelens.networks.zoo import zoo_folder
from scorelens.paper.presets import ANOTHER_SEED, PRESETS, cells_of
from scorelens.paper.results import BATCH_MEAN, Results, family
from scorelens.paper.runner import ROWS
from scorelens.report.html import Figure, Table, Text
from scorelens.report.paper_figures import FIGURES, Drawing
from scorelens.report.paper_page import DEFINITIONS, plain_rows
from scorelens.report.paper_tables import MISSING, VIEWS, label
from scorelens.report.tables import markdown
from scorelens.results import Row, read_rows, write_rows

FIGURE_FOLDER = DOCS / "figures" / "bench"
SHOWN_DATA = ("digits", "leaves")  # whose images are ours to show
INTRODUCTION = """# Results

The paper's tables and figures, measured anew by `scorelens bench run all` on two CPU cores, with the small networks of
[the zoo](zoo.md) in the place of the paper's. The paper's own numbers (Lukoianov et al., NeurIPS 2025) stand beside
ours where it has any. Its CelebA-HQ and AFHQv2 are CelebA and the cats of AFHQ v1 here, at 32 x 32 instead of 64 x 64:
differences are to be expected; what can be compared is the order of the methods.

This page is written from `perf/results/bench.jsonl` by `python -m tools.pages`; a test holds it to that
file, and another repeats three of its rows.

{definitions}
{outdated}"""
OUTDATED = """
The networks of {datasets} have been trained anew since these rows were measured; the rows are of the earlier ones, and
will be measured again.
"""
README_METHODS = ("optimal", "wiener", "els", "locality", "kernel", ANOTHER_SEED)


def results_page(rows: list[Row]) -> str:
    """Every preset that has rows: its question, its tables, what they say, and its figures."""
    found = Results(rows)
    definitions = "\n".join(f"- **{name}**: {text}" for name, text in DEFINITIONS.items())
    old = ", ".join(outdated(rows))
    parts = [INTRODUCTION.format(definitions=definitions, outdated=OUTDATED.format(datasets=old) if old else "")]
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
    return "\n".join(parts)


def outdated(rows: list[Row]) -> list[str]:
    """The datasets whose rows were measured on another network than the zoo holds now."""
    folders = {row.settings["reference"]: zoo_folder(row.settings["reference"]) for row in rows}
    predictions = {name: json.loads((folder / CARD).read_text())["prediction"]
                   for name, folder in folders.items() if folder}
    return list(dict.fromkeys(row.settings["dataset"] for row in rows if row.settings["reference"] in predictions
                              and row.network["parametrization"] != predictions[row.settings["reference"]]))


def figures_of(preset: str) -> list[Path]:
    """The committed pictures of a preset."""
    return sorted(FIGURE_FOLDER.glob(f"{preset}.*.png"))


def readme_table(rows: list[Row]) -> str:
    """r2 by dataset and method, with its 95 % interval."""
    measured = Results(rows)
    found = {**measured.of("table1"), **measured.of("table-appendix")}
    mine = {(d, family(row)): row.r2 for d, data in found.items() for row in data}
    methods = [m for m in README_METHODS if m != BATCH_MEAN and any((d, m) in mine for d in found)]
    return markdown(["data", *map(label, methods)],
                    [[d, *(f"{mine[d, m]['mean']:.3f} ± {(mine[d, m]['high'] - mine[d, m]['low']) / 2:.3f}"
                           if (d, m) in mine else MISSING for m in methods)] for d in found])


def commit(run: Path) -> None:
    """Take over rows and figures of a run; rows that no preset has any more stay behind."""
    wanted = {cell.key for preset in PRESETS for cell in cells_of(preset)}
    write_rows(RESULTS / "bench.jsonl", [row for row in read_rows(run / ROWS) if row.name in wanted])
    found = Results(results())
    FIGURE_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        for old in figures_of(name):
            old.unlink()
        for figure in draw(found, name, Drawing(run, run / "figures")):
            if _may_be_shown(figure):
                (FIGURE_FOLDER / f"{name}.{figure.path.name}").write_bytes(figure.path.read_bytes())


def _may_be_shown(figure: Figure) -> bool:
    """Curves always; pictures of images only where the data are ours."""
    kind, _, dataset = figure.path.stem.partition("-")
    return kind not in ("samples", "steps", "single") or dataset in SHOWN_DATA


if __name__ == "__main__":
    commit(Path(sys.argv[1]).expanduser())
