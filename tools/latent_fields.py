"""What does locality look like in latent space? Fields of a pixel and of a latent network on the leaves, and rows of
the Wiener filter on CIFAR-10.

    python -m tools.latent_fields      measures them, and writes perf/results/latents.jsonl and docs/figures/latents.png
"""

from __future__ import annotations

import json
from typing import Any

from perf.rows import DOCS, RESULTS

from scorelens.analysis.fields import NoisyImages, compare_fields, radius
from scorelens.data import ImageSet, load_images
from scorelens.networks.load import load_network
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.fields import Strip, field_figure
from scorelens.statistics import fit_gaussian, wiener_matrix
from tools.tables import Columns, table
from tools.zoo import ROOT

LATENT = ROOT / "zoo" / "leaves-latent-unet"
SPACES = {"pixels": "leaves-unet", "latents": "leaves-latent-unet"}
SIGMAS = [float(sigma) for sigma in ddim_sigmas(10)[2:9:2]]
COUNT = 16  # noisy images that a field is averaged over
NUMBERS = (("cosine", "cosine with Wiener", ".2f"), ("radius", "network's reach", ".1f"),
           ("wiener_radius", "Wiener's reach", ".1f"))
LINEAR: dict[str, dict[str, Any]] = {  # options of load_images
    "CIFAR-10 pixels": {}, "CIFAR-10 latents": {"autoencoder": ROOT / "zoo" / "cifar10-vae"}}
COLUMNS: Columns = {"σ": "{r[sigma]:.3g}", **{f"{space}: {text}": f"{{r[{space}][{key}]:{form}}}"
                                              for space in SPACES for key, text, form in NUMBERS},
                    **{f"{space}: Wiener's reach": f"{{r[{space}]:.1f}}" for space in LINEAR}}


def measure(space: str, images: ImageSet) -> tuple[list[dict[str, Any]], list[Strip]]:
    """The fields of the centre pixel at each noise level, of the network and of the Wiener filter."""
    name, (_, h, w) = SPACES[space], images.shape
    pixel = (h // 2, w // 2)
    points = NoisyImages(images, seeded_noise(images.shape, range(COUNT)), SIGMAS)
    result = compare_fields({name: load_network(name, shape=images.shape)}, images, [pixel], points)
    strips = [Strip(label, fields.values[:, 0].sum(dim=1).cpu().numpy(), pixel, space)
              for label, fields in ((name, result.fields[name]), ("wiener", result.wiener))]
    side = 32 / h  # reach in pixels of the image
    rows = [{"cosine": row["cosine"], "radius": side * row["radius"], "wiener_radius": side * radius(field[0], pixel)}
            for row, field in zip(result.rows, result.wiener.values, strict=True)]
    return rows, strips


def wiener_reach(images: ImageSet) -> list[float]:
    """The reach of the Wiener filter's row for the centre pixel at each noise level, in pixels of the image."""
    stats, (c, h, w) = fit_gaussian(images), images.shape
    rows = (wiener_matrix(stats, sigma).view(c, h, w, c, h, w)[:, h // 2, w // 2].sum(dim=0) for sigma in SIGMAS)
    return [32 / h * radius(row, (h // 2, w // 2)) for row in rows]


def latent_table() -> str:
    """The committed numbers, by noise level."""
    return table([json.loads(line) for line in (RESULTS / "latents.jsonl").read_text().splitlines()], COLUMNS)


def main() -> None:
    sets = {"pixels": load_images("leaves", split="train"),
            "latents": load_images("leaves", split="train", autoencoder=LATENT)}
    measured = {space: measure(space, images) for space, images in sets.items()}
    linear = {space: wiener_reach(load_images("cifar10", **options)) for space, options in LINEAR.items()}
    lines = [{"sigma": sigma, **{space: rows[k] for space, (rows, _) in measured.items()},
              **{space: reach[k] for space, reach in linear.items()}} for k, sigma in enumerate(SIGMAS)]
    (RESULTS / "latents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    strips = [strip for _, both in measured.values() for strip in both]
    field_figure(strips, SIGMAS, DOCS / "figures" / "latents.png")


if __name__ == "__main__":
    main()
