"""Models of windows and patches against brute force that cuts out every patch, one by one."""

import json

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers import els as els_module
from scorelens.denoisers.patch_sizes import PRESETS, patch_sizes
from scorelens.posterior import Posterior, WholeOutput, WholeTranslation, logit_scale, plan_for, posterior_mean
from scorelens.posterior.plans import correlations
from scorelens.posterior.sources import Translations
from tests.ground_truth import brute_force
from tests.ground_truth.cases import image_set, pairwise

SHAPES = [(1, 5, 7), (3, 6, 5)]
SIGMAS = [0.1, 1.0]


def noisy(images, sigma, count, dtype=torch.float64):
    return (images[:count] + sigma * scorelens.seeded_noise(images.shape, range(count))).to(dtype)


def compare(model, truth, images, sigma, batch):
    """In float64 to 1e-9; in float32, whose plain formula would err by about eps times the logits, to 1e-4."""
    z = noisy(images, sigma, batch)
    expected = truth(z.flatten(1).numpy(), brute_force.floats(images.pixels)).reshape(z.shape)
    np.testing.assert_allclose(model(z, sigma).numpy(), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model(z.float(), sigma).numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("batch", "memory"), [(1, 2**24), (5, 3000)])
@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_ls(shape, size, batch, memory):
    images = image_set("smooth", 23, shape)
    model = scorelens.build_denoiser("ls", images, patch_size=size, memory=memory)
    for sigma in SIGMAS:
        compare(model, lambda z, x, s=sigma: brute_force.ls(z, x, s, shape, size), images, sigma, batch)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "bank", "size", "chunks"), pairwise(
    SHAPES, ["inside", "circular"], [1, 3, 5], [(1, 2**24), (5, 50_000)]))
def test_els(shape, bank, size, chunks, monkeypatch):
    """By products of patches, and, where all translations count, by sums over windows of translated images."""
    images, (batch, memory) = image_set("smooth", 8, shape), chunks
    model = scorelens.build_denoiser("els", images, patch_size=size, bank=bank, memory=memory)
    for boxes_from in (1, 10**9):
        monkeypatch.setattr(els_module, "BOXES_FROM", boxes_from)
        for sigma in SIGMAS:
            compare(model, lambda z, x, s=sigma: brute_force.els(z, x, s, shape, size, bank == "inside"), images, sigma,
                    batch)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "size", "batch"), pairwise(SHAPES, [1, 3], [1, 5]))
def test_bbels(shape, size, batch):
    images = image_set("smooth", 8, shape)
    model = scorelens.build_denoiser("bbels", images, patch_size=size, memory=50_000)
    for sigma in SIGMAS:
        compare(model, lambda z, x, s=sigma: brute_force.bbels(z, x, s, shape, size), images, sigma, batch)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_pspc_square(shape, size):
    """Windows that are longer than a side of the image are clipped to it."""
    images = image_set("smooth", 23, shape)
    model = scorelens.build_denoiser("pspc-square", images, patch_size=size, memory=4000)
    for sigma in SIGMAS:
        compare(model, lambda z, x, s=sigma: brute_force.composite(z, x, s, brute_force.squares(shape, size)), images,
                sigma, 3)


def test_pspc_flips_double_the_source():
    images = image_set("smooth", 11, (1, 4, 5))
    flipped = scorelens.build_denoiser("pspc-square", images, patch_size=3, flips=True)
    x = brute_force.floats(np.concatenate([images.pixels, images.pixels[..., ::-1]]))
    z = noisy(images, 0.4, 2)
    expected = brute_force.composite(z.flatten(1).numpy(), x, 0.4, brute_force.squares(images.shape, 3))
    np.testing.assert_allclose(flipped(z, 0.4).flatten(1).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["ls", "bbels", "pspc-square"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_that_covers_the_image_is_optimal(name, shape):
    images = image_set("smooth", 30, shape)
    model = scorelens.build_denoiser(name, images, patch_size=2 * max(shape) - 1)
    for sigma in SIGMAS:
        z = noisy(images, sigma, 3)
        torch.testing.assert_close(model(z, sigma), scorelens.build_denoiser("optimal", images)(z, sigma), rtol=0,
                                   atol=1e-9)


def test_the_whole_image_as_a_patch_of_all_translations_is_optimal_over_the_translated_data():
    images = image_set("smooth", 9, (3, 4, 5))
    z, x = noisy(images, 0.5, 3), brute_force.floats(images.pixels)
    expected = brute_force.optimal(z.flatten(1).numpy(), brute_force.translations(x, images.shape), 0.5)
    model = scorelens.build_denoiser("els", images, patch_size=9)
    np.testing.assert_allclose(model(z, 0.5).flatten(1).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-9)])
