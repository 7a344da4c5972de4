from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from scorelens.sampling import SAMPLERS, gradient_estimation
from tests.ground_truth.cases import image_set


@pytest.fixture(scope="module")
def digits():
    return scorelens.load_images("digits")


def ddim_by_diffusers(model, noise, steps):
    """x_T ~ N(0, I), the scheduler at its defaults, epsilon read off our x0_hat. In float64 its alphas are widened."""
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler()
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.to(noise.dtype)
    scheduler.final_alpha_cumprod = scheduler.final_alpha_cumprod.to(noise.dtype)
    scheduler.set_timesteps(steps)
    x = noise
    for t in scheduler.timesteps:
        a = scheduler.alphas_cumprod[t].double()
        sigma = ((1 - a) / a).sqrt().item()
        z = x / a.sqrt().to(x.dtype)
        epsilon = (z - model(z, sigma)) / sigma
        x = scheduler.step(epsilon, t, x).prev_sample
    return x


@pytest.mark.slow
@pytest.mark.parametrize("steps", [10, 50])
@pytest.mark.parametrize(("name", "dtype", "tolerance"), [
    ("wiener", torch.float32, 1e-5), ("wiener", torch.float64, 1e-8),
    ("locality", torch.float32, 1e-3), ("locality", torch.float64, 1e-8)])
def test_sample_equals_diffusers_ddim(digits, steps, name, dtype, tolerance):
    model = scorelens.build_denoiser(name, digits)
    noise = scorelens.seeded_noise(digits.shape, range(4), dtype=dtype)
    ours = scorelens.sample(model, noise, scorelens.ddim_sigmas(steps)).images
    torch.testing.assert_close(ours, ddim_by_diffusers(model, noise, steps), rtol=0, atol=tolerance)


def test_wiener_trajectory_scales_each_component():
    """Without clipping, a step from sigma to sigma' multiplies component k of z - mu by
    (lambda_k^2 + sigma sigma') / (lambda_k^2 + sigma^2)."""
    images = image_set("smooth", 60)
    stats = scorelens.fit_gaussian(images)
    noise = scorelens.seeded_noise(images.shape, range(3), dtype=torch.float64)
    result = scorelens.sample(scorelens.build_denoiser("wiener", images), noise, scorelens.ddim_sigmas(10), clip=False)
    for step in result.steps:
        following = next((s.sigma for s in result.steps if s.sigma < step.sigma), 0.0)
        before, after = ((z.flatten(1) - stats.mean) @ stats.eigenvectors for z in (step.z, step.z_next))
        factor = (stats.eigenvalues + step.sigma * following) / (stats.eigenvalues + step.sigma**2)
        torch.testing.assert_close(after, before * factor, rtol=1e-9, atol=1e-9)


def test_optimal_returns_training_images_and_locality_does_not(digits):
    noise = scorelens.seeded_noise(digits.shape, range(16))
    rms = {name: scorelens.novelty(scorelens.sample(scorelens.build_denoiser(name, digits), noise,
                                                    scorelens.ddim_sigmas(10)).images, digits).rms
           for name in ("optimal", "locality")}
    assert rms["optimal"].max() < 1e-3
    assert rms["locality"].mean() > 0.1


def test_result_records_the_trajectory(digits):
    noise = scorelens.seeded_noise(digits.shape, range(2))
    sigmas = scorelens.ddim_sigmas(5)
    model = scorelens.build_denoiser("wiener", digits)
    result = scorelens.sample(model, noise, sigmas)
    assert [step.sigma for step in result.steps] == sigmas.tolist()
    torch.testing.assert_close(result.steps[0].z, noise * (1 + sigmas[0].item() ** 2) ** 0.5)
    for step in result.steps:
        torch.testing.assert_close(step.x0_hat, model(step.z, step.sigma), rtol=0, atol=0)
    torch.testing.assert_close(result.images, result.steps[-1].x0_hat.clamp(-1, 1))


def test_only_the_first_term_of_the_step_is_clipped():
    outside = lambda z, sigma: torch.full_like(z, 3.0)  # noqa: E731
    result = scorelens.sample(outside, torch.zeros(1, 1, 2, 2), [2.0, 1.0])
    torch.testing.assert_close(result.steps[1].z, torch.full((1, 1, 2, 2), 1 + 0.5 * (0 - 3.0)))
    free = scorelens.sample(outside, torch.zeros(1, 1, 2, 2), [2.0, 1.0], clip=False)
    torch.testing.assert_close(free.steps[1].z, torch.full((1, 1, 2, 2), 3 + 0.5 * (0 - 3.0)))


def test_trajectory_is_a_generator_that_can_be_stopped(digits):
    calls = []
    model = lambda z, sigma: calls.append(sigma) or z  # noqa: E731
    steps = scorelens.trajectory(model, torch.zeros(1, *digits.shape), scorelens.ddim_sigmas(10))
    next(steps)
    assert len(calls) == 1


def gaussian_flow_error(sampler, n, top=5.0, low=0.1):
    """What n steps of a sampler on a geometric grid miss of the exact flow: on Gaussian data dz/dsigma is linear, and
    component k of z - mu goes with sqrt(lambda^2 + sigma^2)."""
    images = image_set("smooth", 60)
    stats = scorelens.fit_gaussian(images)
    z = scorelens.seeded_noise(images.shape, range(2), dtype=torch.float64) * (1 + top**2) ** 0.5
    factor = ((stats.eigenvalues + low**2) / (stats.eigenvalues + top**2)).sqrt()
    steps = list(sampler(scorelens.build_denoiser("wiener", images), z, np.geomspace(top, low, n + 1).tolist(), False))
    start, end = ((step.z.flatten(1) - stats.mean) @ stats.eigenvectors for step in (steps[0], steps[-1]))
    return end - start * factor


