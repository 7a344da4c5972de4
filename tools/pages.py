"""Writes the generated regions of docs/, and the page of every network, from committed rows, cards and code.

    python -m tools.pages
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from perf.rows import DOCS, ROOT, results, rows_of

from scorelens.files import write_json
from scorelens.networks.zoo_source import PACKAGED
from scorelens.report.training import model_card
from tools.attribution_page import attribution_regions
from tools.ceiling import ceiling_region
from tools.fields_page import fields_regions
from tools.findings import findings
from tools.latent_fields import latent_table
from tools.methods_page import SCORES, methods_regions
from tools.performance_page import performance_regions, scaling_figure
from tools.regions import with_regions
from tools.reliability_page import reliability_regions
from tools.results_page import current, from_data_table, results_regions, summary_table
from tools.tables import MISSING, Columns, table
from tools.zoo import zoo_index

Rows = dict[str, dict[str, Any]]

RATES: Columns = {"": "{r[way]}", "images per second": "{r[images_per_second]:.0f}"}
ZOO: Columns = {
    "network": "[{r[name]}](../{r[folder]}/README.md)",
    "data": lambda card: f"{card['data']['name']} {' x '.join(map(str, card['data']['shape']))}",
    "images": "{r[data][count]:,}", "parameters": "{r[parameters]:,}", "images seen": "{r[images_seen]:,}",
    "minutes": lambda card: f"{card['seconds'] / 60:.0f}",
    "report card": lambda card: _ratios(level["to_linear"]["mean"] for level in card["report_card"]["levels"])
                   if "report_card" in card else MISSING,
    "worst / best formula": lambda card: _worst(card["report_card"]) if "report_card" in card else MISSING,
    "r2 with another seed": lambda card: _agreement(card["agreement"]) if "agreement" in card else MISSING}
VARIANTS: Columns = {
    "variant": "{r.name}", "parameters": "{r.metrics[parameters]:,}", "images seen": "{r.settings[images_seen]:,}",
    "held-out error / wiener": lambda row: _ratios(row.metrics["ratios"]),
    "mean": "{r.metrics[mean_ratio]:.3f}"}
DEMO: Columns = {
    "predicts the U-Net's samples": lambda row: row.label + (" *" if "chosen" in row.settings else ""), **SCORES}


HEADLINE: Columns = {
    "": "{r.label}", "median r2": "{r.r2[median]:.3f}", "mean": "{r.r2[mean]:.3f}",
    "95 % interval of the mean": "{r.r2[low]:.3f} … {r.r2[high]:.3f}",
    **{key: text for key, text in SCORES.items() if key in ("novelty", "memorized")}}


def zoo_regions(cards: Rows) -> dict[str, str]:
    """A table of the networks, variants of the recipe, the speed of training, and figures."""
    recipe = results("recipe")
    rates = [point for row in rows_of("performance") if row["cell"] == "training" for point in row["points"]]
    return {"networks": table(cards.values(), ZOO), "rates": table(rates, RATES),
            "recipe": table(recipe, VARIANTS) if recipe else "Not measured yet.",
            "figures": "\n".join(f"### {name}\n\n![samples of {name}](../{card['folder']}/samples.png)\n\n"
                                 f"![training of {name}](../{card['folder']}/loss.png)\n"
                                 for name, card in cards.items())}


def _ratios(values: Iterable[float]) -> str:
    return " ".join(f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}" for ratio in values)


def _worst(report_card: dict[str, Any]) -> str:
    level = max(report_card["levels"], key=lambda level: level["to_best"]["mean"])
    return f"{level['to_best']['mean']:.2f} at {level['sigma']:.3g}"


def _agreement(agreement: dict[str, Any]) -> str:
    return "{mean:.3f} ({low:.3f} … {high:.3f})".format(**agreement["curve"][-1]["r2"])


def zoo_cards() -> Rows:
    """The cards of all committed networks, with their names and folders."""
    folders = sorted(path.parent for zoo in ("src/scorelens/zoo", "zoo") for path in ROOT.glob(f"{zoo}/*/card.json"))
    return {folder.name: {"name": folder.name, "folder": folder.relative_to(ROOT).as_posix(),
                          **json.loads((folder / "card.json").read_text())} for folder in folders}


def regions() -> dict[str, dict[str, str]]:
    """The content of every generated region, by page."""
    listed = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "methods.md").read_text(), re.MULTILINE)
    demo = table([row for row in results("demo") if "r2" in row.metrics], DEMO)
    return {"README.md": {"from-data": from_data_table(results())},
            "docs/zoo.md": zoo_regions(zoo_cards()),
            "docs/performance.md": performance_regions({row["cell"]: row for row in rows_of("performance")}),
            "docs/methods.md": methods_regions(rows_of("methods"), results("digits"), listed),
            "docs/sensitivity.md": fields_regions(),
            "docs/reliability.md": reliability_regions(rows_of("torture")),
            "docs/attribution.md": attribution_regions(
                rows_of("attribution"), {row["cell"]: row for row in rows_of("performance")}.get("attribution")),
            "docs/your_own_model.md": {"latents": latent_table()},
            "docs/gallery.md": {"headline": table((r for r in results("headline") if "r2" in r.metrics), HEADLINE)},
            "docs/results.md": {"findings": findings(current(results()), zoo_cards()),
                                "summary": summary_table(results()), "ceiling": ceiling_region(rows_of("ceiling")),
                                "demo": demo, **results_regions(results())}}


if __name__ == "__main__":
    scaling = [row for row in rows_of("performance") if row["cell"] == "scaling"]
    for row in scaling:
        scaling_figure(row).savefig(DOCS / "performance-scaling.png", dpi=150)
    for name, card in zoo_cards().items():
        if "report_card" in card:  # some of an earlier recipe have none
            (ROOT / card["folder"] / "README.md").write_text(model_card(name, card))
    write_json(PACKAGED, zoo_index())
    for page, contents in regions().items():
        (ROOT / page).write_text(with_regions((ROOT / page).read_text(), contents))
