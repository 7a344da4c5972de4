"""The kernel family between the optimal denoiser and the Wiener filter, against explicit loops in float64."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers import kernel as kernel_module
from scorelens.denoisers.common import bandwidth_rule
from scorelens.denoisers.kernel import kernel
from scorelens.statistics import rotation
from tests.ground_truth.brute_force import floats, softmax
from tests.ground_truth.cases import KINDS, SHAPES, image_set, pairwise

SIGMAS = scorelens.ddim_sigmas(10).tolist()
WIDTHS = [0.0, 0.3, 0.8, 1.0]


def brute_force_kernel(z, x, sigma, h, temperature=1.0):
    """m_i = mu + sqrt(1 - h^2) (x_i - mu), K = h^2 Sigma + sigma^2 I, one solve for each noisy image and m_i."""
    dtype, d = z.dtype, x.shape[1]
    covariance = np.cov(x, rowvar=False, ddof=1).reshape(d, d).astype(dtype)
    k = (h**2 * covariance + sigma**2 * np.eye(d)).astype(dtype)
    mu = x.mean(axis=0)
    m = mu + dtype.type(np.sqrt(1 - h**2)) * (x - mu)
    out = []
    for zb in z:
        solved = np.linalg.solve(k, (zb - m).T).T  # K^-1 (z - m_i)
        logits = np.array([-(zb - mi) @ si / (2 * temperature) for mi, si in zip(m, solved, strict=True)], dtype)
        predictions = m + dtype.type(h**2) * solved @ covariance.T
        out.append(softmax(logits) @ predictions)
    return np.stack(out)


def noisy(images, sigma, count=5, dtype=torch.float32):
    """Near training images, and far from all of them."""
    eps = scorelens.seeded_noise(images.shape, range(count))
    return [(images[:count] + sigma * eps).to(dtype), (max(sigma, 0.5) * eps).to(dtype)]


@pytest.mark.parametrize(("h", "kind", "size"), pairwise(WIDTHS, KINDS, SHAPES))
def test_kernel_equals_brute_force(h, kind, size):
    """In float64 to 1e-9; in float32 at most twice the error of the plain formula, plus 1e-6."""
    images = image_set(kind, *size)
    model, x = kernel(images, bandwidth=h), floats(images.pixels)
    for sigma in SIGMAS:
        for z in noisy(images, sigma):
            flat = z.flatten(1).numpy()
            truth = brute_force_kernel(flat.astype(np.float64), x, sigma, h)
            plain = brute_force_kernel(flat, x.astype(np.float32), sigma, h)
            np.testing.assert_allclose(model(z.double(), sigma).flatten(1).numpy(), truth, rtol=0, atol=1e-9)
            error = np.abs(model(z, sigma).flatten(1).numpy() - truth).max()
            assert error <= 2 * np.abs(plain - truth).max() + 1e-6, f"sigma {sigma:.3g}"


def test_temperature_divides_the_logits():
    images, sigma = image_set("smooth", 40), 0.4
    z = noisy(images, sigma, dtype=torch.float64)[0]
    expected = brute_force_kernel(z.flatten(1).numpy(), floats(images.pixels), sigma, 0.3, temperature=3.0)
    np.testing.assert_allclose(kernel(images, bandwidth=0.3, temperature=3.0)(z, sigma).flatten(1).numpy(), expected,
                               rtol=0, atol=1e-9)


@pytest.mark.parametrize(("h", "name"), [(0.0, "optimal"), (1.0, "wiener")])
@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_the_ends_are_optimal_and_wiener(h, name, n, shape):
    images = image_set("smooth", n, shape)
    end = scorelens.build_denoiser(name, images)
    for sigma in SIGMAS:
        for z in noisy(images, sigma, dtype=torch.float64):
            torch.testing.assert_close(kernel(images, bandwidth=h)(z, sigma), end(z, sigma), rtol=0, atol=1e-9)


def test_a_truncated_covariance_still_sees_every_pixel():
    """Components cut from Sigma have K = sigma^2: at h = 0 nothing is lost."""
    images = image_set("smooth", 60)
    stats = scorelens.fit_gaussian(images).truncated(rank=5)
    z = noisy(images, 0.3, dtype=torch.float64)[0]
    torch.testing.assert_close(kernel(images, bandwidth=0.0, stats=stats)(z, 0.3),
                               scorelens.build_denoiser("optimal", images)(z, 0.3), rtol=0, atol=1e-9)


def test_bandwidth_may_depend_on_the_noise_level():
    images = image_set("smooth", 40)
    model = kernel(images, bandwidth=lambda sigma: 1.0 if sigma > 1 else 0.0)
    for sigma, h in ((2.0, 1.0), (0.5, 0.0)):
        z = noisy(images, sigma)[0]
        torch.testing.assert_close(model(z, sigma), kernel(images, bandwidth=h)(z, sigma), rtol=0, atol=0)


@pytest.mark.parametrize("h", [0.3, "auto"])
def test_chunks_and_batches_change_nothing(h):
    images = image_set("smooth", 53)
    whole, tight = kernel(images, bandwidth=h), kernel(images, bandwidth=h, memory=5000)
    for sigma in SIGMAS[4:]:
        z = noisy(images, sigma, count=7)[0]
        expected = whole(z, sigma)
        torch.testing.assert_close(tight(z, sigma), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.cat([whole(one, sigma) for one in z.split(1)]), expected, rtol=0, atol=1e-5)


def test_images_rotated_once_are_kept_by_their_content(monkeypatch, fresh_cache):
    """The file that large data take: float32 in, the same answer; made once; another one for other data; float64
    input does without it."""
    images, other = image_set("smooth", 60), image_set("random", 60)
    z = noisy(images, 0.5)[0]
    expected = [kernel(i, bandwidth=0.4)(z, 0.5) for i in (images, other)]
    monkeypatch.setattr(kernel_module, "SMALL", 0)
    monkeypatch.setattr(rotation, "CHUNK", 17)
    for _ in range(2):
        for i, answer in zip((images, other), expected, strict=True):
            torch.testing.assert_close(kernel(i, bandwidth=0.4)(z, 0.5), answer, rtol=0, atol=2e-6)
            assert len(list((fresh_cache / "rotated").glob("*.npy"))) <= 2
    assert len(list((fresh_cache / "rotated").glob("*.npy"))) == 2
    truth = brute_force_kernel(z.double().flatten(1).numpy(), floats(images.pixels), 0.5, 0.4)
    np.testing.assert_allclose(kernel(images, bandwidth=0.4)(z.double(), 0.5).flatten(1).numpy(), truth, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("h", WIDTHS)
@pytest.mark.parametrize("sigma", [0.15, 0.6, 5.0])
def test_gradient_equals_finite_differences(h, sigma):
    images = image_set("smooth", 20, (1, 3, 4))
    model = kernel(images, bandwidth=h, memory=4000)
    z = noisy(images, sigma, count=2, dtype=torch.float64)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model(z, sigma), z, eps=1e-6, atol=1e-6, rtol=1e-4)


def test_gradient_is_the_closed_form():
    """d x0_hat / dz = h^2 Sigma K^-1 + sigma^2 K^-1 Cov_w(m) K^-1."""
    images, sigma, h = image_set("smooth", 30, (1, 3, 4)), 0.8, 0.4
    x = floats(images.pixels)
    covariance = np.cov(x, rowvar=False)
    inverse = np.linalg.inv(h**2 * covariance + sigma**2 * np.eye(12))
    m = x.mean(0) + np.sqrt(1 - h**2) * (x - x.mean(0))
    z = x[0] + 0.1
    weights = softmax(np.array([-(z - mi) @ inverse @ (z - mi) / 2 for mi in m]))
    centred = m - weights @ m
    spread = centred.T @ (weights[:, None] * centred)
    expected = h**2 * covariance @ inverse + sigma**2 * inverse @ spread @ inverse
    model = kernel(images, bandwidth=h)
    jacobian = torch.autograd.functional.jacobian(lambda v: model(v.view(1, 1, 3, 4), sigma).flatten(),
                                                  torch.from_numpy(z))
    np.testing.assert_allclose(jacobian.numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("bandwidth", ["auto", 0.0, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 5, 3)])
def test_every_property(bandwidth, shape):
    scorelens.check_denoiser(kernel(image_set("smooth", 40, shape), bandwidth=bandwidth))


@pytest.mark.parametrize("h", [-0.1, 1.1, float("nan")])
def test_impossible_bandwidths_are_refused(h):
    images = image_set("smooth", 40)
    with pytest.raises(scorelens.ScorelensError, match="bandwidth must be between 0 .* and 1"):
        kernel(images, bandwidth=h)
    with pytest.raises(scorelens.ScorelensError, match="bandwidth must be between 0 .* and 1"):
        kernel(images, bandwidth=lambda sigma: h)(images[:1], 1.0)


def test_an_unknown_bandwidth_is_refused():
    with pytest.raises(scorelens.ScorelensError, match="unknown bandwidth 'atuo', did you mean 'auto'"):
        bandwidth_rule("atuo")
