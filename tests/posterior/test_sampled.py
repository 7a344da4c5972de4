"""Posterior means within a tolerance: the draws, their errors, and when to leave them alone."""

import warnings
from dataclasses import replace

import pytest
import torch

import scorelens
from scorelens.posterior import Masks, OwnOutput, Posterior, posterior_mean, sampled
from scorelens.posterior.sampled import (
    Checks,
    Screened,
    Sketch,
    ToleranceWarning,
    checks_of,
    inclusion_probabilities,
    sampled_mean,
    sketch_of,
    systematic_sample,
    tiles_of,
    weighted_mean,
)
from scorelens.timings import profiled

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


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [60.0, 25.0, 12.0])
def test_at_high_noise_few_images_keep_the_tolerance(leaves, model, sigma):
    z = noisy(leaves, sigma, range(10, 18))
    found = model.approximate(z, sigma, 0.03)
    true = rms(found.mean - model(z, sigma))
    assert (found.drawn <= len(leaves) / 4).all() and (true <= 0.03).all()
    assert (found.expected > 0).all() and (found.expected <= sampled.SAFETY * 0.03).all()
    assert (found.checked <= 0.03).all()
    assert 0.5 < (true.mean() / found.expected.mean()) < 2  # what was expected is about what came


def test_a_smaller_tolerance_takes_more_draws(leaves, model):
    z = noisy(leaves, 25.0, range(2))
    few, many = (model.approximate(z, 25.0, tolerance) for tolerance in (0.1, 0.014))
    assert (few.drawn < many.drawn).all() and (rms(many.mean - model(z, 25.0)) < rms(few.mean - model(z, 25.0))).all()


@pytest.mark.parametrize("plan", ["auto", "dense"])
@pytest.mark.parametrize("sigma", [0.7, 0.05])
def test_at_low_noise_the_exact_plan_does_the_work(leaves, model, sigma, plan):
    z, model = noisy(leaves, sigma, range(3)), replace(model, plan=plan)
    found = model.approximate(z, sigma, 0.03)
    assert torch.equal(found.mean, model(z, sigma)) and (found.drawn == len(leaves)).all()
    assert (found.expected == 0).all() and (found.checked == 0).all()


def test_where_draws_will_not_do_a_pilot_says_so(leaves, model):
    """All images are read once, by the exact plan: none is screened."""
    with profiled() as profile:
        model.approximate(noisy(leaves, 6.0, range(3)), 6.0, 0.003)
    assert "pilot" in profile.seconds and "screening" not in profile.seconds
    assert len(profile.plans) == 1


def test_a_pilot_of_few_images_knows_that_there_are_more(leaves, model, monkeypatch):
    monkeypatch.setattr(sampled, "LEAST_PILOT", 1500)
    found = model.approximate(noisy(leaves, 25.0, range(4)), 25.0, 0.02)
    assert (found.drawn < len(leaves)).all()


def test_tiles_have_the_posterior_of_their_mean_mask(leaves, model, monkeypatch):
    """Of sketches that leave nothing out it is the plain softmax; and no image has no chance to be drawn."""
    sigma, seen = 6.0, []
    real = Screened.probabilities
    monkeypatch.setattr(Screened, "probabilities", lambda self, tolerance:
                        seen.append((self, list(real(self, tolerance)))) or iter(seen[-1][1]))
    monkeypatch.setattr(sampled, "RANK", 768)
    few = leaves.subset(range(1500))
    model = scorelens.build_denoiser("locality", few, threshold=0.05)
    z = noisy(few, sigma, [3])
    model.approximate(z, sigma, 1.0)
    screened, found = seen[-1]
    tiles = tiles_of(model.masks(sigma), SHAPE)
    square = (few[:].flatten(1) - z.flatten(1)).double().square()
    expected = torch.softmax(tiles.weights.double() @ square.T / (-2 * sigma**2), dim=1)
    assert torch.allclose(screened.tiles.double(), expected, rtol=0.02, atol=1e-7)
    assert found
    for chances, _ in found:
        assert chances.min() >= 0.9 * sampled.UNIFORM * chances.sum() / len(few)


def test_an_image_does_not_depend_on_its_company(leaves, model):
    z = noisy(leaves, 25.0, range(5))
    assert torch.equal(model.approximate(z, 25.0, 0.03).mean[3:4], model.approximate(z[3:4], 25.0, 0.03).mean)
    whole, pieces = (sampled_mean(model.posterior(25.0), z, 25.0, 0.03, memory=m).mean for m in (2**27, 2**21))
    assert torch.allclose(whole, pieces, atol=0.03)


def test_draws_that_miss_their_tolerance_are_noticed(leaves, model, monkeypatch):
    """The plan is deceived: the pixels that were computed exactly are not."""
    few = torch.full((len(leaves),), 0.01)
    monkeypatch.setattr(Screened, "probabilities", lambda self, tolerance: iter([(few, 0.0)]))
    z = noisy(leaves, 12.0, range(2))
    with pytest.warns(ToleranceWarning, match="miss the tolerance 0.001 at sigma = 12"):
        found = model.approximate(z, 12.0, 1e-3)
    assert torch.equal(found.mean, model(z, 12.0)) and (found.drawn == len(leaves)).all()
    assert (found.expected == 0).all() and (found.checked == 0).all()


