"""The verdict on a network as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from scorelens.analysis.attribution import Attribution
from scorelens.analysis.report_card import ReportCard
from scorelens.analysis.verdict import THRESHOLDS, linear_share
from scorelens.report.fields import Strip, field_figure
from scorelens.report.figures import INK, Row, labelled_rows, literal, panels
from scorelens.report.html import Block, Cell, Code, Definitions, Figure, Page, Section, Table, Text, write_page
from scorelens.report.tables import grouped

Numbers = Mapping[str, Any]
NO_HELD_OUT = Text(["Not measured: there are no held-out images. Give them with --holdout."])


def write_explanation(record: Numbers, suspicious: Tensor, nearest: Tensor, fields: Mapping[str, Tensor],
                      folder: Path, card: ReportCard | None = None, who: Attribution | None = None) -> None:
    """Write report.html and its pictures."""
    findings, data = record["findings"], record["data"]
    sections = [
        Section("Verdict", [Table(["about", "finding"], [[s["about"], s["text"]] for s in record["verdict"]])]),
        Section("Report card", _report_card(card, folder)),
        Section("Memorization", [*_memorization(findings["memorization"], suspicious, nearest, folder),
                                 *_attribution(who, folder)]),
        Section("Generalization", _generalization(findings["generalization"], folder)),
        Section("Explanation", _explanation(findings["explanation"], record["plan"], folder)),
        Section("Locality", _locality(findings["locality"], fields, folder)),
        Section("Thresholds", [Definitions({f"{key}: {limit:g}": text for key, (limit, text) in THRESHOLDS.items()})]),
        Section("To repeat this", [Code(record["repeat"])]),
    ]
    page = Page(f"What did {record['network']['name']} learn?",
                f"A network of {record['network'].get('parameters') or 0:,} parameters, and {data['count']:,} "
                f"images of {data['name']} ({' × '.join(map(str, data['shape']))}).", sections,
                footer=f"Data fingerprint {data['fingerprint']}; every number is in verdict.json beside this page.")
    write_page(page, folder / "report.html")


def _report_card(card: ReportCard | None, folder: Path) -> list[Block]:
    if card is None:
        return [NO_HELD_OUT]
    path = folder / "report_card.png"
    card.figure().savefig(path, dpi=160)
    lines = [[f"{level.sigma:.3g}", f"{level.error.mean:.3g}", *(f"{error:.3g}" for error in level.formulas.values()),
              f"{level.to_linear.mean:.3g}", level.best, f"{level.to_best.mean:.3g}"] for level in card.levels]
    header = ["σ", "network", *card.levels[0].formulas, "network / wiener", "best formula", "network / best"]
    return [Figure(path, "Error on held-out images relative to the linear filter's, with its 95 % interval. Above 1, "
                   "the network has not learned that noise level.", alt="held-out error by noise level"),
            Table(header, lines, f"Mean squared error, {card.errors.shape[1]} held-out images")]


def _memorization(numbers: Numbers, suspicious: Tensor, nearest: Tensor, folder: Path) -> list[Block]:
    path, share = folder / "suspicious.png", numbers["memorized"]
    labelled_rows([Row("most suspicious samples", suspicious), Row("nearest training images", nearest, attached=True)],
                  path, columns=[f"ratio {ratio:.2f}" for ratio in numbers["ratios"][:len(suspicious)]])
    lines = [["share of copies", f"{share['mean']:.1%}", f"{share['low']:.1%} … {share['high']:.1%}"],
             ["distance of samples to the data", *_mean_and_interval(numbers["novelty"])]]
    if "novelty_of_held_out" in numbers:
        lines.append(["distance of held-out images to the data", *_mean_and_interval(numbers["novelty_of_held_out"])])
    return [Table(["", "mean", "95 % interval"], lines, f"{numbers['samples']} samples; distances are rms per pixel"),
            Figure(path, "The ratio is the distance to the nearest training image over that to the second-nearest.",
                   alt="samples and the training images nearest to them")]


def _attribution(who: Attribution | None, folder: Path) -> list[Block]:
    """Mosaics of the most suspicious samples."""
    blocks: list[Block] = []
    for k in range(0 if who is None else len(who.z)):
        assert who is not None and who.r2 is not None
        path = folder / f"mosaic-{k}.png"
        who.figure(k).savefig(path, dpi=110)
        blocks.append(Figure(path, f"Suspicious sample {k + 1}, near the end of its trajectory. The network has no "
                             f"weights; these are those of {who.formula}, which predicts it with r2 "
                             f"{float(who.r2[k]):.2f} on this noisy image.", alt="training images behind a sample"))
    return blocks


def _generalization(numbers: Numbers | None, folder: Path) -> list[Block]:
    if numbers is None:
        return [NO_HELD_OUT]
    path = folder / "errors.png"
    figure, (axes,) = panels("", size=(6.4, 3.9))
    for k, (model, own) in enumerate(grouped(numbers["levels"], "model").items()):
        for split, style in (("training", "--"), ("held_out", "-o")):
            axes.loglog([level["sigma"] for level in own], [max(level[split]["mean"], 1e-9) for level in own], style,
                        color=f"C{k}", ms=3, lw=1.5, label=f"{model}, {split.replace('_', '-')} images")
    axes.set_ylabel("mean squared error")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=160)
    lines = [[f"{level['sigma']:.3g}", level["model"], f"{level['training']['mean']:.3g}",
              f"{level['held_out']['mean']:.3g}", f"{level['ratio']:.3g}" if level["ratio"] else "–"]
             for level in numbers["levels"]]
    return [Figure(path, "Single-step error by noise level. A network that memorizes has a lower error on its training "
                   "images. The optimal denoiser memorizes completely.", alt="error by noise level"),
            Table(["σ", "model", "training images", "held-out images", "ratio"], lines,
                  f"Mean squared error, {numbers['images']} images of each split")]


def _explanation(rows: Sequence[Numbers], plan: Numbers, folder: Path) -> list[Block]:
    slow = [f"Left out, too slow for these minutes: {', '.join(plan['left_out'])}; give more --minutes."] \
        if plan["left_out"] else []
    if not rows:
        return [Text(["Not measured.", *slow])]
    path, best = folder / "explained.png", max(row["r2"]["mean"] for row in rows)
    _draw_unexplained(rows, path)
    lines: list[list[Cell | str]] = []
    for row in rows:
        mean, interval = _mean_and_interval(row["r2"])
        lines.append([row["model"], Cell(mean, note=interval, strong=row["r2"]["mean"] == best),
                      f"{row['mse']['mean']:.4f}", str(row["samples"]),
                      "–" if row["held_out_error"] is None else f"{row['held_out_error']:.3f}"])
    steps = []
    for k, step in enumerate(rows[0]["steps"]):
        winner = max(rows, key=lambda row: row["steps"][k]["r2"]["mean"])
        r2 = winner["steps"][k]["r2"]["mean"]
        steps.append([f"{step['sigma']:.3g}", winner["model"], f"{r2:.3f}", f"{1 - r2:.1%}"])
    return [Text(slow), Table(["formula", "r2 of whole samples", "MSE", "samples", "held-out error / wiener"], lines,
                              "The last column needs no network: the error on held-out training images, relative to "
                              "the linear filter's, geometric mean over noise levels"),
            Figure(path, "Unexplained share of the network's single predictions by noise level (lower is better).",
                   alt="unexplained share by noise level"),
            Table(["σ", "best formula", "r2", "no formula explains"], steps, "The best formula at each noise level")]


def _draw_unexplained(rows: Sequence[Numbers], path: Path) -> None:
    """1 - r2 of single predictions by noise level; the area below all curves is what no formula explains."""
    figure, (axes,) = panels("", size=(6.4, 3.9))
    curves = [[max(1 - step["r2"]["mean"], 1e-6) for step in row["steps"]] for row in rows]
    sigmas = [step["sigma"] for step in rows[0]["steps"]]
    for row, values in zip(rows, curves, strict=True):
        axes.loglog(sigmas, values, "-o", ms=3, lw=1.5, label=literal(row["model"]))
    axes.fill_between(sigmas, 1e-6, [min(column) for column in zip(*curves, strict=True)], color=INK, alpha=0.07, lw=0,
                      label="no formula explains")
    axes.set(ylabel="unexplained share, 1 − r2", ylim=(min(map(min, curves)) / 2, None))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=160)


def _locality(levels: Sequence[Numbers], fields: Mapping[str, Tensor], folder: Path) -> list[Block]:
    path = folder / "fields.png"
    strips = [Strip(name, maps.numpy(), (maps.shape[1] // 2, maps.shape[2] // 2)) for name, maps in fields.items()]
    field_figure(strips, [level["sigma"] for level in levels], path)
    lines = [[f"{level['sigma']:.3g}", f"{level['cosine']['mean']:.3f}", f"{level['radius']['mean']:.1f}",
              f"{level['equivariance']:.3f}", f"{level['wiener_equivariance']:.3f}", f"{linear_share(level):.1%}",
              f"{level['asymmetry']:.1%}"] for level in levels]
    return [Figure(path, "Sensitivity fields of the centre pixel by noise level: the network's above the Wiener "
                   "filter's.", alt="sensitivity fields"),
            Table(["σ", "cosine with Wiener", "radius, pixels", "equivariance", "Wiener's equivariance", "linear",
                   "not symmetric"], lines, "Mean over nine pixels. Linear: the share of the change from one sample to "
                  "another that the Jacobian predicts")]


def _mean_and_interval(summary: Numbers) -> list[str]:
    return [f"{summary['mean']:.3f}", f"{summary['low']:.3f} … {summary['high']:.3f}"]
