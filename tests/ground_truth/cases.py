"""Small data of every awkward kind, as uint8 [N, C, H, W]."""

import itertools

import numpy as np

from scorelens.data.images import ImageSet


def random_pixels(n=40, shape=(1, 4, 5), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape)).astype(np.uint8)


def near_duplicates(n=40, shape=(1, 4, 5), seed=0):
    """Pairs of images one grey level apart."""
    pixels = random_pixels(n, shape, seed)
    rng = np.random.default_rng(seed + 1)
    steps = rng.integers(0, 2, pixels[1::2].shape)
    pixels[1::2] = np.minimum(pixels[::2][:len(steps)], 254) + steps
    return pixels


def smooth(n=40, shape=(1, 4, 5), seed=0):
    """Strongly correlated pixels: broad posteriors and masks that keep some but not all pixels."""
    rng = np.random.default_rng(seed)
    c, h, w = shape
    rows, columns = rng.standard_normal((n, c, h, 1)).cumsum(2), rng.standard_normal((n, c, 1, w)).cumsum(3)
    noise = 0.3 * rng.standard_normal((n, *shape))
    return np.clip(128 + 25 * (rows + columns + noise), 0, 255).astype(np.uint8)


KINDS = {"random": random_pixels, "near-duplicates": near_duplicates, "smooth": smooth}
# N < D and N > D, C = 1 and 3, H != W
SHAPES = [(15, (1, 4, 5)), (60, (1, 5, 4)), (20, (3, 4, 3)), (90, (3, 3, 4))]


def pairwise(*options):
    """Tuples of values, one of each list, in which every pair of values of two lists occurs: fewer than all tuples."""
    tuples = list(itertools.product(*options))
    missing = {pair for values in tuples for pair in _pairs(values)}
    chosen = []
    while missing:
        chosen.append(max(tuples, key=lambda values: len(missing & _pairs(values))))
        missing -= _pairs(chosen[-1])
    return chosen


def _pairs(values):
    """The pairs of a tuple's values, with their positions."""
    return {(i, j, repr(values[i]), repr(values[j])) for i, j in itertools.combinations(range(len(values)), 2)}


def image_set(kind="smooth", n=40, shape=(1, 4, 5), seed=0, **fields):
    return ImageSet(KINDS[kind](n, shape, seed), name=kind, **fields)
