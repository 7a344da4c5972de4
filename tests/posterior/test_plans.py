"""Every plan computes the same distances; the choice between them is a matter of time, and of digits at small sigma."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.posterior import Masks, WholeImage
from scorelens.posterior.costs import PLANS, Rates, measured_rates
from scorelens.posterior.costs import choose_plan as choose
from scorelens.posterior.plans.dense import DenseMasks
from scorelens.posterior.plans.differences import MaskDifferences, chain_is_exact
from scorelens.posterior.plans.full_image import FullImage
from scorelens.posterior.plans.sparse import SparseMasks
from scorelens.statistics import locality_masks
from tests.ground_truth import brute_force
from tests.ground_truth.cases import image_set

MASK_PLANS = [plan for plan in PLANS if plan not in ("auto", "fused")]  # fused: test_fused.py
SIGMAS = scorelens.ddim_sigmas(10).tolist()


def choose_plan(queries, z, scale, name="auto"):
    return choose(queries.plans(z, scale), name)


def masks_of(images, sigma=0.5, threshold=0.1):
    return Masks(locality_masks(scorelens.fit_gaussian(images), sigma, threshold), images.shape)


@pytest.mark.parametrize("plan", MASK_PLANS)
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 5, 3)])
@pytest.mark.parametrize("memory", [3000, 2**24])
def test_every_plan_equals_brute_force(plan, shape, memory):
    images = image_set("smooth", 53, shape)
    x = brute_force.floats(images.pixels)
    model = scorelens.build_denoiser("locality", images, threshold=0.1, plan=plan, memory=memory)
    for sigma in SIGMAS:
        z = (images[:3] + sigma * scorelens.seeded_noise(shape, range(3))).double()
        expected = brute_force.masked(z.flatten(1).numpy(), x, sigma, brute_force.paper_masks(x, sigma, 0.1))
        np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), expected, rtol=0, atol=1e-8)


def test_plans_agree_in_float32_wherever_they_may_be_chosen():
    """Auto against dense, at all noise levels; at the smallest the chain is not among the choices."""
    digits = scorelens.load_images("digits", limit=600, resolution=16)
    auto, dense = (scorelens.build_denoiser("locality", digits, threshold=0.05, plan=p) for p in ("auto", "dense"))
    for sigma in SIGMAS:
        z = digits[:4] + sigma * scorelens.seeded_noise(digits.shape, range(50, 54))
        torch.testing.assert_close(auto(z, sigma), dense(z, sigma), rtol=0, atol=2e-4)


@pytest.mark.parametrize("plan", MASK_PLANS)
def test_batch_mean_softmax_under_every_plan(plan):
    images = image_set("smooth", 53)
    z = images[:2] + 0.5
    reference, other = (scorelens.build_denoiser("locality", images, softmax="batch-mean", softmax_batch=20, plan=p)
                        for p in ("dense", plan))
    torch.testing.assert_close(other(z, 0.5), reference(z, 0.5), rtol=0, atol=1e-5)


def test_sums_are_the_matrices_they_stand_for():
    images = image_set("smooth", 60, (3, 4, 5))
    masks = masks_of(images)
    table = torch.randn(60, 7, dtype=torch.float64)
    torch.testing.assert_close(masks.sums(table), masks.keep.double() @ table)
    chain = masks.changes(table).view(3, 4, 5, 7)
    chain[:, :, 0] = chain[:, :, 0].cumsum(1)
    torch.testing.assert_close(chain.cumsum(2).view(60, 7), masks.keep.double() @ table)
    assert masks.changes.entries < masks.sums.entries


def test_empty_masks_are_sums_of_nothing():
    masks = Masks(torch.zeros(6, 6, dtype=torch.bool), (1, 2, 3))
    table = torch.randn(6, 4)
    for sums in (masks.sums, masks.changes):
        assert torch.equal(sums(table), torch.zeros(6, 4))


def test_a_chain_of_masks_is_refused_where_it_would_cost_digits():
    masks = masks_of(image_set("smooth", 60))
    assert chain_is_exact(masks.keep, masks.grid, torch.float32, 1 / (2 * 1.0**2))
    assert not chain_is_exact(masks.keep, masks.grid, torch.float32, 1 / (2 * 0.01**2))
    assert chain_is_exact(masks.keep, masks.grid, torch.float64, 1 / (2 * 0.01**2))
    z = torch.zeros(1, 20, dtype=torch.float64)  # for which there is no compiled kernel
    assert [c.name for c in Masks(masks.keep).plans(z, 0.5)] == ["dense", "sparse"]  # no grid


def rates(**changes):
    return Rates(**{"product": 1e-11, "entry": 5e-11, "value": 1e-9, "read": 1e-9, "call": 0.0, **changes})


@pytest.mark.parametrize(("density", "expected"), [("windows", MaskDifferences), ("random", DenseMasks),
                                                   ("identity", SparseMasks)])
def test_the_cheapest_plan_is_chosen(monkeypatch, density, expected):
    monkeypatch.setattr("scorelens.posterior.costs.measured_rates", lambda device, dtype: rates())
    monkeypatch.setattr("scorelens.posterior.queries.available", lambda z: False)  # else the compiled kernel is
    row = torch.arange(256) // 16
    keep = {"windows": (row[:, None] - row).abs() <= 2, "identity": torch.eye(256, dtype=torch.bool),
            "random": torch.rand(256, 256, generator=torch.Generator().manual_seed(0)) < 0.5}[density]
    assert isinstance(choose_plan(Masks(keep, (1, 16, 16)), torch.zeros(1, 256), 0.5).plan, expected)


def test_small_problems_are_not_worth_a_measurement(monkeypatch):
    monkeypatch.setattr("scorelens.posterior.costs.measured_rates", lambda device, dtype: pytest.fail("measured"))
    assert isinstance(choose_plan(masks_of(image_set("smooth", 60)), torch.zeros(1, 20), 1.0).plan, DenseMasks)


def test_whole_images_have_their_own_plan():
    assert isinstance(choose_plan(WholeImage(), torch.zeros(1, 20), 1.0).plan, FullImage)


def test_an_unknown_plan_is_refused_with_the_nearest_name():
    with pytest.raises(scorelens.ScorelensError, match="did you mean 'sparse'"):
        choose_plan(masks_of(image_set("smooth", 60)), torch.zeros(1, 20), 1.0, "sparce")


@pytest.mark.parametrize(("plan", "sums"), [("sparse", "sums"), ("differences", "changes")])
def test_operations_are_the_entries_of_the_sums(plan, sums):
    masks = masks_of(image_set("smooth", 60))
    assert choose_plan(masks, torch.zeros(1, 20), 1.0, plan).cost.operations == getattr(masks, sums).entries


def test_measured_rates_are_positive_and_measured_once():
    first = measured_rates(torch.device("cpu"), torch.float32)
    assert min(vars(first).values()) > 0
    assert measured_rates(torch.device("cpu"), torch.float32) is first


def test_estimates_add_up():
    cost = choose_plan(masks_of(image_set("smooth", 60)), torch.zeros(1, 20), 1.0, "dense").cost
    measured = measured_rates(torch.device("cpu"), torch.float32)
    pair = 400 * measured.product + 20 * measured.value + measured.call / 2048
    assert cost.seconds(noisy=3, source=100) == pytest.approx(100 * (20 * measured.read + 3 * pair))


def test_the_mean_image_is_rounded_to_pixel_values():
    images = image_set("random", 40)
    np.testing.assert_array_equal(images.centre(), np.rint(images.pixels.astype(float).mean(0)))
