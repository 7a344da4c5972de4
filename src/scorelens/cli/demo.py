"""`scorelens demo`: what the project is for, on embedded data and networks, in about a minute."""

from __future__ import annotations

from pathlib import Path

from scorelens.cli.compare import Setting, carry_out
from scorelens.data import load_images
from scorelens.distributed import choose_device
from scorelens.networks.load import load_network
from scorelens.noise import ddim_sigmas

THRESHOLDS = "0.02/0.05/0.1/0.2"
SHOWCASE = ("optimal", "nearest", "smoothed", "wiener", "locality", f"locality:threshold={THRESHOLDS}",
            f"locality:threshold={THRESHOLDS},softmax=batch-mean")
TITLE = "A trained network, predicted from the statistics of its data"
NETWORKS = ("digits-unet-attention", "digits-unet-x0", "digits-dit-x0")


def demo(*, num: int = 128, steps: int = 10, out: Path | None = None) -> Path:
    """Predict trained networks from the statistics of their data: table, pictures and a page, in about a minute.

    Args:
        num: number of images per method.
        steps: number of noise levels, on the paper's grid.
        out: folder for the results; it must not exist. By default runs/demo-digits
    """
    setting = Setting(load_images("digits", split="train"), load_network("digits-unet"), "digits-unet",
                      ddim_sigmas(steps).tolist(), seeds=range(num, 2 * num), tuning_seeds=range(num),
                      device=choose_device("cpu"), with_single_steps=True)
    return carry_out("demo", "digits", setting, NETWORKS, SHOWCASE, out, TITLE)
