"""Guidance: against diffusers' own pipeline, autograd, and the exact answer for Gaussian data."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline
from torch.distributions import MultivariateNormal

from scorelens import ScorelensError, build_denoiser, fit_gaussian, guided, load_network, sample, seeded_noise
from scorelens.analysis.guidance import Guidance, choose_guidance, contrastive_components, linear_guidance
from scorelens.data.edits import only_classes
from scorelens.data.images import ImageSet
from scorelens.jacobian import sensitivity
from scorelens.noise import beta_schedule, ddim_sigmas
from tests.networks.makers import tiny_dit, tiny_unet

SHAPE, SIGMA, WEIGHT = (1, 2, 3), 0.7, 2.5


@pytest.fixture(scope="module")
def two_classes() -> ImageSet:
    """Gaussian data of two classes that differ in mean and covariance."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(60, 6)) @ rng.normal(size=(6, 6)) * 0.2 + shift for shift in (-0.3, 0.4)]
    pixels = np.concatenate(parts).astype(np.float32).reshape(-1, *SHAPE)
    return ImageSet(pixels, "two classes", labels=np.repeat([0, 1], 60))


def noisy(count: int = 4) -> torch.Tensor:
    return 0.5 * seeded_noise(SHAPE, range(count), dtype=torch.float64)


def wieners(images: ImageSet) -> tuple:
    return build_denoiser("wiener", images, classes=[1]), build_denoiser("wiener", images)


def moments(images: ImageSet) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(images.pixels.reshape(len(images), -1)).double()
    return x.mean(0), torch.cov(x.T)


def gaussians(images: ImageSet) -> list[MultivariateNormal]:
    """The noisy images of class 1, and of both classes, as Gaussians."""
    return [MultivariateNormal(mean, covariance + SIGMA**2 * torch.eye(6, dtype=torch.float64))
            for mean, covariance in map(moments, (only_classes(images, [1]), images))]


@pytest.mark.parametrize("weight", [-1.0, 0.0, 1.0, 2.5])
def test_guided_wiener_is_exact_for_gaussians(two_classes: ImageSet, weight: float) -> None:
    """Tweedie for p_c^w p^(1 - w): x0_hat = z + sigma^2 grad (w log p_c + (1 - w) log p)."""
    z = noisy().requires_grad_()
    conditional, everything = gaussians(two_classes)
    flat = z.flatten(1)
    log_density = weight * conditional.log_prob(flat) + (1 - weight) * everything.log_prob(flat)
    score, = torch.autograd.grad(log_density.sum(), z)
    expected = z.detach() + SIGMA**2 * score
    torch.testing.assert_close(guided(*wieners(two_classes), weight)(z.detach(), SIGMA), expected, rtol=0, atol=1e-6)


def test_linear_guidance_in_its_two_parts(two_classes: ImageSet) -> None:
    """c - u = (I - A)(mu_c - mu) + (A_c - A)(z - mu_c), with the matrices written out."""
    z, eye = noisy(), torch.eye(6, dtype=torch.float64)
    (mean_c, cov_c), (mean, cov) = map(moments, (only_classes(two_classes, [1]), two_classes))
    a_c, a = (each @ torch.linalg.inv(each + SIGMA**2 * eye) for each in (cov_c, cov))
    stats = fit_gaussian(only_classes(two_classes, [1])), fit_gaussian(two_classes)
    parts = linear_guidance(*stats, z, SIGMA)
    shift = ((eye - a) @ (mean_c - mean)).view(SHAPE).expand_as(z)
    torch.testing.assert_close(parts.mean_shift, shift, rtol=0, atol=1e-6)
    torch.testing.assert_close(parts.contrast, ((z.flatten(1) - mean_c) @ (a_c - a)).view_as(z), rtol=0, atol=1e-6)
    conditional, unconditional = wieners(two_classes)
    torch.testing.assert_close(parts.direction, conditional(z, SIGMA) - unconditional(z, SIGMA), rtol=0, atol=1e-6)
    values, vectors = contrastive_components(*stats, SIGMA)
    assert values[0] > 0 > values[-1]
    torch.testing.assert_close((vectors * values) @ vectors.T, a_c - a, rtol=0, atol=1e-6)


def test_the_jacobian_of_linear_guidance(two_classes: ImageSet) -> None:
    """Autograd through the guided Wiener filter gives A + w (A_c - A)."""
    model, eye = guided(*wieners(two_classes), WEIGHT), torch.eye(6, dtype=torch.float64)
    a_c, a = (cov @ torch.linalg.inv(cov + SIGMA**2 * eye)
              for _, cov in map(moments, (only_classes(two_classes, [1]), two_classes)))
    field = sensitivity(model, noisy(1), SIGMA, (1, 2))
    torch.testing.assert_close(field.flatten(), (a + WEIGHT * (a_c - a))[5], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["optimal", "locality", "kernel"])
def test_guided_formulas_and_some_of_their_outputs(two_classes: ImageSet, name: str) -> None:
    labels, z = [0, 1, 1, 0], noisy()
    c, u = build_denoiser(name, two_classes, labels=labels), build_denoiser(name, two_classes)
    model = Guidance(tuple(labels), WEIGHT).formula(lambda **chosen: build_denoiser(name, two_classes, **chosen))
    expected = u(z, SIGMA) + WEIGHT * (c(z, SIGMA) - u(z, SIGMA))
    torch.testing.assert_close(model(z, SIGMA), expected, rtol=0, atol=1e-12)
    some = torch.tensor([4, 1])
    torch.testing.assert_close(model.at(z, SIGMA, some), expected.flatten(1)[:, some], rtol=0, atol=1e-9)
    assert model.shape == SHAPE


