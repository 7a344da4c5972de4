"""Posterior means within a tolerance: the draws, their errors, and when to leave them alone."""

import warnings

import pytest
import torch

import scorelens
from scorelens.posterior import Masks, OwnPixel, Posterior, posterior_mean, within
from scorelens.posterior.within import (
    Screened,
    ToleranceWarning,
    drawing_chances,
    mean_within,
    systematic,
    tile_masks,
    weighted_mean,
)

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def leaves():
    return scorelens.load_images("leaves", limit=4000, resolution=16)


@pytest.fixture(scope="module")
def model(leaves):
    return scorelens.build_denoiser("locality", leaves, threshold=0.05)


def noisy(images, sigma, seeds):
    return images[list(seeds)] + sigma * scorelens.seeded_noise(images.shape, seeds)


def rms(difference):
    return difference.flatten(1).double().square().mean(dim=1).sqrt()


@pytest.mark.parametrize("sigma", [60.0, 25.0, 12.0])
def test_at_high_noise_few_images_keep_the_tolerance(leaves, model, sigma):
    z = noisy(leaves, sigma, range(10, 18))
    found = model.within(z, sigma, 0.03)
    true = rms(found.mean - model(z, sigma))
    assert (found.drawn <= len(leaves) / 4).all() and (true <= 0.03).all()
    assert (found.expected > 0).all() and (found.checked <= 0.03).all()
    assert 0.5 < (true.mean() / found.expected.mean()) < 2  # what was expected is about what came


def test_a_smaller_tolerance_takes_more_draws(leaves, model):
    z = noisy(leaves, 25.0, range(2))
    few, many = (model.within(z, 25.0, tolerance) for tolerance in (0.1, 0.03))
    assert (few.drawn < many.drawn).all() and (rms(many.mean - model(z, 25.0)) < rms(few.mean - model(z, 25.0))).all()


@pytest.mark.parametrize("sigma", [0.7, 0.05])
def test_at_low_noise_the_exact_plan_does_the_work(leaves, model, sigma):
    z = noisy(leaves, sigma, range(3))
    found = model.within(z, sigma, 0.03)
    assert torch.equal(found.mean, model(z, sigma)) and (found.drawn == len(leaves)).all()
    assert (found.expected == 0).all() and (found.checked == 0).all()


def test_an_image_does_not_depend_on_its_company(leaves, model):
    z = noisy(leaves, 25.0, range(5))
    assert torch.equal(model.within(z, 25.0, 0.03).mean[3:4], model.within(z[3:4], 25.0, 0.03).mean)
    whole, pieces = (mean_within(model.posterior(25.0), z, 25.0, 0.03, memory=m).mean for m in (2**27, 2**21))
    assert torch.allclose(whole, pieces, atol=0.03)


def test_draws_that_miss_their_tolerance_are_noticed(leaves, model, monkeypatch):
    """The plan is deceived: the pixels that were computed exactly are not."""
    monkeypatch.setattr(Screened, "chances", lambda self, tolerance: (torch.full((len(leaves),), 0.01), 0.0))
    z = noisy(leaves, 12.0, range(2))
    with pytest.warns(ToleranceWarning, match="miss the tolerance 0.001 at sigma = 12"):
        found = model.within(z, 12.0, 1e-3)
    assert torch.equal(found.mean, model(z, 12.0)) and (found.drawn == len(leaves)).all()
    assert (found.expected == 0).all() and (found.checked == 0).all()


def test_the_expected_error_is_that_of_many_draws(leaves, model, monkeypatch):
    """With another set of draws each time, the errors have the variance that was foretold: at the spots, where it is
    known from all images."""
    sigma, z = 25.0, noisy(leaves, 25.0, [3])
    seen = {}
    real = Screened.chances
    monkeypatch.setattr(Screened, "chances", lambda self, tolerance: seen.setdefault(len(self.values[0]), (
        self, *real(self, tolerance)))[1:])
    model.within(z, sigma, 0.05)
    screened, chances, expected = seen[len(leaves)]
    generator, errors = torch.Generator().manual_seed(0), []
    for _ in range(60):
        rows = (torch.rand(len(leaves), generator=generator) < chances).nonzero()[:, 0]
        found = weighted_mean(model.masks(sigma), leaves, rows, chances[rows], z[0].flatten(), 1 / (2 * sigma**2))
        errors.append(found[screened.spots] - screened.exact)
    errors = torch.stack(errors)
    assert errors.square().mean().sqrt().item() == pytest.approx(expected, rel=0.25)
    assert errors.mean(dim=0).abs().mean() < 0.35 * expected  # and no bias to speak of: 60 draws have a noise of 0.13


