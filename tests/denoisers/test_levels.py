"""One noise level for each image: the same as one call for each, whatever shares a call."""

import pytest
import torch

import scorelens
from scorelens.data.edits import only_classes
from tests.ground_truth.cases import image_set, smooth

LEVELS = torch.tensor([1.5, 0.2, 1.5, 9.0], dtype=torch.float64)


@pytest.fixture(scope="module")
def images():
    return image_set("smooth", 30, (1, 3, 4))


def noisy(images):
    noise = scorelens.seeded_noise(images.shape, range(4), dtype=torch.float64)
    return images[:4].double() + LEVELS.view(-1, 1, 1, 1) * noise


def alone(model, z):
    return torch.cat([model(z[k:k + 1], sigma) for k, sigma in enumerate(LEVELS.tolist())])


@pytest.mark.parametrize("name", scorelens.DENOISERS)
def test_every_denoiser_takes_a_noise_level_for_each_image(name, images):
    """Values and gradients equal those of separate calls."""
    model, z = scorelens.build_denoiser(name, images), noisy(images).requires_grad_()
    u = scorelens.seeded_noise(images.shape, range(4, 8))
    together, separate = model(z, LEVELS), alone(model, z)
    torch.testing.assert_close(together, separate, rtol=0, atol=1e-9)
    gradients = [torch.autograd.grad((x0_hat * u).sum(), z)[0] for x0_hat in (together, separate)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", scorelens.DENOISERS)
def test_the_order_of_the_images_does_not_matter(name, images):
    model, z, order = scorelens.build_denoiser(name, images), noisy(images), torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(model(z[order], LEVELS[order]), model(z, LEVELS)[order], rtol=0, atol=1e-9)
    equal = torch.full((4,), 1.5, dtype=torch.float64)
    torch.testing.assert_close(model(z, equal), model(z, 1.5), rtol=0, atol=1e-9)
    torch.testing.assert_close(model(z, equal[:1]), model(z, 1.5), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["locality", "generalized", "kernel-locality"])
def test_single_outputs_too(name, images):
    model, z, pixels = scorelens.build_denoiser(name, images), noisy(images), torch.tensor([7, 0])
    torch.testing.assert_close(model.at(z, LEVELS, pixels), model(z, LEVELS).flatten(1)[:, pixels], rtol=0, atol=1e-9)


def test_labels_and_noise_levels_go_with_their_image():
    images = scorelens.ImageSet(smooth(30, (1, 3, 4)), "pets", labels=torch.arange(30).numpy() % 2)
    z, labels = noisy(images), [1, 0, 0, 1]
    mixed = scorelens.build_denoiser("optimal", images, labels=labels)(z, LEVELS)
    for k, label in enumerate(labels):
        model = scorelens.build_denoiser("optimal", only_classes(images, [label]))
        torch.testing.assert_close(mixed[k:k + 1], model(z[k:k + 1], LEVELS[k].item()), rtol=0, atol=1e-9)


def test_networks_take_them_as_timesteps_of_one_call():
    network = scorelens.load_network("digits-unet")
    z = LEVELS.view(-1, 1, 1, 1) * scorelens.seeded_noise((1, 8, 8), range(4), dtype=torch.float64)
    torch.testing.assert_close(network(z, LEVELS), alone(network, z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", scorelens.DENOISERS)
@pytest.mark.parametrize(("sigma", "says"), [
    (torch.ones(3), r"sigma must be .* got shape \(3,\)"), (torch.ones(4, 1, 1, 1), r"got shape \(4, 1, 1, 1\)"),
    (torch.tensor([1.0, 1.0, 0.0, 1.0]), "finite number > 0, got 0"), (torch.full((4,), torch.nan), "got nan")])
def test_wrong_shapes_and_values_are_refused(name, sigma, says, images):
    with pytest.raises(scorelens.ScorelensError, match=says):
        scorelens.build_denoiser(name, images)(noisy(images), sigma)
