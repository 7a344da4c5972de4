import numpy as np
import pytest

from scorelens.data import ImageSet
from scorelens.data.edits import only_classes, with_flips
from scorelens.types import ScorelensError

LABELS = np.array([2, 0, 1, 2, 1])


def labelled(class_names: tuple[str, ...] = (), labels: np.ndarray | None = LABELS) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 2, 4), np.uint8)
    return ImageSet(pixels, "pets", labels=labels, class_names=class_names)


def test_flips_follow_the_originals() -> None:
    images, flipped = labelled(), with_flips(labelled())
    np.testing.assert_array_equal(flipped.pixels[:5], images.pixels)
    for original, mirror in zip(images.pixels, flipped.pixels[5:], strict=True):
        np.testing.assert_array_equal(mirror, np.flip(original, axis=2))
    np.testing.assert_array_equal(flipped.labels, [*LABELS, *LABELS])
    assert flipped.record["flips"] is True


def test_flips_without_labels() -> None:
    assert with_flips(labelled(labels=None)).labels is None


@pytest.mark.parametrize("classes", [[2, 0], ["dog", "bird"], ["dog", 0], ("bird", "dog")])
def test_classes_by_label_or_name(classes: list) -> None:
    """In the original order, whatever the order of the classes."""
    chosen = only_classes(labelled(("bird", "cat", "dog")), classes)
    np.testing.assert_array_equal(chosen.labels, [2, 0, 2])
    np.testing.assert_array_equal(chosen.pixels, labelled().pixels[[0, 1, 3]])
    assert chosen.class_names == ("bird", "cat", "dog") and chosen.record["classes"] == list(classes)


def test_classes_without_names() -> None:
    np.testing.assert_array_equal(only_classes(labelled(), [1, "2"]).labels, [2, 1, 2, 1])


def test_numeric_names_are_names() -> None:
    """Of the folders 1, 10, 2 the number 10 is the second, and 0 is none of them."""
    images = labelled(("1", "10", "2"))
    np.testing.assert_array_equal(only_classes(images, [10]).labels, [1, 1])
    with pytest.raises(ScorelensError, match="no class 0; known: 1, 10, 2"):
        only_classes(images, [0])


@pytest.mark.parametrize(("class_names", "wanted", "message"), [
    (("bird", "cat", "dog"), "cow", "pets has no class 'cow'; known: bird, cat, dog"),
    (("bird", "cat", "dog"), 3, "pets has no class 3"),
    ((), 7, "pets has no class 7; known: 0, 1, 2"),
])
def test_an_unknown_class_is_answered_with_the_known(class_names: tuple, wanted: int | str, message: str) -> None:
    with pytest.raises(ScorelensError, match=message):
        only_classes(labelled(class_names), [wanted])


def test_a_class_without_images_is_an_error() -> None:
    with pytest.raises(ScorelensError, match=r"pets: no images of the classes \['fish'\] in the split 'all'"):
        only_classes(labelled(("bird", "cat", "dog", "fish")), ["fish"])


def test_no_labels_no_classes() -> None:
    with pytest.raises(ScorelensError, match="pets has no labels"):
        only_classes(labelled(labels=None), [1])
