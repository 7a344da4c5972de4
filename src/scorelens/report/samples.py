"""Samples of a denoiser as files and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from scorelens.data.images import to_uint8
from scorelens.report.figures import Row, grid_figure, labelled_rows
from scorelens.report.tables import markdown

SHOWN, SHOWN_STEPS = 8, 10  # samples and steps in the picture of the trajectory


@runtime_checkable
class Step(Protocol):
    """What is read of a step."""

    @property
    def sigma(self) -> float: ...

    @property
    def z(self) -> Tensor: ...

    @property
    def x0_hat(self) -> Tensor: ...


def samples_table(sigmas: Sequence[float], seconds: Sequence[float]) -> str:
    """One line for each step."""
    return markdown(["sigma", "seconds"], [[f"{s:.4g}", f"{t:.3g}"] for s, t in zip(sigmas, seconds, strict=True)])


def write_samples(images: Tensor, steps: Sequence[Step], title: str, folder: Path) -> None:
    """images.npz and images/*.png, trajectory.npz, grid.png and trajectory.png."""
    from PIL import Image

    final = images.clamp(-1, 1).cpu()
    np.savez(folder / "images.npz", images=to_uint8(final).transpose(0, 2, 3, 1), floats=final.numpy())
    np.savez(folder / "trajectory.npz", sigmas=np.array([s.sigma for s in steps]),
             z=np.stack([s.z.cpu().numpy() for s in steps]), x0_hat=np.stack([s.x0_hat.cpu().numpy() for s in steps]))
    (folder / "images").mkdir()
    for k, pixels in enumerate(to_uint8(final)):
        if pixels.shape[0] in (1, 3):
            Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).save(folder / "images" / f"{k:05d}.png")
    grid_figure(final[:100], title=title).savefig(folder / "grid.png", dpi=160)
    shown = [steps[k] for k in np.unique(np.linspace(0, len(steps) - 1, SHOWN_STEPS).round().astype(int))]
    strips = torch.stack([s.x0_hat[:SHOWN].cpu() for s in shown], dim=1)  # [samples, steps, C, H, W]
    labelled_rows([Row(f"sample {k}", strip) for k, strip in enumerate(strips)], folder / "trajectory.png",
                  title=f"x̂₀ along the trajectory: {title}", columns=[f"σ = {s.sigma:.3g}" for s in shown])