def test_weights_0_and_1_are_the_plain_denoisers() -> None:
    """The other one is not even called."""
    z, called = noisy(), []
    c, u = (lambda z, sigma, k=k: called.append(k) or z * k for k in (2, 3))
    assert torch.equal(guided(c, u, 0)(z, 1.0), 3 * z) and torch.equal(guided(c, u, 1)(z, 1.0), 2 * z)
    assert called == [3, 2]
    with pytest.raises(ScorelensError, match="finite"):
        guided(c, u, float("nan"))


@pytest.mark.parametrize("out_channels", [2, 4], ids=["plain", "learned variance"])
@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_guided_samples_of_a_dit_are_those_of_diffusers(weight: float, out_channels: int) -> None:
    """DiTPipeline: the guided latents before they are decoded; its null class is 1000."""
    model, labels, steps = tiny_dit(in_channels=2, out_channels=out_channels, num_embeds_ada_norm=1000), [7, 981, 7], 5
    decoded = []
    vae = AutoencoderKL(latent_channels=2, block_out_channels=(4,), norm_num_groups=2)
    vae.decode = lambda latents: decoded.append(latents * vae.config.scaling_factor) or SimpleNamespace(sample=latents)
    pipeline = DiTPipeline(model, vae, DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    pipeline(labels, guidance_scale=weight, num_inference_steps=steps, generator=torch.manual_seed(0), output_type="np")
    network = load_network(model, parametrization="epsilon", schedule=beta_schedule())
    noise = torch.randn(3, 2, 8, 8, generator=torch.manual_seed(0))
    ours = sample(Guidance(tuple(labels), weight).network(network), noise, ddim_sigmas(steps))
    torch.testing.assert_close(ours.steps[-1].z_next, decoded[0], rtol=0, atol=1e-4)


def test_conditional_networks() -> None:
    """A class for all images, or one for each, by number or name; the weights are shared."""
    options = {"parametrization": "epsilon", "schedule": beta_schedule(), "classes": ["cat", "dog"]}
    network = load_network(tiny_unet(num_class_embeds=3), **options)
    assert network.label == 2 and network.conditional("cat").label == 0 and network.conditional(1).label == 1
    z = seeded_noise((1, 8, 8), range(3))
    mixed = network.conditional(["dog", "null", 0])
    apart = [network.conditional(label)(z[k:k + 1], 0.5) for k, label in enumerate(("dog", "null", "cat"))]
    torch.testing.assert_close(mixed(z, 0.5), torch.cat(apart), rtol=0, atol=1e-5)
    assert (mixed(z, 0.5) - network(z, 0.5)).abs().amax(dim=(1, 2, 3))[[0, 2]].min() > 1e-3
    assert mixed._model is network._model and network.label == 2
    for labels, message in (("cow", "no class 'cow'; its labels are cat, dog or null"), ([0, 5], "no class 5")):
        with pytest.raises(ScorelensError, match=message):
            network.conditional(labels)
    with pytest.raises(ScorelensError, match="3 labels were given for 2 noisy images"):
        mixed(z[:2], 0.5)
    with pytest.raises(ScorelensError, match="not conditional on classes"):
        load_network(tiny_unet(), parametrization="x0", schedule=beta_schedule()).conditional(1)
    with pytest.raises(ScorelensError, match="3 class embeddings, but 1 classes were given"):
        load_network(tiny_unet(num_class_embeds=3), **{**options, "classes": ["cat"]})


@pytest.mark.parametrize("keyword", ["class_labels", "y"])
def test_callables_with_labels(keyword: str) -> None:
    """The parameter for classes goes by several names; a tensor of noise levels keeps each image's class."""
    def model(z: torch.Tensor, sigma: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        return z * 0 + options[keyword].view(-1, 1, 1, 1) + sigma / 10
    named = {"y": lambda z, sigma, y: model(z, sigma, y=y),
             "class_labels": lambda z, sigma, class_labels: model(z, sigma, class_labels=class_labels)}[keyword]
    network = load_network(named, parametrization="denoised", classes=["a", "b"], null=7)
    out = network.conditional(["b", "a", "null"])(torch.zeros(3, 1, 1, 1), torch.tensor([1.0, 2.0, 1.0]))
    torch.testing.assert_close(out.flatten(), torch.tensor([1.1, 0.2, 7.1]))


def test_labels_are_repeated(two_classes: ImageSet) -> None:
    assert choose_guidance(two_classes, (), None, 4) is None
    assert choose_guidance(two_classes, ["1", 0], 3.0, 5) == Guidance((1, 0, 1, 0, 1), 3.0)
    assert choose_guidance(two_classes, [1], None, 5) == Guidance((1,), 1.0)
    refused = (((), "guidance needs classes"), ([0, 1, 0], "3 labels were given for 2"), ([4], "no class 4"))
    for labels, message in refused:
        with pytest.raises(ScorelensError, match=message):
            choose_guidance(two_classes, labels, 2.0, 2)
