"""docs/results.md and the README's table of datasets, from the committed rows of the benchmark.

    python -m tools.results_page RUN       adds the rows and figures of a run

Figures of samples are kept only for data that come with the package; for photographs there are only curves and numbers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from perf.rows import DOCS, RESULTS, results

from scorelens.networks.load import load_network
from scorelens.paper.presets import ANOTHER_SEED, PRESETS, cells_of
from scorelens.paper.results import AUTOMATIC, Results, best_from_data, family, shares
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
SUMMARY_METHODS = ("optimal", "wiener", "els", "locality", AUTOMATIC, "kernel", "kernel-locality", "multiscale",
                   ANOTHER_SEED)


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
    """The datasets of rows that were measured on another network than the zoo holds now."""
    present = {name: load_network(name).describe()["weights"] for name in {row.settings["reference"] for row in rows}}
    return list(dict.fromkeys(row.settings["dataset"] for row in rows
                              if row.network["weights"] != present[row.settings["reference"]]))


def current(rows: list[Row]) -> list[Row]:
    """The rows of datasets that were measured on the networks that the zoo holds now."""
    old = outdated(rows)
    return [row for row in rows if row.settings["dataset"] not in old]


def figures_of(preset: str) -> list[Path]:
    """The committed figures of a preset."""
    return sorted(FIGURE_FOLDER.glob(f"{preset}.*.png"))


def from_data_table(rows: list[Row]) -> str:
    """For each dataset on which all are measured, r2 of the paper's model, of the best formula from the data alone, and
    of another seed. The best is the one with the least error on held-out training images."""
    found = Results(rows)
    errors, lines = found.of("claim"), []
    for dataset, measured in {**found.of("table1"), **found.of("table-appendix")}.items():
        by_method, best = {family(row): row for row in measured}, best_from_data(errors.get(dataset, []))
        if best not in by_method:
            continue
        share = shares(measured).get(best)
        lines.append([dataset, _interval(by_method.get("locality")), f"{_interval(by_method[best])} ({best})",
                      _interval(by_method.get(ANOTHER_SEED)), MISSING if share is None else
                      f"{share.of_another.mean:.0%} ({share.of_another.low:.0%} … {share.of_another.high:.0%})"])
    return markdown(["r2 on", label("locality"), "best from the data alone", "another seed", "share of another seed"],
                    lines) + "\n"


def _interval(row: Row | None) -> str:
    return MISSING if row is None else f"{row.r2['mean']:.3f} ± {(row.r2['high'] - row.r2['low']) / 2:.3f}"


def summary_table(rows: list[Row]) -> str:
    """r2 by dataset and method, with its 95 % interval."""
    measured = Results(rows)
    datasets = {**measured.of("table1"), **measured.of("table-appendix")}
    scores = {(name, family(row)): _interval(row)
              for name, data in datasets.items() for row in data}
    return markdown(["data", *map(label, SUMMARY_METHODS)], [
        [name, *(scores.get((name, method), MISSING) for method in SUMMARY_METHODS)] for name in datasets]) + "\n"


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """The new rows, and the old ones of other cells. Where a network has new rows, old rows of other weights under its
    name go, as they cannot be compared with the new ones. So do rows that no preset uses any more."""
    wanted = dict.fromkeys(cell.key for preset in PRESETS for cell in cells_of(preset))
    weights = {row.settings["reference"]: row.network["weights"] for row in new if not row.failed}
    kept = [row for row in old if weights.get(row.settings["reference"]) in (None, row.network["weights"])]
    by_name = {row.name: row for row in [*kept, *new] if row.name in wanted and not row.failed}
    return [by_name[name] for name in wanted if name in by_name]


def commit(run: Path) -> None:
    """Add rows and figures of a run to the committed ones. A figure stays if the run lacks the images that it shows."""
    write_rows(RESULTS / "bench.jsonl", merged(results(), read_rows(run / ROWS)))
    measured = Results(results())
    FIGURE_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        for figure in draw(measured, name, Drawing(run, run / "figures")):
            if _may_be_shown(figure):
                (FIGURE_FOLDER / f"{name}.{figure.path.name}").write_bytes(figure.path.read_bytes())


def _may_be_shown(figure: Figure) -> bool:
    """Curves always; images only of data that we may show."""
    kind, _, dataset = figure.path.stem.partition("-")
    return kind not in ("samples", "steps", "single") or dataset in SHOWN_DATA


if __name__ == "__main__":
    commit(Path(sys.argv[1]).expanduser())
