"""The W experiment: marks of known strength, and the correlation they add."""

import numpy as np
import pytest
import torch
from PIL import Image

from scorelens import fit_gaussian, load_images
from scorelens.analysis.marks import predicted_sensitivity
from scorelens.data.edits import add_mark, mark_mask
from scorelens.data.images import ImageSet
from scorelens.statistics.masks import wiener_matrix
from scorelens.types import ScorelensError


def flat_images(count=6, shape=(3, 12, 12), value=100):
    return ImageSet(np.full((count, *shape), value, np.uint8), "flat")


def test_the_mark_is_added_in_one_colour_per_image_and_never_clipped():
    images = ImageSet(np.full((400, 3, 12, 12), 255, np.uint8), "white")
    marked = add_mark(images, "T", gamma=0.5, seed=3)
    mask = mark_mask("T", (12, 12))
    x = marked[:]
    assert torch.equal(x[:, :, ~torch.from_numpy(mask)], torch.ones(400, 3, int((~mask).sum())))
    colours = x[:, :, torch.from_numpy(mask)] - 1  # [400, 3, mask pixels]
    assert (colours == colours[:, :, :1]).all() and x.max() > 1.3
    c = colours[:, :, 0] / 0.5
    assert c.abs().max() <= 1 + 1e-6 and abs(c.var().item() - 1 / 3) < 0.03
    assert not torch.equal(c[:, 0], c[:, 1])


def test_colours_depend_on_the_seed_alone():
    images = flat_images()
    assert np.array_equal(add_mark(images, "W", 0.1).pixels, add_mark(images, "W", 0.1).pixels)
    assert not np.array_equal(add_mark(images, "W", 0.1).pixels, add_mark(images, "W", 0.1, seed=1).pixels)


def test_the_record_and_fingerprint_tell_edited_from_plain():
    plain = load_images("digits", limit=20)
    marked = add_mark(load_images("digits", limit=20), "I", 0.3)
    assert marked.record["mark"] == "I" and marked.record["gamma"] == 0.3 and marked.record["mark_pixels"] > 3
    assert marked.fingerprint != plain.fingerprint
    assert marked.fingerprint != add_mark(load_images("digits", limit=20), "I", 0.31).fingerprint


def test_exact_moments_of_float_images():
    """fit_gaussian of float pixels equals numpy's covariance in float64."""
    marked = add_mark(load_images("digits", limit=60), "I", 0.4)
    stats = fit_gaussian(marked, cache=False)
    x = marked.pixels.reshape(60, -1).astype(np.float64)
    torch.testing.assert_close(stats.mean, torch.from_numpy(x.mean(0)), rtol=1e-12, atol=1e-12)
    rebuilt = stats.eigenvectors @ torch.diag(stats.eigenvalues) @ stats.eigenvectors.T
    torch.testing.assert_close(rebuilt, torch.from_numpy(np.cov(x.T)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_the_wiener_field_along_the_mark_is_the_predicted_curve(gamma):
    """Data with no variance of their own along the mark, exact moments: u^T W u = g / (g + sigma^2), to 1e-3.

    The moments are those of the distribution: colours at +-1/sqrt(3), each with each, have variance 1/3 exactly.
    """
    mask = mark_mask("W", (16, 16))
    colours = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T / np.sqrt(3)  # [8, 3]
    copies = 500  # N - 1 against N
    pixels = gamma * np.tile(colours, (copies, 1))[:, :, None, None] * mask
    stats = fit_gaussian(ImageSet(pixels.astype(np.float32), "marks"), cache=False)
    u = np.zeros((3, 16, 16))
    u[0, mask] = 1 / np.sqrt(mask.sum())
    for sigma in (0.05, 0.5, 2.0, 20.0):
        gain = torch.from_numpy(u.reshape(-1)) @ wiener_matrix(stats, sigma).double() @ torch.from_numpy(u.reshape(-1))
        assert gain.item() == pytest.approx(predicted_sensitivity(mask, gamma, sigma), abs=1e-3)


def test_with_variance_of_their_own_the_corrected_curve():
    """The same with a component of variance v along the mark before the edit: (v + g) / (v + g + sigma^2)."""
    rng = np.random.default_rng(0)
    mask, v = mark_mask("T", (8, 8)), 0.3
    u = (mask / np.sqrt(mask.sum())).reshape(-1)
    own = rng.standard_normal(4000)
    own = (own - own.mean()) / own.std() * np.sqrt(v)
    colour = rng.uniform(-1, 1, 4000)
    colour -= own * (colour @ own) / (own @ own)  # exactly uncorrelated
    colour = (colour - colour.mean()) / colour.std() / np.sqrt(3)
    x = (own + 0.5 * np.sqrt(mask.sum()) * colour)[:, None] * u
    stats = fit_gaussian(ImageSet(x.reshape(-1, 1, 8, 8).astype(np.float32), "own"), cache=False)
    for sigma in (0.2, 1.0, 5.0):
        gain = torch.from_numpy(u) @ wiener_matrix(stats, sigma).double() @ torch.from_numpy(u)
        assert gain.item() == pytest.approx(predicted_sensitivity(mask, 0.5, sigma, v), abs=1e-3)


def test_a_png_is_a_mark(tmp_path):
    picture = np.zeros((12, 12), np.uint8)
    picture[2:5, 3:9] = 255
    Image.fromarray(picture).save(tmp_path / "mark.png")
    assert np.array_equal(mark_mask(tmp_path / "mark.png", (12, 12)), picture > 0)


def test_mistakes_are_named(tmp_path):
    Image.fromarray(np.zeros((6, 10), np.uint8)).save(tmp_path / "small.png")
    (tmp_path / "text.png").write_text("no picture")
    for mark, says in [(tmp_path / "small.png", "6x10, the images are 12x12"), (tmp_path / "text.png", "neither"),
                       ("nowhere.png", "neither"), (" ", "marks no pixel")]:
        with pytest.raises(ScorelensError, match=says):
            add_mark(flat_images(), mark, 0.5)
    with pytest.raises(ScorelensError, match="gamma"):
        add_mark(flat_images(), "W", 0.0)
