"""One weight per translation of an image: correlations and convolutions by the fast Fourier transform.

||z - T_s x||^2 = ||z||^2 - 2 sum_p z[p] x[p - s] + ||x||^2: the distances to all translations of an image are one
correlation, and their weighted mean is one convolution. Both take HW log HW operations instead of (HW)^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Complex
from torch import Tensor

from scorelens.data.images import to_floats
from scorelens.posterior.plans.full_image import FullImage
from scorelens.posterior.responses import Responses, WholeOutput
from scorelens.posterior.softmax import State, relative_weights_
from scorelens.posterior.sources import Source, Translations
from scorelens.types import Flat, Shape
from scorelens.validation import wide_dtype

BLOCK = 2**21  # distances of all noisy images to all translations of the images that are taken at a time
LARGEST = 4.0  # values of a pixel, in units of [-1, 1]: standardized latents exceed 1
ROUNDING = 1e-6  # nats that rounding of the transforms may cost


def correlations_are_exact(z: Flat, scale: float) -> bool:
    """Whether distances by transforms keep enough digits at this scale: they round relative to |z| |x|."""
    d = z.shape[1]
    longest = torch.linalg.vector_norm(z, dim=1).max().item() if len(z) else 0.0
    product = LARGEST * math.sqrt(d) * (longest + LARGEST * math.sqrt(d))
    return scale * torch.finfo(wide_dtype(z)).eps * math.log2(d + 1) * product < ROUNDING


@dataclass(frozen=True)
class Correlations(FullImage):
    """All translations of an image at once, in float64 where the device has it; gradients are those of the images one
    by one."""

    name: ClassVar[str] = "correlations"
    shape: Shape = (1, 1, 1)

    def spans(self, z: Flat, source: Source, images: range, zero: float | Tensor, scale: float, margin: float,
              responses: Responses | None) -> Iterator[tuple[State, float]]:
        assert isinstance(source, Translations) and images == range(len(source)), "a softmax over all translations"
        assert isinstance(responses, WholeOutput) and responses.pixels is ..., "every translation writes every pixel"
        whole, (_, h, w), wide = source.images, self.shape, wide_dtype(z)
        noisy = z.to(wide).unflatten(1, self.shape)
        transformed, squared = torch.fft.rfft2(noisy), noisy.square().sum(dim=(1, 2, 3))[:, None]  # [b, c, h, k]
        size = max(1, BLOCK // (len(z) * h * w))
        for start in range(0, len(whole), size):
            raw = whole.raw(start, min(start + size, len(whole)))
            x = to_floats(raw, z.new_empty(raw.shape, dtype=wide), zero)
            spectra, lengths = torch.fft.rfft2(x), x.square().sum(dim=(1, 2, 3))  # [n, c, h, k]
            products = _over_channels(transformed[:, None], spectra.conj())
            distances = torch.fft.irfft2(products, s=(h, w)).mul_(-2).add_((squared + lengths)[:, :, None, None])
            best = distances.flatten(1).amin(dim=1, keepdim=True)
            weights = relative_weights_(distances.flatten(1)[:, None], best, scale)  # [b, 1, n h w]
            weighted = torch.fft.rfft2(weights.view_as(distances))
            sums = torch.stack([(weighted * spectra[:, c]).sum(dim=1) for c in range(spectra.shape[1])], dim=1)
            mean = torch.fft.irfft2(sums, s=(h, w)).flatten(1)
            yield State(best, weights.sum(dim=2), mean[:, None]), (start + len(x)) / len(whole)


def _over_channels(z: Complex[Tensor, "b 1 c h k"], x: Complex[Tensor, "n c h k"]) -> Complex[Tensor, "b n h k"]:
    """sum_c z[b, 1, c] x[n, c], without a tensor for each channel."""
    total = z[:, :, 0] * x[:, 0]
    for c in range(1, x.shape[1]):
        total.addcmul_(z[:, :, c], x[:, c])
    return total
