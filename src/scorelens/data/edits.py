"""Image sets made from image sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError


def with_flips(images: ImageSet) -> ImageSet:
    """All the images, then the left-right mirror of each."""
    return replace(images, pixels=np.concatenate([images.pixels, images.pixels[..., ::-1]]),
                   labels=None if images.labels is None else np.tile(images.labels, 2),
                   record={**images.record, "flips": True})


def only_classes(images: ImageSet, classes: Sequence[int | str]) -> ImageSet:
    """The images of these classes, each given by its label or its name; labels and names stay what they were."""
    if images.labels is None:
        raise ScorelensError(f"{images.name} has no labels, so that classes cannot be chosen")
    known = _label_of(images.labels, images.class_names)
    wanted = [_label(images.name, one, known) for one in classes]
    chosen = np.flatnonzero(np.isin(images.labels, wanted))
    if not len(chosen):
        raise ScorelensError(f"{images.name}: no image of the classes {list(classes)} in the part {images.split!r}")
    return images.subset(chosen, classes=list(classes))


def _label_of(labels: np.ndarray, class_names: tuple[str, ...]) -> dict[str, int]:
    if class_names:
        return {name: label for label, name in enumerate(class_names)}
    return {str(label): int(label) for label in np.unique(labels)}


def _label(source: str, wanted: int | str, known: Mapping[str, int]) -> int:
    """The label of a class; where classes are named by numbers, a number is a name, not a position among the names."""
    if str(wanted) in known:
        return known[str(wanted)]
    if wanted in known.values() and not any(name.isdigit() for name in known):
        return int(wanted)
    raise ScorelensError(f"{source} has no class {wanted!r}; known: {', '.join(known)}")
