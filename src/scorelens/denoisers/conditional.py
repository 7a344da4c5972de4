"""Class-conditional denoisers: any method, with the images of one class as its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scorelens.data.edits import only_classes
from scorelens.data.images import ImageSet
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import check_noisy

Label = int | str


@dataclass(frozen=True)
class ByClass:
    """Noisy image k is denoised by the images of class labels[k] alone."""

    images: ImageSet
    labels: Sequence[Label]
    models: dict[Label, Denoiser]

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        check_noisy(z, self.images.shape)
        if len(z) != len(self.labels):
            raise ScorelensError(f"{len(self.labels)} labels were given for {len(z)} noisy images; give one for each")
        out = torch.empty_like(z)
        for label, model in self.models.items():
            own = torch.tensor([k for k, one in enumerate(self.labels) if one == label], device=z.device)
            out = out.index_copy(0, own, model(z[own], float(sigma)))
        return out


def by_class(images: ImageSet, labels: Sequence[Label], build: Callable[[ImageSet], Denoiser]) -> ByClass:
    """One denoiser for each class that is named, of its images alone."""
    if len(labels) == 0:
        raise ScorelensError("labels must name the class of each noisy image; none was given")
    models = {label: build(only_classes(images, [label])) for label in dict.fromkeys(labels)}
    return ByClass(images, list(labels), models)
