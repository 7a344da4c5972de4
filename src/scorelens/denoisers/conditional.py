"""Class-conditional denoisers: any method, fitted to the images of one class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.edits import only_classes
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import for_rows
from scorelens.posterior import Term
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import by_level, check_levels, merge_groups, outputs_at

Label = int | str


@dataclass(frozen=True)
class ByClass:
    """Noisy image k is denoised with the images of class labels[k] only."""

    images: ImageSet
    labels: Sequence[Label]
    models: dict[Label, Denoiser]

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return self._merged(lambda model, some, level: model(some, level), z, sigma)

    def at(self, z: Tensor, sigma: float | Tensor, coordinates: Int[Tensor, "k"]) -> Float[Tensor, "b k"]:
        """x0_hat at some of its coordinates."""
        return self._merged(partial(outputs_at, coordinates=coordinates), z, sigma)

    def _merged(self, call: Callable[[Denoiser, Tensor, float], Tensor], z: Tensor, sigma: float | Tensor) -> Tensor:
        groups = self._groups(z)
        levels = check_levels(sigma, len(z))
        return merge_groups(((rows, by_level(partial(call, model), z[rows], levels[rows])) for rows, model in groups),
                            dim=0)


    def _groups(self, z: Tensor) -> list[tuple[Int[Tensor, "m"], Denoiser]]:
        """The noisy images of each class, and its denoiser."""
        if len(z) != len(self.labels):
            raise ScorelensError(f"{len(self.labels)} labels were given for {len(z)} noisy images; give one for each")
        return [(torch.tensor([k for k, given in enumerate(self.labels) if given == label]), model)
                for label, model in self.models.items()]

    @property
    def terms(self) -> Callable[[Tensor, float], Iterator[Term]] | None:
        """The posterior means that a call consists of, if the method has any."""
        if any(getattr(model, "terms", None) is None for model in self.models.values()):
            return None
        return lambda z, sigma: (each for rows, model in self._groups(z) for each in for_rows(
            model.terms(z[rows.to(z.device)], sigma), rows))  # type: ignore[attr-defined]

    def over(self, images: ImageSet) -> ByClass:
        """The same for other images, with everything fitted kept."""
        models = {label: model.over(only_classes(images, [label]))  # type: ignore[attr-defined]
                  for label, model in self.models.items()}
        return replace(self, images=images, models=models)


def by_class(images: ImageSet, labels: Sequence[Label], build: Callable[[ImageSet], Denoiser]) -> ByClass:
    """A denoiser for each class in `labels`, built from the images of that class only."""
    if len(labels) == 0:
        raise ScorelensError("labels must give the class of each noisy image; none was given")
    models = {label: build(only_classes(images, [label])) for label in dict.fromkeys(labels)}
    return ByClass(images, list(labels), models)
