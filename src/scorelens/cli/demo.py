"""`scorelens demo`: a comparison on the embedded data and networks, in about a minute."""

from __future__ import annotations

from pathlib import Path

from scorelens.analysis.comparison import compare
from scorelens.cli.compare import write
from scorelens.cli.run_folder import output_folder
from scorelens.data import load_images

THRESHOLDS = "0.02/0.05/0.1/0.2"
SHOWCASE = ("optimal", "nearest", "smoothed", "wiener", "locality", f"locality:threshold={THRESHOLDS}",
            f"locality:threshold={THRESHOLDS},softmax=batch-mean")
TITLE = "A trained network, predicted from the statistics of its data"
NETWORKS = ("digits-unet-attention", "digits-unet-x0", "digits-dit-x0")


def demo(*, num: int = 128, steps: int = 10, out: Path | None = None) -> Path:
    """Predict trained networks from the statistics of their data: a table, figures and a page, in about a minute.

    Args:
        num: number of images per method.
        steps: number of noise levels, on the paper's grid.
        out: folder for the results; it must not exist. By default runs/demo-digits
    """
    folder = output_folder("demo", "digits", out)
    images = load_images("digits", split="train")
    result = compare("digits-unet", images, (*NETWORKS, *SHOWCASE), num=num, steps=steps, seed=num, tuning_seed=0,
                     title=TITLE)
    return write(result, folder)
