import numpy as np
import pytest

import scorelens
from scorelens.data.images import ImageSet
from scorelens.statistics.nearest import nearest_images
from tests.ground_truth.brute_force import floats
from tests.ground_truth.cases import KINDS, image_set


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("chunk", [3, 16, 4096])
def test_nearest_images_equal_a_sort_in_float64(kind, k, chunk):
    images = image_set(kind, 50, (3, 4, 3))
    z = images[:6] + 0.05 * scorelens.seeded_noise(images.shape, range(6))
    distances = ((z.flatten(1).double().numpy()[:, None] - floats(images.pixels)) ** 2).sum(2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    found = nearest_images(z, images, k, chunk=chunk)
    np.testing.assert_array_equal(found.indices.numpy(), order)
    np.testing.assert_allclose(found.squared_distances.numpy(), np.take_along_axis(distances, order, 1), rtol=1e-5)


def test_ties_go_to_the_first_image():
    pixels = np.repeat(np.random.default_rng(0).integers(0, 256, (4, 1, 3, 3)).astype(np.uint8), 3, axis=0)
    images = ImageSet(pixels, "triples")
    for chunk in (2, 5, 100):
        assert nearest_images(images[[4, 11]], images, 3, chunk=chunk).indices.tolist() == [[3, 4, 5], [9, 10, 11]]


def test_an_image_of_the_set_is_at_distance_zero():
    """By differences: the expanded product alone would leave about 1e-3 here."""
    images = ImageSet(np.random.default_rng(0).integers(0, 256, (300, 3, 32, 32)).astype(np.uint8), "large")
    found = nearest_images(images[:5], images)
    assert found.indices[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.squared_distances.max().item() == 0


@pytest.mark.parametrize("k", [0, 51])
def test_impossible_counts_are_refused(k):
    images = image_set("random", 50)
    with pytest.raises(scorelens.ScorelensError, match="nearest images"):
        nearest_images(images[:1], images, k)
