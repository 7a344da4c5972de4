"""The compiled kernels compute what the other plans compute; every number is checked against float64."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from scorelens.posterior import Masks, OwnOutput, Posterior, posterior_mean, queries
from scorelens.posterior.plans.fused import linked
from scorelens.statistics import locality_masks
from tests.ground_truth import brute_force
from tests.ground_truth.cases import image_set

pytest.importorskip("numba", reason="the extra `fast` is not installed")
SIGMAS = scorelens.ddim_sigmas(10).tolist()
SHAPE = (3, 12, 10)  # large enough for the kernels to be chosen


def noisy(images, sigma, count=3):
    return images[:count] + sigma * scorelens.seeded_noise(images.shape, range(count))


@pytest.mark.parametrize("count", [2, 33, 100])  # images in the last block: 2, 1, 4
def test_locality_equals_brute_force_at_every_noise_level(count):
    images = image_set("smooth", count, SHAPE)
    x = brute_force.floats(images.pixels)
    model = scorelens.build_denoiser("locality", images, threshold=0.1)
    for sigma in SIGMAS:
        z = noisy(images, sigma, 1)
        assert model.choice(z, sigma).name == "fused"
        expected = brute_force.masked(z.double().flatten(1).numpy(), x, sigma, brute_force.paper_masks(x, sigma, 0.1))
        np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name, options", [
    ("ls", {"patch_size": 5}), ("ls", {"patch_size": 21}), ("els", {"patch_size": 3}), ("els", {"patch_size": 9}),
    ("pspc-square", {"patch_size": 4}), ("bbels", {"patch_size": 5}), ("golden", {}), ("locality-equivariant", {}),
    ("locality", {"softmax": "batch-mean", "softmax_batch": 20}), ("locality", {"mask_rule": "published"}),
    ("locality", {"temperature": 3.0}), ("locality", {"memory": 3000})])
def test_every_method_has_the_same_numbers_without_the_kernels(name, options, monkeypatch):
    images = image_set("smooth", 50, SHAPE)
    model = scorelens.build_denoiser(name, images, **options)
    for sigma in (6.17, 1.24, 0.342, 0.01):
        z = noisy(images, sigma)
        fused = model(z, sigma)
        with monkeypatch.context() as patch:
            patch.setattr(queries, "available", lambda z: False)
            torch.testing.assert_close(fused, model(z, sigma), rtol=0, atol=5e-5)


def test_gradients_are_those_of_the_other_plans(monkeypatch):
    images = image_set("smooth", 50, SHAPE)
    for name in ("locality", "ls"):
        model = scorelens.build_denoiser(name, images)
        for sigma in (1.24, 0.01):
            z, g = noisy(images, sigma).requires_grad_(), torch.randn(3, *SHAPE)
            fused, = torch.autograd.grad(model(z, sigma), z, g)
            with monkeypatch.context() as patch:
                patch.setattr(queries, "available", lambda z: False)
                plain, = torch.autograd.grad(model(z, sigma), z, g)
            torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-3 * max(1.0, plain.abs().max().item()))


def test_results_do_not_depend_on_threads_batch_or_order(monkeypatch):
    """Bitwise for threads and batches; to rounding for the order of the images and the length of spans."""
    images = image_set("smooth", 150, SHAPE)
    monkeypatch.setattr("scorelens.posterior.plans.fused.SPAN", 40)
    z = noisy(images, 1.24)
    for name in ("locality", "ls"):
        model = scorelens.build_denoiser(name, images)
        alone, threads = model(z, 1.24), torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            assert torch.equal(model(z, 1.24), alone)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(torch.cat([model(one[None], 1.24) for one in z]), alone)
        for count in (5, 9, 11):  # a group with repeated images, and one with others one by one
            many = z[torch.arange(count) % len(z)]
            assert torch.equal(model(many, 1.24), alone[torch.arange(count) % len(z)])
        order = np.random.default_rng(0).permutation(len(images))
        torch.testing.assert_close(scorelens.build_denoiser(name, images.subset(order))(z, 1.24), alone,
                                   rtol=0, atol=1e-5)


def test_images_of_floats():
    """Images that were edited beyond bytes."""
    images = image_set("smooth", 50, SHAPE)
    floats = ImageSet((images[:] * 1.5).numpy(), "edited")
    for name in ("locality", "ls"):
        model, scaled = (scorelens.build_denoiser(name, source) for source in (images, floats))
        z = noisy(images, 0.5)
        if name == "ls":
            torch.testing.assert_close(scaled(1.5 * z, 0.75), 1.5 * model(z, 0.5), rtol=0, atol=1e-5)
        else:
            z = z.double()
            torch.testing.assert_close(scaled(z.float(), 0.5).double(), scaled(z, 0.5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", [(1, 6, 5), (3, 4, 5), (6, 5, 1)])
def test_links_rebuild_the_masks(grid):
    """Mask j is the mask that it is linked to, with what enters and without what leaves."""
    q, generator = int(np.prod(grid)), torch.Generator().manual_seed(0)
    keep = torch.rand(q, 17, generator=generator) < 0.4
    links = linked(keep, grid)
    slots = np.zeros((links.slots + 1, 17), bool)
    for step, following in zip(links.steps[:-1].tolist(), links.steps[1:].tolist(), strict=True):
        query, before, slot, entering, leaving = step
        mask = slots[before].copy()
        mask[links.rows[entering:leaving]] = True
        mask[links.rows[leaving:following[3]]] = False
        np.testing.assert_array_equal(mask, keep[query].numpy())
        slots[slot] = mask
    assert sorted(links.steps[:-1, 0].tolist()) == list(range(q))


def test_similar_masks_are_linked_by_their_differences():
    """Squares that move by a pixel: far fewer entries than the masks have."""
    digits = scorelens.load_images("digits", limit=300, resolution=16)
    keep = locality_masks(scorelens.fit_gaussian(digits), 2.0, 0.05)
    assert linked(keep, digits.shape).entries < 0.5 * keep.sum()


def test_a_few_outputs_only():
    images = image_set("smooth", 40, SHAPE)
    model, pixels = scorelens.build_denoiser("locality", images), torch.arange(0, 360, 2)
    z = noisy(images, 0.7)
    torch.testing.assert_close(model.at(z, 0.7, pixels), model(z, 0.7).flatten(1)[:, pixels], rtol=0, atol=1e-5)


def test_stacked_masks_are_separate_softmaxes():
    """What multiscale uses: two thresholds in one pass."""
    images = image_set("smooth", 60, SHAPE)
    stats, z = scorelens.fit_gaussian(images), noisy(images, 1.24)
    keep = [locality_masks(stats, 1.24, threshold) for threshold in (0.02, 0.2)]
    both = Posterior(Masks(torch.cat(keep), (6, 12, 10)), OwnOutput(torch.arange(360).repeat(2)), images)
    each = [posterior_mean(Posterior(Masks(one, SHAPE), OwnOutput(), images), z, 1.24).flatten(1) for one in keep]
    torch.testing.assert_close(posterior_mean(both, z, 1.24), torch.cat(each, dim=1), rtol=0, atol=1e-5)


def test_extreme_noise_and_ties():
    """Equal images, and sigma from 1e-6 to 1e6: finite, and as without the kernels."""
    images = image_set("smooth", 40, SHAPE)
    doubled = images.subset([*range(40), *range(40)])
    one, two = (scorelens.build_denoiser("locality", source, stats=scorelens.fit_gaussian(images))
                for source in (images, doubled))
    for sigma in (1e-6, 1e-3, 1.0, 1e3, 1e6):
        z = noisy(images, sigma)
        torch.testing.assert_close(one(z, sigma), two(z, sigma), rtol=0, atol=1e-5)


def test_power_of_two_to_the_last_digits():
    """Powers of the kernels against float64, over all exponents that matter; 0 at the limit and below."""
    from numba import njit

    from scorelens.posterior.plans.simd import LANES, aligned, load_group, powers, store_group

    @njit
    def power(values, out):
        for k in range(0, len(values), 2):
            store_group(out, k, powers(load_group((0, 1), values, k), np.float32(-100)))

    values, out = aligned((400, LANES), np.float32), aligned((400, LANES), np.float32)
    values[:] = np.linspace(-125.9, 12, values.size, dtype=np.float32).reshape(values.shape)
    power(values, out)
    expected = np.where(values > -100, np.exp2(values.astype(np.float64)), 0)
    np.testing.assert_allclose(out, expected, rtol=3e-7)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_totals_add_up_in_the_same_order_for_every_group(count):
    """The sum of each vector, bitwise that of the vector alone."""
    from numba import njit

    from scorelens.posterior.plans.simd import LANES, add_totals, aligned, load_group

    @njit
    def totals(values, members, sums):
        for k in range(0, len(values), len(members)):
            add_totals(sums, k, load_group(members, values, k))

    values = aligned((8, LANES), np.float32)
    values[:] = np.random.default_rng(0).standard_normal(values.shape)
    sums, alone = np.ones(8), np.ones(8)
    totals(values, tuple(range(count)), sums)
    totals(values, (0,), alone)
    np.testing.assert_array_equal(sums, alone)
    np.testing.assert_allclose(sums, 1 + values.astype(np.float64).sum(axis=1), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_works_where_numba_is_not_installed():
    """The same samples in a process that cannot import it."""
    code = """if True:
        import sys
        if sys.argv[1] == "without":
            sys.modules["numba"] = None  # as if it were not installed
        import scorelens
        images = scorelens.load_images("digits", limit=64, resolution=16)
        model = scorelens.build_denoiser("locality", images)
        z = scorelens.seeded_noise(images.shape, range(2))
        print(model.choice(z, 1.0).name, *model(z, 1.0).flatten().tolist())
    """
    runs = [subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True)
            for how in ("with", "without")]
    (fused, *x), (plain, *y) = (run.stdout.split() for run in runs)
    assert fused == "fused" and plain != "fused"
    np.testing.assert_allclose(np.array(x, float), np.array(y, float), rtol=0, atol=5e-5)
