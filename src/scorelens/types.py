"""The contract `denoiser(z, sigma) -> x0_hat`, the shape aliases of our signatures, and user-facing errors."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "b c h w"]  # a batch of images in [-1, 1], clean or noisy
Flat = Float[Tensor, "b d"]  # the same, flattened to D = C*H*W coordinates
Shape = tuple[int, int, int]  # (C, H, W)


@runtime_checkable
class Denoiser(Protocol):
    """Anything that removes noise: a formula, a network, a lambda. z = x0 + sigma * eps [B, C, H, W], x0 in [-1, 1].

    sigma is one number for the batch: a float or a tensor of one element. The denoisers and networks of Scorelens also
    take a tensor [B] with one noise level for each image. Others need not: wherever Scorelens takes a tensor [B], it
    calls them with a float, once for each distinct level.
    """

    def __call__(self, z: Tensor, sigma: float, /) -> Tensor: ...


class ScorelensError(ValueError):
    """A user error: one line that names the problem and the fix. The command line exits with 2."""


class CheckFailedError(Exception):
    """A condition that a command was asked to check is false: exit code 1, so that CI can stop. Undecided: 3."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