@pytest.mark.parametrize("block", [1, 100, correlations.BLOCK])  # one image at a time, a few, all
def test_whole_images_are_compared_by_transforms_at_every_noise_level(dtype, tolerance, block, monkeypatch):
    monkeypatch.setattr(correlations, "BLOCK", block)
    images = image_set("smooth", 9, (3, 4, 5))
    translated = brute_force.translations(brute_force.floats(images.pixels), images.shape)
    model = scorelens.build_denoiser("els", images, patch_size=9)
    for sigma in (60.8, *SIGMAS):
        z = noisy(images, sigma, 3).to(dtype)
        expected = brute_force.optimal(z.double().flatten(1).numpy(), translated, sigma)
        np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("sigma, plan", [(60.8, "correlations"), (0.01, "correlations"), (1e-5, "full image")])
def test_transforms_are_left_where_they_lose_digits(sigma, plan):
    images = image_set("smooth", 9, (3, 4, 5))
    z, x = noisy(images, sigma, 3).float(), brute_force.floats(images.pixels)
    posterior = Posterior(WholeTranslation(images.shape), WholeOutput(), Translations(images))
    assert plan_for(posterior, z.flatten(1), logit_scale(sigma, 1.0)).name == plan
    expected = brute_force.optimal(z.double().flatten(1).numpy(), brute_force.translations(x, images.shape), sigma)
    np.testing.assert_allclose(posterior_mean(posterior, z, sigma).flatten(1).numpy(), expected, rtol=0, atol=1e-6)


def test_els_of_one_image_in_all_its_translations():
    """Every translation again for each of them: the same patches, each as often as any other."""
    one = image_set("smooth", 1, (1, 4, 5))
    moved = [np.roll(one.pixels, (r, c), axis=(2, 3)) for r in range(4) for c in range(5)]
    images = scorelens.ImageSet(np.concatenate(moved), "moved")
    z = noisy(images, 0.4, 2)
    expected = brute_force.els(z.flatten(1).numpy(), brute_force.floats(one.pixels), 0.4, one.shape, 3, inside=False)
    model = scorelens.build_denoiser("els", images, patch_size=3)
    np.testing.assert_allclose(model(z, 0.4).flatten(1).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [3, 5, 9])
@pytest.mark.parametrize("bank", ["inside", "circular"])
def test_shifting_the_input_of_els_shifts_its_output(bank, size):
    images = image_set("smooth", 9, (3, 5, 6))
    model = scorelens.build_denoiser("els", images, patch_size=size, bank=bank)
    z = noisy(images, 0.5, 2)
    torch.testing.assert_close(model(z.roll((2, -1), dims=(2, 3)), 0.5), model(z, 0.5).roll((2, -1), dims=(2, 3)),
                               rtol=0, atol=1e-9)


