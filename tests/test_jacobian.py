"""Sensitivity fields equal finite differences and the closed forms, for every denoiser and for networks."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens import sensitivity
from scorelens.jacobian import pull_back
from scorelens.statistics.masks import locality_masks, wiener_matrix
from scorelens.types import ScorelensError
from tests.ground_truth.cases import image_set

SHAPE = (3, 5, 4)
PIXEL = (1, 2)


@pytest.fixture(scope="module")
def images():
    """Close to each other, so that posteriors are broad and gradients are not zero."""
    return image_set("random", 12, SHAPE)


def noisy(images, sigma, count=2):
    return (images[:count].double() + sigma * scorelens.seeded_noise(SHAPE, range(count), dtype=torch.float64))


def coordinates(channel=None, pixel=PIXEL):
    c, h, w = SHAPE
    return [(k * h + pixel[0]) * w + pixel[1] for k in (range(c) if channel is None else [channel])]


def by_differences(model, z, sigma, coords, step=1e-5):
    """Central differences of the sum of some outputs, one input coordinate at a time, float64."""
    field = torch.zeros_like(z).flatten(1)
    for k in range(field.shape[1]):
        shift = torch.zeros_like(z).flatten(1)
        shift[:, k] = step
        shift = shift.view_as(z)
        up, down = (model(z + s, sigma).flatten(1)[:, coords].sum(dim=1) for s in (shift, -shift))
        field[:, k] = (up - down) / (2 * step)
    return field.view_as(z)


MODELS = {"optimal": {}, "wiener": {}, "locality": {"threshold": 0.2}, "smoothed": {"draws": 3},
          "locality batch-mean": {"threshold": 0.2, "softmax": "batch-mean", "softmax_batch": 5}}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channel", [None, 1])
def test_fields_equal_finite_differences(name, channel, images):
    model, sigma = scorelens.build_denoiser(name.split()[0], images, **MODELS[name]), 1.5
    z = noisy(images, sigma)
    field = sensitivity(model, z, sigma, PIXEL, channel=channel)
    expected = by_differences(model, z, sigma, coordinates(channel))
    assert field.shape == z.shape and expected.abs().max() > 1e-3
    torch.testing.assert_close(field, expected, rtol=1e-6, atol=1e-6 * expected.abs().max().item())


def test_the_field_of_a_network_equals_finite_differences():
    network = scorelens.load_network("digits-unet")
    z = scorelens.seeded_noise((1, 8, 8), range(2), dtype=torch.float64)
    field = sensitivity(network, z, 1.0, (3, 4))
    for k in (3 * 8 + 4, 3 * 8 + 5, 60):
        shift = torch.zeros(1, 64, dtype=torch.float64)
        shift[0, k] = 1e-5
        up, down = (network(z + s.view(1, 1, 8, 8), 1.0)[:, 0, 3, 4] for s in (shift, -shift))
        torch.testing.assert_close(field.flatten(1)[:, k], (up - down) / 2e-5, rtol=1e-5, atol=1e-7)


def test_the_wiener_field_is_a_row_of_the_wiener_matrix(images):
    """Whatever the image: d x0_hat_q / d z = row q of W."""
    model = scorelens.build_denoiser("wiener", images)
    row = wiener_matrix(model.stats, 0.7)[coordinates(2)[0]].double()
    field = sensitivity(model, noisy(images, 0.7), 0.7, PIXEL, channel=2)
    torch.testing.assert_close(field.flatten(1), row.expand(2, -1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.8, 2.0, 10.0])
def test_the_optimal_field_is_the_posterior_covariance(sigma, images):
    """Cov_w(x_q, x) / sigma^2."""
    x, z = images[:].double().flatten(1), noisy(images, sigma)
    field = sensitivity(scorelens.build_denoiser("optimal", images), z, sigma, PIXEL, channel=0)
    (q,) = coordinates(0)
    for one, found in zip(z.flatten(1), field.flatten(1), strict=True):
        w = torch.softmax(-(one - x).square().sum(dim=1) / (2 * sigma**2), dim=0)
        covariance = (w * x[:, q]) @ x - (w @ x[:, q]) * (w @ x)
        torch.testing.assert_close(found, covariance / sigma**2, rtol=1e-6, atol=1e-9)


def test_the_locality_field_is_the_covariance_within_its_mask(images):
    """B_qk Cov_{w^q}(x_q, x_k) / sigma^2, with the weights of output q."""
    sigma, (q,) = 1.5, coordinates(1)
    x, z = images[:].double().flatten(1), noisy(images, sigma)
    keep = locality_masks(scorelens.fit_gaussian(images), sigma, 0.2)[q].double()
    assert 1 < keep.sum() < len(keep)
    field = sensitivity(scorelens.build_denoiser("locality", images, threshold=0.2), z, sigma, PIXEL, channel=1)
    for one, found in zip(z.flatten(1), field.flatten(1), strict=True):
        w = torch.softmax(-((one - x).square() @ keep) / (2 * sigma**2), dim=0)
        covariance = (w * x[:, q]) @ x - (w @ x[:, q]) * (w @ x)
        torch.testing.assert_close(found, keep * covariance / sigma**2, rtol=1e-6, atol=1e-9)


def test_several_pixels_are_the_single_ones(images):
    model, z = scorelens.build_denoiser("optimal", images), noisy(images, 1.0)
    together = sensitivity(model, z, 1.0, [(0, 0), (4, 3)])
    assert together.shape == (2, *z.shape)
    for field, pixel in zip(together, [(0, 0), (4, 3)], strict=True):
        assert torch.equal(field, sensitivity(model, z, 1.0, pixel))


def test_the_field_of_epsilon_and_with_respect_to_x_t(images):
    """eps_hat = (z - x0_hat) / sigma; x_t = z / sqrt(1 + sigma^2)."""
    model, sigma = scorelens.build_denoiser("optimal", images), 1.3
    z = noisy(images, sigma)
    expected = by_differences(lambda z, s: (z - model(z, s)) / s, z, sigma, coordinates())
    torch.testing.assert_close(sensitivity(model, z, sigma, PIXEL, of="epsilon"), expected, rtol=1e-6, atol=1e-7)
    scale = np.sqrt(1 + sigma**2)
    expected = by_differences(lambda x_t, s: model(x_t * scale, s), z / scale, sigma, coordinates())
    torch.testing.assert_close(sensitivity(model, z, sigma, PIXEL, wrt="x_t"), expected, rtol=1e-6, atol=1e-7)


def test_outputs_at_some_pixels_are_those_of_the_whole_image(images):
    model, z = scorelens.build_denoiser("locality", images, threshold=0.2), noisy(images, 1.0).float()
    pixels = torch.tensor([5, 0, 33])
    torch.testing.assert_close(model.at(z, 1.0, pixels), model(z, 1.0).flatten(1)[:, pixels], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("pixel", "channel", "says"), [
    ((5, 0), None, "outside the image of 5x4"), ((0, -1), None, "outside"), ((0, 0), 3, "channels 0-2")])
def test_places_that_do_not_exist_are_named(pixel, channel, says, images):
    with pytest.raises(ScorelensError, match=says):
        sensitivity(scorelens.build_denoiser("wiener", images), noisy(images, 1.0), 1.0, pixel, channel=channel)


def test_a_denoiser_without_gradient_is_named(images):
    with pytest.raises(ScorelensError, match="no gradient"):
        sensitivity(lambda z, sigma: z.detach(), noisy(images, 1.0), 1.0, PIXEL)


@pytest.mark.parametrize("options", [{}, {"of": "epsilon"}, {"wrt": "x_t"}])
def test_each_image_may_have_its_own_noise_level(options, images):
    """For denoisers that compute single outputs, that compute all, and that take only numbers; several pixels too."""
    levels = torch.tensor([2.0, 0.7, 2.0])
    z = images[:3].double() + levels.view(-1, 1, 1, 1) * scorelens.seeded_noise(SHAPE, range(3)).double()
    optimal = scorelens.build_denoiser("optimal", images)
    for model in (optimal, scorelens.build_denoiser("locality", images), lambda z, sigma: optimal(z, float(sigma))):
        alone = torch.cat([sensitivity(model, z[k:k + 1], sigma, [PIXEL, (0, 0)], **options)
                           for k, sigma in enumerate(levels.tolist())], dim=1)
        torch.testing.assert_close(sensitivity(model, z, levels, [PIXEL, (0, 0)], **options), alone)
        torch.testing.assert_close(sensitivity(model, z, levels, PIXEL, **options), alone[0])
    with pytest.raises(ScorelensError, match=r"sigma must be .* got shape \(2,\)"):
        sensitivity(optimal, z, levels[:2], PIXEL)


def test_vector_jacobian_products_with_a_noise_level_for_each_image(images):
    model, levels, z = scorelens.build_denoiser("optimal", images), torch.tensor([0.9, 1.7]), noisy(images, 1.0)
    u = scorelens.seeded_noise(SHAPE, range(2), dtype=torch.float64)
    alone = torch.cat([pull_back(model, z[k:k + 1], sigma, u[k]) for k, sigma in enumerate(levels.tolist())])
    torch.testing.assert_close(pull_back(model, z, levels, u), alone)
