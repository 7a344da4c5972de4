"""Samples of a denoiser as arrays, pictures and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.images import to_uint8
from scorelens.report.figures import Row, grid_figure, labelled_rows
from scorelens.report.tables import markdown

SHOWN, SHOWN_STEPS = 8, 10  # samples and steps in trajectory.png


def samples_table(sigmas: Sequence[float], seconds: Sequence[float]) -> str:
    """One line for each step."""
    return markdown(["sigma", "seconds"], [[f"{s:.4g}", f"{t:.3g}"] for s, t in zip(sigmas, seconds, strict=True)])


def write_samples(images: Tensor, sigmas: Sequence[float], z: Float[Tensor, "steps b c h w"],
                  x0_hat: Float[Tensor, "steps b c h w"], title: str, folder: Path,
                  decode: Callable[[Tensor], Tensor] | None = None) -> None:
    """Write images.npz, images/*.png, trajectory.npz, grid.png and trajectory.png; latents as images, if decoded."""
    from PIL import Image

    final = (images if decode is None else decode(images)).clamp(-1, 1).cpu()
    np.savez(folder / "images.npz", images=to_uint8(final).transpose(0, 2, 3, 1), floats=final.numpy())
    np.savez(folder / "trajectory.npz", sigmas=np.array(sigmas), z=z.numpy(), x0_hat=x0_hat.numpy())
    (folder / "images").mkdir()
    for k, pixels in enumerate(to_uint8(final)):
        if pixels.shape[0] in (1, 3):
            Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).save(folder / "images" / f"{k:05d}.png")
    grid_figure(final[:100], title=title).savefig(folder / "grid.png", dpi=160)
    shown = np.unique(np.linspace(0, len(sigmas) - 1, SHOWN_STEPS).round().astype(int))
    strips = x0_hat[shown, :SHOWN].transpose(0, 1)
    strips = strips if decode is None else torch.stack([decode(strip) for strip in strips])
    labelled_rows([Row(f"sample {k}", strip) for k, strip in enumerate(strips)],
                  folder / "trajectory.png", title=f"x̂₀ along the trajectory: {title}",
                  columns=[f"σ = {sigmas[k]:.3g}" for k in shown])
