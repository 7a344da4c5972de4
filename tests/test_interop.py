"""Closed-form denoisers in diffusers' pipelines and schedulers."""

import diffusers
import numpy as np
import pytest
import torch

import scorelens
from scorelens.interop import AnalyticModel
from scorelens.types import ScorelensError


@pytest.fixture(scope="module")
def wiener():
    return AnalyticModel.build("wiener", "digits")


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("name", ["wiener", "locality"])
def test_the_ddim_pipeline_gives_our_samples(name, prediction):
    model = AnalyticModel.build(name, "digits", prediction_type=prediction)
    pipeline = diffusers.DDIMPipeline(unet=model, scheduler=diffusers.DDIMScheduler(prediction_type=prediction))
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(batch_size=3, generator=generators(range(3)), num_inference_steps=10, output_type="np").images
    noise = scorelens.seeded_noise((1, 8, 8), range(3))
    ours = scorelens.sample(model.denoiser, noise, scorelens.ddim_sigmas(10)).images
    np.testing.assert_allclose(theirs, (ours / 2 + 0.5).permute(0, 2, 3, 1).numpy(), atol=2e-5)


def solve(model, scheduler, noise, steps):
    """Any scheduler's own loop."""
    scheduler.set_timesteps(steps)
    x = noise * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        x = scheduler.step(model(scheduler.scale_model_input(x, t), t).sample, t, x).prev_sample
    return x


SCHEDULERS = {
    "euler": (diffusers.EulerDiscreteScheduler(timestep_spacing="trailing"), (20, 80, 320)),
    "heun": (diffusers.HeunDiscreteScheduler(beta_start=1e-4, beta_end=0.02, timestep_spacing="trailing"),
             (20, 80, 320)),
    "dpm-solver": (diffusers.DPMSolverMultistepScheduler(timestep_spacing="trailing"), (10, 25, 60)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_converge_to_the_solution_of_the_flow(wiener, name):
    """For Gaussian data dz/dsigma = (z - x0_hat)/sigma is solved along each principal component in closed form."""
    scheduler, steps = SCHEDULERS[name]
    noise = scorelens.seeded_noise((1, 8, 8), range(2)).double()
    stats = scorelens.fit_gaussian(scorelens.load_images("digits"))
    sigma = wiener.schedule.sigmas[-1].item()
    start = (noise * (1 + sigma ** 2) ** 0.5).flatten(1) - stats.mean
    shrink = (stats.eigenvalues / (stats.eigenvalues + sigma ** 2)).clamp(min=0).sqrt()
    exact = (stats.mean + (start @ stats.eigenvectors * shrink) @ stats.eigenvectors.T).view(noise.shape)
    errors = [(solve(wiener, scheduler, noise, n) - exact).abs().max().item() for n in steps]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.05, errors


def test_a_saved_model_is_built_again(wiener, tmp_path):
    model = AnalyticModel.build("locality", "digits", data_options={"split": "train"}, threshold=0.05)
    model.save_pretrained(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000
    again = AnalyticModel.from_pretrained(tmp_path)
    x = scorelens.seeded_noise((1, 8, 8), [0])
    assert torch.equal(again(x, 500).sample, model(x, 500).sample)
    assert again.config == model.config and not torch.equal(again(x, 500).sample, wiener(x, 500).sample)


def test_other_data_are_refused(tmp_path):
    def write(seed):
        pixels = np.random.default_rng(seed).integers(0, 256, (20, 4, 4), dtype=np.uint8)
        np.savez(tmp_path / "data.npz", images=pixels)

    write(0)
    AnalyticModel.build("wiener", f"npz:{tmp_path / 'data.npz'}").save_pretrained(tmp_path / "model")
    write(1)
    with pytest.raises(ScorelensError, match="has changed since the model was saved"):
        AnalyticModel.from_pretrained(tmp_path / "model")
    with pytest.raises(ScorelensError, match="contains no model"):
        AnalyticModel.from_pretrained(tmp_path)


def test_any_denoiser_will_do_but_only_built_ones_are_saved(tmp_path):
    model = AnalyticModel(lambda z, sigma: torch.zeros_like(z), (1, 8, 6))
    x = torch.randn(2, 1, 8, 6)
    assert model.config.sample_size == (8, 6)
    (epsilon,) = model(x, torch.tensor([999, 999]), return_dict=False)
    sigma = scorelens.noise.beta_schedule("linear").sigmas[-1].item()
    torch.testing.assert_close(epsilon, x * (1 + sigma ** 2) ** 0.5 / sigma)
    with pytest.raises(ScorelensError, match="cannot be saved"):
        model.save_pretrained(tmp_path)
    with pytest.raises(ScorelensError, match=r"timestep must be one number, or a tensor .* got shape \(3,\)"):
        model(x, torch.tensor([1, 2, 3]))
    with pytest.raises(ScorelensError, match="epsilon"):
        AnalyticModel(model.denoiser, (1, 8, 6), prediction_type="epsilom")


def test_it_goes_where_a_module_goes(wiener):
    model = AnalyticModel(wiener.denoiser, (1, 8, 8))
    assert model.to(torch.float64).dtype == torch.float64 and model.device == torch.device("cpu")
    assert model(torch.zeros(1, 1, 8, 8, dtype=torch.float16), 10).sample.dtype == torch.float16


def test_the_noise_levels_are_saved_too(tmp_path):
    model = AnalyticModel.build("wiener", "digits")
    model.schedule = scorelens.noise.beta_schedule("squaredcos_cap_v2")
    model.save_pretrained(tmp_path)
    again = AnalyticModel.from_pretrained(tmp_path)
    assert again.schedule.sigma(500) == pytest.approx(model.schedule.sigma(500), rel=1e-6)
    assert again.schedule.sigma(500) != pytest.approx(scorelens.noise.beta_schedule("linear").sigma(500), rel=0.01)


def test_the_prediction_is_as_precise_as_what_was_given():
    model = AnalyticModel(lambda z, sigma: z.double() / 2, (1, 8, 8))
    assert model(torch.zeros(2, 1, 8, 8), 10).sample.dtype == torch.float32


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_each_image_may_have_its_own_timestep(wiener, prediction):
    model = AnalyticModel(wiener.denoiser, (1, 8, 8), prediction_type=prediction)
    x, timesteps = scorelens.seeded_noise((1, 8, 8), range(4), dtype=torch.float64), torch.tensor([900, 0, 900, 41])
    alone = torch.cat([model(x[k:k + 1], t).sample for k, t in enumerate(timesteps)])
    torch.testing.assert_close(model(x, timesteps).sample, alone, rtol=1e-12, atol=1e-12)