def check_gradient(model, images, sigma=0.6, eps=1e-5):
    """u^T J v by the backward pass and by central differences, for random u and v."""
    z = noisy(images, sigma, 2)
    u, *directions = (torch.randn(z.shape, generator=torch.Generator().manual_seed(k), dtype=z.dtype) for k in range(5))
    inputs = z.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(inputs, sigma), inputs, u)
    for v in directions:
        change = (model(z + eps * v, sigma) - model(z - eps * v, sigma)) / (2 * eps)
        torch.testing.assert_close((gradient * v).sum(), (u * change).sum(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [
    ("ls", {"patch_size": 3}), ("els", {"patch_size": 3}), ("els", {"patch_size": 3, "bank": "inside"}),
    ("els", {"patch_size": 9}), ("els", {"patch_size": 3, "clusters": 4, "searched": 2}),
    ("els", {"patch_size": 3, "patch_limit": 50}), ("bbels", {"patch_size": 3}),
    ("pspc-square", {"patch_size": 2}), ("pspc-flex", {"share": 0.6}), ("measured", {"share": 0.6}),
    ("soft-locality", {}), ("locality-equivariant", {"threshold": 0.2}), ("golden", {"threshold": 0.2})])
def test_gradients_are_those_of_finite_differences(name, options):
    images = image_set("smooth", 12, (3, 3, 4))
    check_gradient(scorelens.build_denoiser(name, images, memory=20_000, **options), images)


def test_windows_of_translated_images_have_the_right_gradient(monkeypatch):
    monkeypatch.setattr(els_module, "BOXES_FROM", 1)
    images = image_set("smooth", 7, (3, 3, 4))
    check_gradient(scorelens.build_denoiser("els", images, patch_size=3), images)


@pytest.mark.parametrize("bank", ["inside", "circular"])
def test_clusters_that_are_all_searched_change_nothing(bank):
    images = image_set("smooth", 20, (3, 5, 6))
    z = noisy(images, 0.4, 2)
    whole, clustered, few = (scorelens.build_denoiser("els", images, patch_size=3, bank=bank, **options)(z, 0.4)
                             for options in ({}, {"clusters": 6, "searched": 6}, {"clusters": 6, "searched": 1}))
    torch.testing.assert_close(clustered, whole, rtol=0, atol=1e-9)
    error = (few - whole).square().mean().sqrt()
    assert 1e-4 < error < 0.3, "the nearest cluster alone is near, but not it"


@pytest.mark.parametrize("bank", ["inside", "circular"])
def test_drawn_patches_are_patches_of_the_data(bank):
    """With vanishing noise the answer is the centre of the nearest patch among those drawn."""
    images = image_set("random", 20, (3, 5, 6))
    limited = scorelens.build_denoiser("els", images, patch_size=3, bank=bank, patch_limit=40, seed=3)
    assert len(limited.bank(3)) == 40
    z = noisy(images, 0.4, 2)
    out = limited(z.float(), 1e-3).permute(0, 2, 3, 1).reshape(-1, 1, 3)
    known = images[:].permute(0, 2, 3, 1).reshape(1, -1, 3)
    assert (out - known).abs().amax(dim=2).amin(dim=1).max() < 1e-5
    everything = scorelens.build_denoiser("els", images, patch_size=3, bank=bank, patch_limit=10**6)
    plain = scorelens.build_denoiser("els", images, patch_size=3, bank=bank)
    torch.testing.assert_close(everything(z, 0.4), plain(z, 0.4), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["ls", "els", "bbels"])
def test_a_limit_on_images_is_that_of_the_data(name):
    images = image_set("smooth", 30, (1, 5, 6))
    few = scorelens.build_denoiser(name, images, patch_size=3, images_limit=7, seed=2)
    order = np.random.default_rng(2).permutation(30)[:7]
    z = noisy(images, 0.4, 2)
    torch.testing.assert_close(few(z, 0.4), scorelens.build_denoiser(name, images.subset(order), patch_size=3)(z, 0.4),
                               rtol=0, atol=0)
    assert few.images.record["limit"] == 7


def test_patch_sizes_by_noise_level(tmp_path):
    """One for each step, a preset, a calibration: the size of the nearest noise level."""
    sigmas = scorelens.ddim_sigmas(10).tolist()
    cifar = patch_sizes("cifar10", (3, 32, 32))
    assert [cifar(sigma) for sigma in sigmas] == [None, None, None, 29, 25, 17, 13, 9, 7, 3]
    assert cifar(sigmas[4] * 1.05) == 25
    small = patch_sizes("cifar10", (1, 8, 8))
    assert [small(sigma) for sigma in sigmas] == [None, None, None, 7, 7, 5, 3, 3, 1, 1]
    steps = patch_sizes([7, 5, 3], (1, 8, 8))
    assert [steps(sigma) for sigma in scorelens.ddim_sigmas(3).tolist()] == [7, 5, 3]
    assert patch_sizes("7-5-3", (1, 8, 8))(sigmas[0]) == 7
    assert patch_sizes("9", (1, 8, 8))(1.0) == 9
    (tmp_path / "c.json").write_text(json.dumps({"sigmas": [10.0, 0.1], "sizes": [5, 3]}))
    calibrated = patch_sizes(str(tmp_path / "c.json"), (1, 8, 8))
    assert [calibrated(sigma) for sigma in (50.0, 0.9, 0.01)] == [5, 3, 3]


def test_presets_are_the_papers():
    assert all(len(sizes) == 10 for sizes in PRESETS.values())
    assert all(max(sizes) == side for sizes, side in zip(PRESETS.values(), (32, 64, 64, 28, 28), strict=True))


@pytest.mark.parametrize(("options", "message"), [
    ({"patch_size": 4}, "even"), ({"patch_size": 0}, "at least 1"), ({"patch_size": []}, "at least 1"),
    ({"patch_size": "cifar"}, "cifar10"), ({"patch_size": "nowhere.json"}, "calibrate"), ({"images_limit": 0}, "limit"),
    ({"seed": -1}, "seed"), ({"patch_limit": 0}, "limit"),
    ({"clusters": 4, "searched": 5}, "searched"), ({"clusters": 4, "patch_limit": 9, "searched": 1}, "exclude")])
def test_impossible_options_are_refused(options, message):
    with pytest.raises(scorelens.ScorelensError, match=message):
        scorelens.build_denoiser("els", image_set("smooth", 9, (1, 8, 8)), **options)