def test_draws_that_miss_are_followed_by_more(leaves, model, monkeypatch):
    z, tried = noisy(leaves, 25.0, [0]), []
    monkeypatch.setattr(Screened, "error", lambda self, found: tried.append(found) or (1.0 if len(tried) < 3 else 0.0))
    found = model.approximate(z, 25.0, 0.03)
    monkeypatch.undo()
    assert len(tried) == 3 and found.drawn > 1.9 * model.approximate(z, 25.0, 0.03).drawn


def test_the_expected_error_is_that_of_many_draws(leaves, model, monkeypatch):
    """With another set of draws each time, the errors have the variance that was foretold: at the spots, where it is
    known from all images."""
    sigma, z = 25.0, noisy(leaves, 25.0, [3])
    seen = {}
    real = Screened.probabilities

    def noted(self, tolerance):
        for found in real(self, tolerance):
            seen[len(self.weights[0])] = (self, *found)
            yield found

    monkeypatch.setattr(Screened, "probabilities", noted)
    model.approximate(z, sigma, 0.05)
    screened, chances, expected = seen[len(leaves)]
    generator, errors = torch.Generator().manual_seed(0), []
    for _ in range(60):
        rows = (torch.rand(len(leaves), generator=generator) < chances).nonzero()[:, 0]
        found = weighted_mean(model.masks(sigma), leaves, rows, chances[rows], z[0].flatten(), 1 / (2 * sigma**2))
        found += screened.correction(rows, chances[rows])
        errors.append(found[screened.checks.pixels] - screened.exact)
    errors = torch.stack(errors)
    assert screened.checks.mean(errors.square().mean(dim=0)).sqrt().item() == pytest.approx(expected, rel=0.25)
    assert errors.mean(dim=0).abs().mean() < 0.35 * expected  # and no bias to speak of: 60 draws have a noise of 0.13


@pytest.mark.parametrize("plan", ["dense", "sparse", "differences"])
def test_all_images_drawn_for_certain_are_the_exact_mean(leaves, plan):
    masks = Masks(torch.rand(768, 768, generator=torch.Generator().manual_seed(1)) < 0.3, SHAPE)
    z = noisy(leaves, 2.0, [0])
    found = weighted_mean(masks, leaves, torch.arange(len(leaves)), torch.ones(len(leaves)), z[0].flatten(), 1 / 8,
                          plan)
    exact = posterior_mean(Posterior(masks, OwnOutput(), leaves), z, 2.0)
    assert torch.allclose(found, exact.flatten(), atol=1e-4)  # other sums of float32


def test_images_count_as_often_as_their_chance_says(leaves):
    """One of two images, drawn with chance 1/3, counts as three."""
    masks, z = Masks(torch.ones(768, 768, dtype=torch.bool), SHAPE), leaves[7].flatten()
    three = leaves.subset([0, 1, 1, 1])
    found = weighted_mean(masks, leaves.subset([0, 1]), torch.arange(2), torch.tensor([1.0, 1 / 3]), z, 1e-3)
    exact = posterior_mean(Posterior(masks, OwnOutput(), three), z.view(1, *SHAPE), (1 / 2e-3) ** 0.5)
    assert torch.allclose(found, exact.flatten(), atol=1e-5)


def test_chances_are_proportional_and_at_most_one():
    proposal = torch.tensor([0.6, 0.2, 0.1, 0.05, 0.05])
    assert torch.allclose(inclusion_probabilities(proposal, 1.0), proposal)
    assert torch.allclose(inclusion_probabilities(proposal, 2.0), torch.tensor([1.0, 0.5, 0.25, 0.125, 0.125]))
    assert torch.allclose(inclusion_probabilities(proposal, 3.0), torch.tensor([1.0, 1.0, 0.5, 0.25, 0.25]))
    many = torch.rand(1000, generator=torch.Generator().manual_seed(0)) ** 8
    for count in (10.0, 300.0):
        chances = inclusion_probabilities(many / many.sum(), count)
        assert chances.sum().item() == pytest.approx(count, rel=1e-4) and chances.max() <= 1
        open_ = chances < 1
        assert torch.allclose(chances[open_] / chances[open_].sum(), many[open_] / many[open_].sum(), rtol=1e-4)


def test_draws_are_spread_evenly():
    assert systematic_sample(torch.full((10,), 0.5)).tolist() == [0, 2, 4, 6, 8]
    assert systematic_sample(torch.tensor([1.0, 0.1, 1.0, 0.4, 1.0])).tolist() == [0, 2, 3, 4]
    chances = torch.rand(500, generator=torch.Generator().manual_seed(0))
    assert len(systematic_sample(chances)) == round(chances.sum().item())


