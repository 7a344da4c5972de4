"""Model cards: what a trained network is, where it came from, and how well its seeds agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scorelens.report.report_card import report_card_table
from scorelens.report.tables import markdown


def model_card(name: str, card: Mapping[str, Any]) -> str:
    """The card of a network as Markdown."""
    data, versions = card["data"], card["environment"]["versions"]
    length = f"{card['steps']:,} steps of {card['batch']} images ({card['images_seen']:,} images seen)"
    facts = {
        "network": f"{card['network']}, preset {card['preset']}, {card['parameters']:,} parameters",
        "predicts": card["prediction"],
        "data": f"{data['name']}, {data['split']} split, {data['count']:,} images of "
                f"{' x '.join(map(str, data['shape']))}{_edits(data)}, fingerprint `{data['fingerprint']}`",
        "training": f"{length}, {card['seconds'] / 60:.0f} minutes on {card['environment']['device']}",
        "recipe": f"Adam, learning rate {card['learning_rate']:g}"
                  f"{' falling to 0 along a half cosine' if card['sizes']['decay'] else ''}{_weighting(card)}, dropout "
                  f"{card['dropout']:g}, averaged weights (decay {card['ema']:g}), {card['precision']}, "
                  f"seed {card['seed']}",
        **({"report card": card["report_card"]["sentence"]} if "report_card" in card else {}),
        **({"began with": f"the weights of {card['start']['name']}"} if "start" in card else {}),
        "loss at the end": f"{card['loss']:.4f}",
        "made with": ", ".join(f"{package} {version}" for package, version in versions.items()),
    }
    if "half_precision" in card:
        facts["stored as"] = _stored(card["half_precision"])
    lines = [f"# {name}", "", *(f"- **{key}:** {value}" for key, value in facts.items()), "",
             "![samples](samples.png)", "", "![training](loss.png)", ""]
    if "report_card" in card:
        lines += _report_card(card["report_card"])
    if "agreement" in card:
        lines += _agreement(card["agreement"])
    return "\n".join(lines)


def _edits(data: Mapping[str, Any]) -> str:
    """What was done to the images, beyond choosing a split."""
    return "".join(f", {name} {data[name]}" for name in ("limit", "classes", "flips", "mark", "gamma") if name in data)


def _weighting(card: Mapping[str, Any]) -> str:
    power = card.get("weighting", 0.0)
    return f", loss times alpha^{power:g}" if power else ""


def _stored(check: Mapping[str, Any]) -> str:
    kind = "float16" if check["used"] else "float32"
    return f"{kind} (samples of the float16 weights have r2 {check['r2']:.6f} with those of the float32 weights)"


def _report_card(found: Mapping[str, Any]) -> list[str]:
    """The held-out errors, and on how much each closed form was measured."""
    measured = [f"{name} on {how['images']} images, {how['coordinates']:,} coordinates each"
                for name, how in found["formulas"].items()]
    return [f"Mean squared error on {found['images']} held-out images, and that of the closed forms of the training "
            f"images ({'; '.join(measured)}):", "", report_card_table(found["levels"]), ""]


def _agreement(found: Mapping[str, Any]) -> list[str]:
    """The table of agreement over images seen."""
    first, last = found["noise_seeds"]
    rows = [[f"{point['images_seen']:,}", f"{point['r2']['mean']:.3f}", f"{point['r2']['std']:.3f}",
             f"{point['r2']['low']:.3f} … {point['r2']['high']:.3f}"] for point in found["curve"]]
    return [f"r2 between the {found['steps']}-step samples of this network and {found['with']}, noise seeds "
            f"{first}–{last}, by images seen:", "",
            markdown(["images seen", "mean r2", "std", "95 % interval"], rows), ""]
