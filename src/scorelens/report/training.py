"""Model cards and loss curves of trained networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scorelens.report.figures import MUTED, Figure, panels
from scorelens.report.report_card import report_card_table
from scorelens.report.tables import markdown


def model_card(name: str, card: Mapping[str, Any]) -> str:
    """The card of a network as Markdown."""
    data, versions = card["data"], card["environment"]["versions"]
    length = f"{card['steps']:,} steps of {card['batch']} images ({card['images_seen']:,} images seen)"
    edits = "".join(f", {name} {data[name]}" for name in ("limit", "classes", "flips", "mark", "gamma") if name in data)
    power = card.get("weighting", 0.0)
    facts = {
        "network": f"{card['network']}, preset {card['preset']}, {card['parameters']:,} parameters",
        "predicts": card["prediction"],
        **({"classes": f"{', '.join(card['classes'])}; {card['label_dropout']:.0%} of the images were seen as the null "
                       "class"} if "classes" in card else {}),
        "data": f"{data['name']}, {data['split']} split, {data['count']:,} images of "
                f"{' x '.join(map(str, data['shape']))}{edits}, fingerprint `{data['fingerprint']}`",
        "training": f"{length}, {card['seconds'] / 60:.0f} minutes on {card['environment']['device']}",
        "recipe": f"Adam, learning rate {card['learning_rate']:g}"
                  f"{' falling to 0 along a half cosine' if card['sizes']['decay'] else ''}"
                  f"{f', loss times alpha^{power:g}' if power else ''}, dropout {card['dropout']:g}, averaged weights "
                  f"(decay {card['ema']:g}), {card['precision']}, seed {card['seed']}",
        **({"report card": card["report_card"]["sentence"]} if "report_card" in card else {}),
        **({"began with": f"the weights of {card['start']['name']}"} if "start" in card else {}),
        "loss at the end": f"{card['loss']:.4f}",
        "made with": ", ".join(f"{package} {version}" for package, version in versions.items()),
    }
    if "half_precision" in card:
        check = card["half_precision"]
        facts["stored as"] = (f"{'float16' if check['used'] else 'float32'} (samples of the float16 weights have r2 "
                              f"{check['r2']:.6f} with those of the float32 weights)")
    return "\n".join([f"# {name}", "", *(f"- **{key}:** {value}" for key, value in facts.items()), "",
                      "![samples](samples.png)", "", "![training](loss.png)", "",
                      *(_report_card(card["report_card"]) if "report_card" in card else []),
                      *(_agreement(card["agreement"]) if "agreement" in card else [])])


def _report_card(card: Mapping[str, Any]) -> list[str]:
    measured = [f"{name} on {how['images']} images, {how['coordinates']:,} coordinates each"
                for name, how in card["formulas"].items()]
    return [f"Mean squared error on {card['images']} held-out images, and that of the closed forms of the training "
            f"images ({'; '.join(measured)}):", "", report_card_table(card["levels"]), ""]


def _agreement(agreement: Mapping[str, Any]) -> list[str]:
    first, last = agreement["noise_seeds"]
    rows = [[f"{point['images_seen']:,}", f"{point['r2']['mean']:.3f}", f"{point['r2']['std']:.3f}",
             f"{point['r2']['low']:.3f} … {point['r2']['high']:.3f}"] for point in agreement["curve"]]
    return [f"r2 between the {agreement['steps']}-step samples of this network and {agreement['with']}, noise seeds "
            f"{first}–{last}, by images seen:", "",
            markdown(["images seen", "mean r2", "std", "95 % interval"], rows), ""]


def training_figure(losses: Sequence[float], batch: int, *, title: str,
                    agreement: Sequence[tuple[int, float]] = ()) -> Figure:
    """The loss by images seen (each step pale, the running mean dark) and, if given, the r2 with another seed."""
    titles, width = ((title, ""), 9.5) if agreement else ((title,), 6.0)
    figure, (axes, *others) = panels(*titles, size=(width, 3.2), xlabel="images seen")
    window = max(1, len(losses) // 100)
    means = np.convolve(losses, np.ones(window) / window, mode="valid")
    seen = batch * np.arange(1, len(losses) + 1)
    middle = seen[window // 2:window // 2 + len(means)]
    axes.loglog(seen, losses, color=MUTED, lw=0.4, alpha=0.35, rasterized=True)
    axes.loglog(middle, means, color="#1f6fb4", lw=1.8)
    axes.set(ylabel="loss", xlim=(0.9 * middle[0], seen[-1] * 1.1))
    if agreement:
        images, scores = zip(*agreement, strict=True)
        others[0].semilogx(images, scores, "-o", color="#c8502d", ms=4, lw=1.6)
        others[0].set(ylabel="r2 between the two seeds", ylim=(min(0.0, *scores), 1.02))
    return figure