@pytest.mark.parametrize("plan", ["dense", "sparse", "differences"])
def test_all_images_drawn_for_certain_are_the_exact_mean(leaves, plan, monkeypatch):
    masks = Masks(torch.rand(768, 768, generator=torch.Generator().manual_seed(1)) < 0.3, SHAPE)
    real = within.choose_plan
    monkeypatch.setattr(within, "choose_plan", lambda queries, z, scale: real(queries, z, scale, plan))
    z = noisy(leaves, 2.0, [0])
    found = weighted_mean(masks, leaves, torch.arange(len(leaves)), torch.ones(len(leaves)), z[0].flatten(), 1 / 8)
    exact = posterior_mean(Posterior(masks, OwnPixel(), leaves), z, 2.0)
    assert torch.allclose(found, exact.flatten(), atol=1e-4)  # other sums of float32


def test_images_count_as_often_as_their_chance_says(leaves):
    """One of two images, drawn with chance 1/3, counts as three."""
    masks, z = Masks(torch.ones(768, 768, dtype=torch.bool), SHAPE), leaves[7].flatten()
    three = leaves.subset([0, 1, 1, 1])
    found = weighted_mean(masks, leaves.subset([0, 1]), torch.arange(2), torch.tensor([1.0, 1 / 3]), z, 1e-3)
    exact = posterior_mean(Posterior(masks, OwnPixel(), three), z.view(1, *SHAPE), (1 / 2e-3) ** 0.5)
    assert torch.allclose(found, exact.flatten(), atol=1e-5)


def test_chances_are_proportional_and_at_most_one():
    proposal = torch.tensor([0.6, 0.2, 0.1, 0.05, 0.05])
    assert torch.allclose(drawing_chances(proposal, 1.0), proposal)
    assert torch.allclose(drawing_chances(proposal, 2.0), torch.tensor([1.0, 0.5, 0.25, 0.125, 0.125]))
    assert torch.allclose(drawing_chances(proposal, 3.0), torch.tensor([1.0, 1.0, 0.5, 0.25, 0.25]))
    many = torch.rand(1000, generator=torch.Generator().manual_seed(0)) ** 8
    for count in (10.0, 300.0):
        chances = drawing_chances(many / many.sum(), count)
        assert chances.sum().item() == pytest.approx(count, rel=1e-4) and chances.max() <= 1
        open_ = chances < 1
        assert torch.allclose(chances[open_] / chances[open_].sum(), many[open_] / many[open_].sum(), rtol=1e-4)


def test_draws_are_spread_evenly():
    assert systematic(torch.full((10,), 0.5)).tolist() == [0, 2, 4, 6, 8]
    assert systematic(torch.tensor([1.0, 0.1, 1.0, 0.4, 1.0])).tolist() == [0, 2, 3, 4]
    chances = torch.rand(500, generator=torch.Generator().manual_seed(0))
    assert len(systematic(chances)) == round(chances.sum().item())


def test_tiles_have_the_masks_of_their_majority():
    keep = torch.zeros(64, 64, dtype=torch.bool).view(8, 8, 64)
    keep[:4, :, :40] = True  # the upper half looks at 40 pixels, the lower at 24 others
    keep[4:, :, 40:] = True
    keep[0, 0] = ~keep[0, 0]  # but for one
    tiles = tile_masks(Masks(keep.view(64, 64), (1, 8, 8)), (1, 8, 8))
    side = 8 // tiles.grid[1]
    assert tiles.grid == (1, 8 // side, 8 // side) and len(tiles) == (8 // side) ** 2
    assert (tiles.keep[0] == keep[0, 7]).all() == (side > 1) and (tiles.keep[-1] == keep[7, 7]).all()


def test_gradients_are_exact(leaves, model):
    rough = scorelens.build_denoiser("locality", leaves, threshold=0.05, tolerance=0.1)
    z = noisy(leaves, 25.0, [0])
    assert not torch.equal(rough(z, 25.0), model(z, 25.0))
    assert torch.equal(rough(z.requires_grad_(), 25.0), model(z, 25.0))


def test_other_denoisers_masks_are_averaged_exactly(leaves):
    """Weights instead of masks: there are no tiles to draw by, and nothing goes wrong."""
    model = scorelens.build_denoiser("soft-locality", leaves)
    z = noisy(leaves, 25.0, [0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mean_within(model.posterior(25.0), z, 25.0, 0.1)
    assert torch.equal(found.mean, model(z, 25.0)) and found.drawn.item() == len(leaves)


def test_mistakes_are_told(leaves):
    with pytest.raises(scorelens.ScorelensError, match="tolerance must be > 0"):
        scorelens.build_denoiser("locality", leaves, tolerance=0.0)
    with pytest.raises(scorelens.ScorelensError, match="of the exact softmax"):
        scorelens.build_denoiser("locality", leaves, tolerance=0.1, softmax="batch-mean")