def test_tiles_have_the_mean_mask_of_their_pixels():
    keep = torch.zeros(3, 8, 8, 192, dtype=torch.bool)
    keep[:, :4, :, :120] = True  # the upper half looks at 120 pixels, the lower at 72 others
    keep[:, 4:, :, 120:] = True
    keep[0, 0, 0] = ~keep[0, 0, 0]  # but for one
    tiles = tiles_of(Masks(keep.view(192, 192), (3, 8, 8)), (3, 8, 8))
    assert tiles.owner.view(3, 8, 8)[:, [0, 3, 4], [0, 3, 3]].tolist() == [[0, 5, 9]] * 3 and tiles.owner.max() == 15
    assert torch.allclose(tiles.weights[0, [0, 120]], torch.tensor([11 / 12, 1 / 12]))
    assert torch.equal(tiles.weights[1], keep[0, 0, 7].float()) and torch.equal(tiles.weights[8], keep[0, 7, 0].float())


def test_tiles_cover_images_that_they_do_not_divide():
    tiles = tiles_of(Masks(torch.ones(70, 70, dtype=torch.bool), (1, 7, 10)), (1, 7, 10))
    assert tiles.owner.view(7, 10)[[0, 3, 4, 6], [0, 4, 3, 9]].tolist() == [0, 1, 3, 5] and len(tiles.weights) == 6


def test_a_sketch_holds_what_its_directions_see(leaves):
    sketch = sketch_of(leaves, 2)
    assert sketch.basis.shape == (768, sampled.RANK) and sketch.coordinates.shape == (sampled.RANK, len(leaves))
    assert torch.allclose(sketch.basis.T @ sketch.basis, torch.eye(sampled.RANK), atol=1e-4)
    centred = leaves[:].flatten(1) - (torch.from_numpy(leaves.centre()).flatten() - 127.5) / 127.5
    assert torch.allclose(sketch.coordinates.T, centred @ sketch.basis, atol=1e-4)
    left = (centred - sketch.coordinates.T @ sketch.basis.T).square().sum()
    assert left < 1.1 * torch.linalg.svdvals(centred)[sampled.RANK:].square().sum()  # no directions hold much more


def test_spots_tell_the_mean_over_all_pixels():
    """Three of four pixels hardly change: spots are seldom there, and stand for many."""
    x = torch.randn(500, 1, 20, 20, generator=torch.Generator().manual_seed(0)) / 4
    x[:, :, 5:] *= 0.2
    spots = checks_of(scorelens.data.ImageSet(x.numpy(), "some"), 1)
    assert len(spots.pixels) == sampled.CHECKED and (spots.pixels < 100).float().mean() > 0.7
    assert torch.equal(spots.values, x.flatten(1).T[spots.pixels])
    assert spots.mean(spots.values.var(dim=1)).item() == pytest.approx(x.var(dim=0).mean().item(), rel=0.1)


def test_the_correction_is_what_the_draws_miss_of_a_known_mean():
    """Two tiles of two pixels each, three images in the basis of their own pixels, two of them drawn."""
    x = torch.tensor([[1.0, 0, 0, 2], [0, 3, 1, 0], [5, 0, 0, 4]])
    posterior, owner = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), torch.tensor([0, 0, 1, 1])
    found = Screened(posterior, owner, Sketch(torch.eye(4), x.T),
                     Checks(torch.tensor([0]), torch.ones(1), x.T[:1]), posterior[:1])
    rows, chances = torch.tensor([0, 2]), torch.tensor([1.0, 0.5])
    means = posterior @ x
    drawn = torch.tensor([[0.5, 0.5], [0.1, 1.4]])
    drawn = (drawn / drawn.sum(dim=1, keepdim=True)) @ x[rows]
    expected = torch.cat([(means - drawn)[0, :2], (means - drawn)[1, 2:]])
    assert torch.allclose(found.correction(rows, chances), expected, atol=1e-6)


def test_the_control_variate_spares_draws(leaves, model, monkeypatch):
    z = noisy(leaves, 25.0, range(4))
    few = model.approximate(z, 25.0, 0.03)
    monkeypatch.setattr(Screened, "correction", lambda self, rows, chances: 0.0)
    exact = model(z, 25.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        monkeypatch.setattr(sampled, "SAFETY", 1e9)  # the fewest draws there are
        plain = model.approximate(z, 25.0, 1.0)
    monkeypatch.undo()
    monkeypatch.setattr(sampled, "SAFETY", 1e9)
    corrected = model.approximate(z, 25.0, 1.0)
    assert torch.equal(plain.drawn, corrected.drawn) and (plain.drawn <= few.drawn).all()
    assert rms(corrected.mean - exact).mean() < 0.6 * rms(plain.mean - exact).mean()


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
        found = sampled_mean(model.posterior(25.0), z, 25.0, 0.1)
    assert torch.equal(found.mean, model(z, 25.0)) and found.drawn.item() == len(leaves)


def test_mistakes_are_told(leaves):
    with pytest.raises(scorelens.ScorelensError, match="tolerance must be > 0"):
        scorelens.build_denoiser("locality", leaves, tolerance=0.0)
    with pytest.raises(scorelens.ScorelensError, match="exact softmax only"):
        scorelens.build_denoiser("locality", leaves, tolerance=0.1, softmax="batch-mean")
