"""Every closed-form denoiser, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from scorelens.data.edits import only_classes
from scorelens.data.images import ImageSet
from scorelens.denoisers.bbels import bbels
from scorelens.denoisers.conditional import Label, by_class
from scorelens.denoisers.els import els
from scorelens.denoisers.generalized import generalized
from scorelens.denoisers.golden import golden
from scorelens.denoisers.kernel import kernel
from scorelens.denoisers.kernel_locality import kernel_locality
from scorelens.denoisers.local_wiener import local_wiener
from scorelens.denoisers.locality import locality
from scorelens.denoisers.locality_equivariant import locality_equivariant
from scorelens.denoisers.ls import ls
from scorelens.denoisers.measured import measured
from scorelens.denoisers.nearest import Nearest
from scorelens.denoisers.optimal import Optimal
from scorelens.denoisers.pspc import pspc_flex, pspc_square
from scorelens.denoisers.smoothed import smoothed
from scorelens.denoisers.soft_locality import soft_locality
from scorelens.denoisers.wiener import wiener
from scorelens.types import Denoiser
from scorelens.validation import unknown

DENOISERS: dict[str, Callable[..., Denoiser]] = {
    "optimal": Optimal,
    "wiener": wiener,
    "locality": locality,
    "nearest": Nearest,
    "smoothed": smoothed,
    "kernel": kernel,
    "kernel-locality": kernel_locality,
    "local-wiener": local_wiener,
    "generalized": generalized,
    "soft-locality": soft_locality,
    "locality-equivariant": locality_equivariant,
    "golden": golden,
    "ls": ls,
    "els": els,
    "bbels": bbels,
    "measured": measured,
    "pspc-square": pspc_square,
    "pspc-flex": pspc_flex,
}


def denoiser_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a denoiser: the parameters of its builder, after the images."""
    if name not in DENOISERS:
        raise unknown("denoiser", name, DENOISERS)
    return dict(list(inspect.signature(DENOISERS[name]).parameters.items())[1:])


def build_denoiser(name: str, images: ImageSet, *, classes: Sequence[Label] | None = None,
                   labels: Sequence[Label] | None = None, **options: Any) -> Denoiser:
    """The denoiser `name` of these images; `options` are those of its builder, and unknown ones are refused.

    Args:
        name: any of DENOISERS.
        images: the training images.
        classes: use only the images of these classes, by label or name.
        labels: the class of each noisy image of the batch: it is denoised by the images of that class alone.
        options: those of the method.
    """
    known = denoiser_options(name)
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    source = images if classes is None else only_classes(images, classes)
    if labels is None:
        return DENOISERS[name](source, **options)
    return by_class(source, labels, lambda own: DENOISERS[name](own, **options))


__all__ = ["DENOISERS", "build_denoiser", "denoiser_options"]
