"""The kernel denoiser with locality masks, against explicit loops over noisy images, outputs and training images."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers.kernel import kernel
from scorelens.denoisers.kernel_locality import kernel_locality
from scorelens.statistics import whitening
from scorelens.statistics.masks import tile_masks
from tests.ground_truth.brute_force import floats, paper_masks, softmax
from tests.ground_truth.cases import SHAPES, image_set, pairwise

SIGMAS = scorelens.ddim_sigmas(10).tolist()
WIDTHS = [0.0, 0.3, 0.8, 1.0]


def brute_force_kernel_locality(z, x, sigma, h, keep, temperature=1.0):
    """keep: bool [D, D], row q for output q."""
    dtype, d = z.dtype, x.shape[1]
    covariance = np.cov(x, rowvar=False, ddof=1).reshape(d, d).astype(dtype)
    mu = x.mean(axis=0)
    m = mu + dtype.type(np.sqrt(1 - h**2)) * (x - mu)
    out = np.empty_like(z)
    for q, mask in enumerate(keep):
        k = (h**2 * covariance[np.ix_(mask, mask)] + sigma**2 * np.eye(mask.sum())).astype(dtype)
        row = dtype.type(h**2) * covariance[q, mask]
        for b, zb in enumerate(z):
            difference = (zb - m)[:, mask]
            solved = np.linalg.solve(k, difference.T).T
            weights = softmax(-(difference * solved).sum(axis=1) / dtype.type(2 * temperature))
            out[b, q] = weights @ (m[:, q] + solved @ row)
    return out


def union_of_tiles(keep, shape, tile):
    """By loops over places."""
    c, h, w = shape
    keep = keep.reshape(c, h, w, -1)
    out = np.zeros_like(keep)
    for row in range(h):
        for column in range(w):
            top, left = row // tile * tile, column // tile * tile
            union = keep[:, top:top + tile, left:left + tile].any(axis=(0, 1, 2))
            out[:, row, column] = union if union.mean() < 0.9 else True
    return out.reshape(c * h * w, -1)


def noisy(images, sigma, count=5, dtype=torch.float32):
    eps = scorelens.seeded_noise(images.shape, range(count))
    return [(images[:count] + sigma * eps).to(dtype), (max(sigma, 0.5) * eps).to(dtype)]


@pytest.mark.slow
@pytest.mark.parametrize(("h", "kind", "size"), pairwise(WIDTHS, ["near-duplicates", "smooth"], SHAPES))
def test_kernel_locality_equals_brute_force(h, kind, size):
    """In float64 to 1e-9; in float32 at most twice the error of the plain formula, plus 1e-6."""
    images = image_set(kind, *size)
    model, x = kernel_locality(images, bandwidth=h, threshold=0.1, tile=1), floats(images.pixels)
    for sigma in SIGMAS[::3]:
        keep = paper_masks(x, sigma, 0.1)
        for z in noisy(images, sigma, count=2):
            flat = z.flatten(1).numpy()
            truth = brute_force_kernel_locality(flat.astype(np.float64), x, sigma, h, keep)
            plain = brute_force_kernel_locality(flat, x.astype(np.float32), sigma, h, keep)
            np.testing.assert_allclose(model(z.double(), sigma).flatten(1).numpy(), truth, rtol=0, atol=1e-9)
            error = np.abs(model(z, sigma).flatten(1).numpy() - truth).max()
            assert error <= 2 * np.abs(plain - truth).max() + 1e-6, f"sigma {sigma:.3g}"


@pytest.mark.parametrize("tile", [2, 3, 100])
@pytest.mark.parametrize("shape", [(1, 5, 4), (3, 3, 4)])
def test_tiles_share_the_union_of_their_masks(tile, shape):
    images, sigma = image_set("smooth", 60, shape), 0.4
    x = floats(images.pixels)
    own = paper_masks(x, sigma, 0.6)
    keep = union_of_tiles(own, shape, tile)
    assert keep.all() == (tile == 100) and not (keep == own).all()
    assert torch.equal(tile_masks(torch.from_numpy(own), shape, tile), torch.from_numpy(keep))
    z = noisy(images, sigma, dtype=torch.float64)[0]
    truth = brute_force_kernel_locality(z.flatten(1).numpy(), x, sigma, 0.3, keep)
    model = kernel_locality(images, bandwidth=0.3, threshold=0.6, tile=tile)
    np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), truth, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("size", "pixels"), [(1, 10), (2, 100), (4, 200), (8, 400)])
def test_tiles_grow_with_the_masks(size, pixels):
    """Masks of this many pixels around each output, in two channels; wide tiles still differ from narrow ones."""
    shape, place = (2, 24, 24), torch.arange(576)
    keep = ((place[:, None] - place).abs() <= pixels / 2).repeat(2, 2)
    found = tile_masks(keep, shape)
    assert torch.equal(found, tile_masks(keep, shape, size))
    assert not torch.equal(found, tile_masks(keep, shape, 2 if size == 1 else size // 2))


def test_lengths_of_large_data_are_cached_by_content(monkeypatch, fresh_cache):
    """Computed once, and again for another noise level, bandwidth, set of images or precision."""
    images, other = image_set("smooth", 60, (3, 3, 4)), image_set("random", 60, (3, 3, 4))
    z = noisy(images, 0.4)[0]
    calls = [(images, 0.3, z, 0.4), (images, 0.3, z, 0.7), (images, 0.5, z, 0.4), (other, 0.3, z, 0.4),
             (images, 0.3, z.double(), 0.4)]
    expected = [kernel_locality(i, bandwidth=h, tile=100)(noise, sigma) for i, h, noise, sigma in calls]
    monkeypatch.setattr(whitening, "SMALL", 0)
    for count, ((i, h, noise, sigma), x0_hat) in enumerate(zip(calls, expected, strict=True), start=1):
        for _ in range(2):
            torch.testing.assert_close(kernel_locality(i, bandwidth=h, tile=100)(noise, sigma), x0_hat, rtol=0, atol=0)
        assert len(list((fresh_cache / "whitened").glob("*.safetensors"))) == count
    monkeypatch.setattr(whitening, "_lengths", lambda *_: pytest.fail("computed again"))
    kernel_locality(images, bandwidth=0.3, tile=100)(z, 0.4)


@pytest.mark.parametrize("block", [1, 7, 256])
def test_whitened_lengths_equal_a_solve(monkeypatch, block):
    """y^T K^-1 y, whatever the blocks of the triangular inverse and the chunks of images."""
    images, pixels = image_set("smooth", 60, (3, 3, 4)), torch.tensor([1, 4, 5, 9, 20, 21, 30, 33])
    monkeypatch.setattr(whitening, "BLOCK", block)
    monkeypatch.setattr(whitening, "CHUNK", 13)
    x = floats(images.pixels)
    y, k = (x - x.mean(0))[:, pixels], np.cov(x, rowvar=False)[np.ix_(pixels, pixels)] + 0.16 * np.eye(8)
    cholesky, mean = torch.linalg.cholesky(torch.from_numpy(k)), torch.from_numpy(x.mean(0)[pixels])
    lengths = whitening.whitened_lengths(images, mean, pixels, cholesky, torch.float64, torch.device("cpu"), [])
    np.testing.assert_allclose(lengths.numpy(), (y * np.linalg.solve(k, y.T).T).sum(axis=1), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.02, 0.2])
@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_without_width_it_is_locality(threshold, n, shape):
    images = image_set("smooth", n, shape)
    local = scorelens.build_denoiser("locality", images, threshold=threshold)
    for sigma in SIGMAS:
        z = noisy(images, sigma, dtype=torch.float64)[0]
        torch.testing.assert_close(kernel_locality(images, bandwidth=0.0, threshold=threshold, tile=1)(z, sigma),
                                   local(z, sigma), rtol=0, atol=1e-9)


def test_at_full_width_it_is_linear_regression_on_the_mask():
    """x0_hat_q = mu_q + Sigma[q,M] (Sigma[M,M] + sigma^2 I)^-1 (z - mu)_M, which is not the Wiener filter."""
    images, sigma = image_set("smooth", 60), 0.4
    x = floats(images.pixels)
    mu, covariance = x.mean(0), np.cov(x, rowvar=False)
    z = noisy(images, sigma, dtype=torch.float64)[0]
    expected = np.empty((5, 20))
    for q, mask in enumerate(paper_masks(x, sigma, 0.2)):
        noise = sigma**2 * np.eye(mask.sum())
        row = np.linalg.solve(covariance[np.ix_(mask, mask)] + noise, covariance[mask, q])
        expected[:, q] = mu[q] + (z.flatten(1).numpy() - mu)[:, mask] @ row
    out = kernel_locality(images, bandwidth=1.0, threshold=0.2, tile=1)(z, sigma).flatten(1)
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-9)
    assert (out - scorelens.build_denoiser("wiener", images)(z, sigma).flatten(1)).abs().max() > 1e-3


def test_with_all_ones_masks_it_is_the_kernel_denoiser():
    images = image_set("smooth", 50, (3, 3, 4))
    for sigma in SIGMAS:
        z = noisy(images, sigma, dtype=torch.float64)[0]
        torch.testing.assert_close(kernel_locality(images, bandwidth=0.4, threshold=0)(z, sigma),
                                   kernel(images, bandwidth=0.4)(z, sigma), rtol=0, atol=1e-9)


def test_temperature_divides_the_logits():
    images, sigma = image_set("smooth", 40), 0.4
    x = floats(images.pixels)
    z = noisy(images, sigma, dtype=torch.float64)[0]
    expected = brute_force_kernel_locality(z.flatten(1).numpy(), x, sigma, 0.3, paper_masks(x, sigma, 0.05), 3.0)
    model = kernel_locality(images, bandwidth=0.3, temperature=3.0, tile=1)
    np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tile", [1, 2])
def test_some_outputs_alone_are_those_of_the_whole(tile):
    """In any order, with the gradient that they have there."""
    images, sigma, pixels = image_set("smooth", 40, (3, 3, 4)), 0.4, torch.tensor([30, 2, 7, 14])
    model = kernel_locality(images, bandwidth=0.3, threshold=0.1, tile=tile)
    z = noisy(images, sigma, dtype=torch.float64)[0].requires_grad_()
    whole, some = model(z, sigma).flatten(1)[:, pixels], model.at(z, sigma, pixels)
    torch.testing.assert_close(some, whole, rtol=0, atol=1e-12)
    fields = [torch.autograd.grad(out[:, 1].sum(), z)[0] for out in (whole, some)]
    torch.testing.assert_close(*fields, rtol=0, atol=1e-12)
    torch.testing.assert_close(scorelens.sensitivity(model, z, sigma, (0, 2), channel=0), fields[0], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.3, "auto"])
def test_chunks_and_batches_change_nothing(h):
    images = image_set("smooth", 53)
    whole, tight = (kernel_locality(images, bandwidth=h, memory=memory) for memory in (2**27, 5000))
    for sigma in SIGMAS[5::2]:
        z = noisy(images, sigma, count=7)[0]
        expected = whole(z, sigma)
        torch.testing.assert_close(tight(z, sigma), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.cat([whole(one, sigma) for one in z.split(1)]), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("h", "sigma"), [(0.0, 0.6), (0.3, 0.15), (0.3, 0.6), (0.8, 0.15), (0.8, 5.0), (1.0, 0.6)])
def test_gradient_equals_finite_differences(h, sigma):
    images = image_set("smooth", 20, (1, 2, 3))
    model = kernel_locality(images, bandwidth=h, threshold=0.3, memory=4000, tile=1)
    z = noisy(images, sigma, count=1, dtype=torch.float64)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model(z, sigma), z, eps=1e-6, atol=1e-6, rtol=1e-4)


def test_nothing_outside_the_mask_is_looked_at():
    images, sigma = image_set("smooth", 60), 0.4
    model = kernel_locality(images, bandwidth=0.3, threshold=0.2, tile=1)
    z = noisy(images, sigma, dtype=torch.float64)[0][:1]
    jacobian = torch.autograd.functional.jacobian(lambda v: model(v.view(z.shape), sigma).flatten(), z.flatten())
    keep = torch.from_numpy(paper_masks(floats(images.pixels), sigma, 0.2))
    assert torch.equal(jacobian != 0, keep) and not keep.all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"bandwidth": 0.3, "tile": 2}, {"bandwidth": 1.0}])
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 5, 3)])
def test_every_property(options, shape):
    scorelens.check_denoiser(kernel_locality(image_set("smooth", 40, shape), **options))


@pytest.mark.parametrize(("options", "message"), [
    ({"bandwidth": 2.0}, "bandwidth must be between"), ({"bandwidth": 0.3, "threshold": -0.1}, "threshold must be"),
    ({"bandwidth": 0.3, "threshold": 1.1}, "threshold must be"), ({"tile": 0}, "tile must be at least 1, got 0")])
def test_impossible_options_are_refused(options, message):
    images = image_set("smooth", 40)
    with pytest.raises(scorelens.ScorelensError, match=message):
        kernel_locality(images, **options)(images[:1], 1.0)