def gain(sampler):
    """By how much the error falls with twice the steps: 2 at first order, 4 at second."""
    return (gaussian_flow_error(sampler, 40).abs().max() / gaussian_flow_error(sampler, 80).abs().max()).item()


def test_heun_converges_faster_than_euler():
    assert gain(SAMPLERS["euler"]) == pytest.approx(2, rel=0.15)
    assert gain(SAMPLERS["heun"]) == pytest.approx(4, rel=0.25)


def test_gradient_estimation_by_its_definition():
    """Permenter & Yuan's algorithm with mu = 0, all gradients kept; the final image is clipped, the steps never."""
    images = image_set("smooth", 40)
    optimal = scorelens.build_denoiser("optimal", images)
    model = lambda z, sigma: 3 * optimal(z, sigma)  # noqa: E731  (it leaves [-1, 1], so that clipping would show)
    noise, sigmas = scorelens.seeded_noise(images.shape, range(3), dtype=torch.float64), [6.0, 2.5, 1.4, 0.5, 0.3]
    states, gradients = [noise * 37**0.5], []
    for k, sigma in enumerate(sigmas):
        gradients.append((states[k] - model(states[k], sigma)) / sigma)
        average = 2 * gradients[k] - gradients[k - 1] if k > 0 else gradients[0]
        states.append(states[k] + ([*sigmas, 0.0][k + 1] - sigma) * average)
    for clip in (True, False):
        result = scorelens.sample(model, noise, sigmas, sampler="gradient-estimation", clip=clip)
        assert [step.sigma for step in result.steps] == sigmas
        for step, (z, z_next) in zip(result.steps, pairwise(states), strict=True):
            torch.testing.assert_close(step.z, z, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(step.x0_hat, model(step.z, step.sigma), rtol=0, atol=0)
            torch.testing.assert_close(step.z_next, z_next, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(result.images, states[-1].clamp(-1, 1) if clip else states[-1])


def test_gradient_estimation_with_gamma_1_is_euler():
    images = image_set("smooth", 40)
    model, sigmas = scorelens.build_denoiser("optimal", images), scorelens.ddim_sigmas(8).tolist()
    z = sigmas[0] * scorelens.seeded_noise(images.shape, range(3), dtype=torch.float64)
    ours, plain = gradient_estimation(model, z, sigmas, False, gamma=1), SAMPLERS["euler"](model, z, sigmas, False)
    for step, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(step.z_next, other.z_next, rtol=1e-10, atol=1e-10)


def test_gradient_estimation_beats_euler_at_few_steps():
    for n in (5, 8):
        errors = [gaussian_flow_error(SAMPLERS[name], n).norm() for name in ("gradient-estimation", "euler")]
        assert errors[0] < 0.65 * errors[1]


def test_gradient_estimation_is_of_first_order_and_errs_opposite_to_euler():
    """2 eps_k - eps_{k-1} is the slope a whole step ahead, Euler's the one at its start, right is half a step ahead:
    only the mean of both errors, and gamma = 3/2, are of second order."""
    ours, plain = SAMPLERS["gradient-estimation"], SAMPLERS["euler"]
    assert gain(ours) == pytest.approx(2, rel=0.15)
    assert gain(partial(gradient_estimation, gamma=1.5)) == pytest.approx(4, rel=0.1)
    half = (gaussian_flow_error(ours, 80) + gaussian_flow_error(plain, 80)) / 2
    assert half.norm() < 0.05 * gaussian_flow_error(plain, 80).norm()


def test_a_final_zero_may_be_given(digits):
    model, noise = scorelens.build_denoiser("wiener", digits), scorelens.seeded_noise(digits.shape, range(1))
    torch.testing.assert_close(scorelens.sample(model, noise, [3.0, 1.0, 0.0]).images,
                               scorelens.sample(model, noise, [3.0, 1.0]).images, rtol=0, atol=0)


@pytest.mark.parametrize(("sigmas", "message"), [
    ([], "no noise levels"), ([1.0, 2.0], "must decrease"), ([1.0, -0.5], "> 0"), ([float("nan")], "> 0"),
    ([2.0, 0.0, 1.0], "> 0")])
def test_impossible_noise_levels_are_refused(digits, sigmas, message):
    with pytest.raises(scorelens.ScorelensError, match=message):
        scorelens.sample(lambda z, s: z, torch.zeros(1, *digits.shape), sigmas)


def test_an_unknown_sampler_is_refused_with_the_nearest_name():
    with pytest.raises(scorelens.ScorelensError, match="did you mean 'heun'"):
        scorelens.trajectory(lambda z, s: z, torch.zeros(1, 1, 2, 2), [1.0], sampler="huen")


def test_images_do_not_depend_on_the_batch(digits):
    model = scorelens.build_denoiser("locality", digits)
    together = scorelens.sample(model, scorelens.seeded_noise(digits.shape, range(5)), scorelens.ddim_sigmas(10)).images
    alone = scorelens.sample(model, scorelens.seeded_noise(digits.shape, [3]), scorelens.ddim_sigmas(10)).images
    torch.testing.assert_close(together[3:4], alone, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_all_of_it_on_non_square_colour_images():
    images = ImageSet(np.random.default_rng(0).integers(0, 256, (30, 3, 5, 7)).astype(np.uint8), "colour")
    for name in scorelens.DENOISERS:
        noise = scorelens.seeded_noise(images.shape, range(2))
        result = scorelens.sample(scorelens.build_denoiser(name, images), noise, scorelens.ddim_sigmas(4))
        assert result.images.shape == (2, 3, 5, 7)
        assert result.images.abs().max() <= 1
