"""The generated regions of docs/attribution.md: LDS, and what removing images does to networks.

    python -m tools.attribution_page            draws docs/figures/attribution-*.png
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perf.rows import DOCS

import scorelens
from tools.tables import MISSING, Columns, paragraph, table

NONE = "Not measured yet.\n"
LDS: Columns = {"data": "{r[study]}", "images": "{r[images]}", "prediction": "{r[method]}", "LDS": "{r[lds][mean]:.3f}",
                "95 % interval": "{r[lds][low]:.3f} … {r[lds][high]:.3f}", "halves": "{r[subsets]}"}
REMOVAL: Columns = {"data": "{r[study]}", "removed": "{r[method]}", "images removed": "{r[removed]}",
                    "rms change of the prediction": "{r[change][mean]:.4f}",
                    "beyond random images": lambda row: _beyond(row, "{mean:+.4f}"),
                    "95 % interval": lambda row: _beyond(row, "{low:+.4f} … {high:+.4f}")}


def attribution_regions(rows: Sequence[dict[str, Any]], speed: dict[str, Any] | None) -> dict[str, str]:
    """The time of the weights, and the tables of the last measurement of each method."""
    last = {(row["what"], row["study"], row.get("images"), row.get("method")): row for row in rows}
    lds = sorted((row for row in last.values() if row["what"] == "lds"),
                 key=lambda row: (row["study"], row["images"], -row["lds"]["mean"]))
    removal = sorted((row for row in last.values() if row["what"] == "removal"),
                     key=lambda row: (row["study"], -row["change"]["mean"]))
    return {"mosaic": "\n".join(f"![mosaic of training images: {name}](figures/attribution-{name}.png)\n"
                                for name in ("fashion-mnist", "digits")),
            "speed": _speed(speed) if speed else NONE,
            "lds": table(lds, LDS) + "\n" + _settings(lds) if lds else NONE,
            "removal": table(removal, REMOVAL) + "\n" + _removed(removal[0]) if removal else NONE}


def _beyond(row: dict[str, Any], text: str) -> str:
    return MISSING if row["method"] == "random images" else text.format(**row["beyond_random"])


def _speed(row: dict[str, Any]) -> str:
    return paragraph(f"""One step of {row['batch']} noisy images of CIFAR-10 with {row['images']:,} training images:
                     finding the {row['top']} images with the most weight behind every output takes {row['ratio']:.2f}
                     times the time of the prediction, over ten noise levels.""")


def _settings(rows: Sequence[dict[str, Any]]) -> str:
    each = {row["study"]: f"{row['study']}, {row['training_images']:,} images, width {row['width']}" for row in rows}
    ridges = [f"{row['ridge']:g} for {row['study']}" for row in rows if "ridge" in row and row["images"] == "held-out"]
    trak = f" TRAK's ridge, chosen on other held-out images: {', '.join(ridges)}." if ridges else ""
    return paragraph(f"""Networks: {'; '.join(each.values())}; {rows[0]['steps']:,} steps. {rows[0]['tested']} images
                     of each kind; the loss is averaged over three noise levels and two draws of the noise.{trak}""")


def _removed(row: dict[str, Any]) -> str:
    return paragraph(f"""{row['tested']} generated images; the interval, over the images, is of the difference to the
                     removal of random images.""")


def draw() -> None:
    """Mosaics of a t-shirt and of a digit, near the end of their trajectories."""
    for name, limit, seed in (("fashion-mnist", 3000, 2), ("digits", None, 1)):
        images = scorelens.load_images(name, limit=limit)
        model = scorelens.build_denoiser("locality", images)
        samples = scorelens.sample(model, scorelens.seeded_noise(images.shape, [seed]), scorelens.ddim_sigmas(10))
        who = scorelens.attribute_samples(model, samples, outputs=True)
        who.mosaic().savefig(DOCS / "figures" / f"attribution-{name}.png", dpi=110)


if __name__ == "__main__":
    draw()
