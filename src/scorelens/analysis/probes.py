"""Linearity of a denoiser and its gain along a pattern, from vector-Jacobian products alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.jacobian import pull_back
from scorelens.types import Denoiser

PROBES = 16  # random directions


@dataclass(frozen=True)
class Linearity:
    """Deviations of a denoiser from a symmetric linear map at one noise level. Both are 0 for the Wiener filter."""

    nonlinearity: float  # ||f(z') - f(z) - J (z' - z)||^2 / ||f(z') - f(z)||^2
    asymmetry: float  # ||J - J^T|| / (2 ||J||), at most 1


def linearity(denoiser: Denoiser, z: Float[Tensor, "b c h w"], other: Float[Tensor, "b c h w"], sigma: float, *,
              probes: int = PROBES, seed: int = 0) -> Linearity:
    """Compare the change from z to `other` with the Jacobian's prediction at z, in random directions u.

    u^T (f(z') - f(z)) is compared with (J^T u)^T (z' - z), and u^T J v with v^T J u: both need J^T u alone. The mean
    squares over random u are the squared norms in the definitions.
    """
    draw = torch.Generator().manual_seed(seed)
    directions = torch.randn(probes, *z.shape[1:], generator=draw).to(z)  # [m, C, H, W]
    with torch.no_grad():
        change = denoiser(other, sigma) - denoiser(z, sigma)
    pulled = torch.stack([pull_back(denoiser, z, sigma, u) for u in directions])  # J^T u, [m, B, C, H, W]
    truth = torch.einsum("mchw,bchw->mb", directions, change)
    linear = torch.einsum("mbchw,bchw->mb", pulled, other - z)
    entries = torch.einsum("mbchw,nchw->bmn", pulled, directions)  # u_m^T J u_n
    pairs = ~torch.eye(probes, dtype=torch.bool, device=z.device)
    gaps, sizes = (entries - entries.mT)[:, pairs], entries[:, pairs]
    return Linearity(_share((truth - linear).square().sum(), truth.square().sum()),
                     _share(gaps.square().sum(), 4 * sizes.square().sum()) ** 0.5)


def gain_along(denoiser: Denoiser, z: Tensor, sigma: float, pattern: Float[Tensor, "c h w"]) -> Float[Tensor, "b"]:
    """u^T J u for the unit vector u along the pattern: the share of the pattern in z that remains in x0_hat."""
    u = (pattern / pattern.norm()).to(z)
    return (pull_back(denoiser, z, sigma, u) * u).flatten(1).sum(dim=1)


def _share(part: Tensor, whole: Tensor) -> float:
    return (part / whole).item() if whole > 0 else 0.0
