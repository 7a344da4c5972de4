"""`scorelens report-card`: a network's error on held-out images at every noise level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.analysis import report_card as analysis
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_model
from scorelens.cli.run_folder import output_folder
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.types import ScorelensError


def report_card(images: ImageSet, test: ImageSet, model: str, *, formulas: Sequence[str] = analysis.CLOSED_FORMS,
                num: int = analysis.COUNT, seed: int = 0, shown: int = 0, loading: Loading | None = None,
                device: str = "auto", out: Path | None = None) -> Path:
    """Measure a network's error on held-out images at each noise level, beside the closed forms of its data.

    Args:
        model: a network (zoo name, folder saved by diffusers, hub id, checkpoint file), or a denoiser with its options.
        num: number of held-out images.
        shown: index of the image in the picture.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/report-card-...
    """
    if num == analysis.COUNT:  # the default is also a maximum
        num = min(num, len(test))
    if not 1 <= num <= len(test):
        raise ScorelensError(f"num must be between 1 and the {len(test)} held-out images, got {num}")
    if not 0 <= shown < num:
        raise ScorelensError(f"shown must be between 0 and {num - 1}, got {shown}")
    name = Path(model).name
    folder = output_folder("report-card", name, out)
    denoiser = load_model(model, images, loading)
    card = analysis.report_card(denoiser, images, test, formulas=formulas, count=num, seed=seed,
                                device=choose_device(device), name=name, shown=shown)
    card.save(folder)
    print(f"{name}: {card.sentence}.\n\n{card.table()}\n\npictures: {folder / 'report_card.png'}, "
          f"{folder / 'one_step.png'}")
    return folder
