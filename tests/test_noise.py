import math

import pytest
import torch

import scorelens
from scorelens.noise import (
    BETAS,
    FlowSchedule,
    SigmaSchedule,
    beta_schedule,
    ddim_sigmas,
    ddim_timesteps,
    ddpm_alphas,
    given_betas,
    own_sigmas,
)


@pytest.mark.parametrize("n", [1, 3, 10, 50, 1000])
def test_grid_is_that_of_diffusers(n):
    """Leading spacing, linear betas: the same timesteps and sigma^2 = (1 - a) / a, to the last digit."""
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.DDIMScheduler()
    scheduler.set_timesteps(n)
    assert ddim_timesteps(n) == scheduler.timesteps.tolist()
    alphas = scheduler.alphas_cumprod[scheduler.timesteps].double()
    torch.testing.assert_close(scorelens.ddim_sigmas(n), ((1 - alphas) / alphas).sqrt(), rtol=0, atol=0)


def test_ten_steps_end_at_one_hundredth():
    sigmas = scorelens.ddim_sigmas(10)
    assert len(sigmas) == 10
    assert (sigmas.diff() < 0).all()
    assert sigmas[-1].item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("n", [0, 1001])
def test_impossible_numbers_of_steps_are_refused(n):
    with pytest.raises(scorelens.ScorelensError, match="number of steps"):
        scorelens.ddim_sigmas(n)


def test_noise_of_an_image_depends_on_its_seed_alone():
    together = scorelens.seeded_noise((1, 3, 5), seeds=[4, 0, 7])
    alone = scorelens.seeded_noise((1, 3, 5), seeds=range(7, 8))
    torch.testing.assert_close(together[2:], alone, rtol=0, atol=0)
    assert not torch.equal(together[0], together[1])


def test_noise_is_standard_normal():
    noise = scorelens.seeded_noise((3, 16, 16), seeds=range(200))
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.std().item() == pytest.approx(1, abs=0.01)
    assert scorelens.seeded_noise((1, 2, 2), [0], dtype=torch.float64).dtype == torch.float64


def test_no_seeds_are_refused():
    with pytest.raises(scorelens.ScorelensError, match="no seeds"):
        scorelens.seeded_noise((1, 2, 2), [])


@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("settings", [(1e-4, 0.02, 1000), (0.00085, 0.012, 1000), (1e-3, 0.2, 50)])
@pytest.mark.parametrize("kind", BETAS)
def test_schedules_are_those_of_diffusers(kind, settings, zero_snr):
    """To the last digit."""
    diffusers = pytest.importorskip("diffusers")
    start, end, steps = settings
    theirs = diffusers.DDPMScheduler(steps, start, end, kind, rescale_betas_zero_snr=zero_snr)
    ours = beta_schedule(kind, start=start, end=end, steps=steps, zero_snr=zero_snr)
    assert ours.kind == kind and torch.equal(ours.alphas, theirs.alphas_cumprod.double())
    again = given_betas(theirs.betas.tolist())
    assert again.kind == "given" and torch.equal(again.alphas, theirs.alphas_cumprod.double())


def test_the_grid_of_the_paper_is_the_linear_schedule():
    assert torch.equal(beta_schedule().alphas, ddpm_alphas())
    assert torch.equal(beta_schedule().sigmas[[900, 500, 0]], scorelens.ddim_sigmas(10)[[0, 4, 9]])


@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("kind", BETAS)
def test_time_and_sigma_are_inverse(kind, zero_snr):
    """Exact at the steps, increasing between them, and halfway on the scale of log sigma."""
    schedule = beta_schedule(kind, zero_snr=zero_snr)
    sigmas = schedule.sigmas[:-1] if zero_snr else schedule.sigmas
    assert [schedule.time(sigma) for sigma in sigmas.tolist()] == list(range(len(sigmas)))
    for t in (0, 1, 500, len(sigmas) - 2):
        low, high = sigmas[t].item(), sigmas[t + 1].item()
        assert schedule.time(math.sqrt(low * high)) == pytest.approx(t + 0.5, abs=1e-6)
        times = [schedule.time(low * (high / low) ** (k / 10)) for k in range(11)]
        assert times == pytest.approx([t + k / 10 for k in range(11)], abs=1e-6)
        assert sorted(times) == times
    assert schedule.range == (sigmas[0], sigmas[-1])


def test_noise_levels_out_of_range_are_refused():
    """But for rounding, which is taken for the end; pure noise has no sigma."""
    schedule = beta_schedule()
    low, high = schedule.range
    assert schedule.time(low * (1 - 1e-6)) == 0 and schedule.time(high * (1 + 1e-6)) == 999
    for sigma in (low * (1 - 1e-4), high * (1 + 1e-4), math.inf):
        with pytest.raises(scorelens.ScorelensError, match="outside this network's noise levels, 0.010001 to 157.41"):
            schedule.time(sigma)
    last = beta_schedule(zero_snr=True)
    assert last.sigmas[-1] == math.inf and last.range[1] == last.sigmas[-2]
    with pytest.raises(scorelens.ScorelensError, match="outside"):
        last.time(2 * last.range[1])


@pytest.mark.parametrize("sigma", [0.01, 1.0, 30.0])
def test_scales_make_the_networks_input_of_z(sigma):
    """DDPM keeps the variance, scale^2 (1 + sigma^2) = 1; flow matching averages, scale (1 + sigma) = 1; EDM has z."""
    assert beta_schedule().scale(sigma) ** 2 * (1 + sigma ** 2) == pytest.approx(1)
    assert FlowSchedule().scale(sigma) * (1 + sigma) == pytest.approx(1)
    assert FlowSchedule(steps=100).time(sigma) == pytest.approx(100 * sigma / (1 + sigma))
    assert (SigmaSchedule().scale(sigma), SigmaSchedule().time(sigma)) == (1, sigma)


@pytest.mark.parametrize("betas", [[0.1], [0.1, 0.0], [0.0, 0.1], [0.1, -0.1], [0.1, 1.2], [1.0, 0.1], [0.1, math.nan]])
def test_betas_that_are_no_schedule_are_refused(betas):
    with pytest.raises(scorelens.ScorelensError, match="given betas are not a noise schedule"):
        given_betas(betas)


def test_an_unknown_kind_of_betas_is_refused():
    with pytest.raises(scorelens.ScorelensError, match="unknown beta schedule 'cosine'"):
        beta_schedule("cosine")


def test_own_sigmas_are_the_papers_grid_on_a_networks_own_steps():
    """DDPM's own schedule gives ddim_sigmas; another schedule diffusers' DDIM grid of it; a flow has no steps."""
    from diffusers import DDIMScheduler

    assert torch.equal(own_sigmas(beta_schedule(), 10), ddim_sigmas(10))
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    scheduler.set_timesteps(7)
    a = scheduler.alphas_cumprod[scheduler.timesteps].double()
    mine = own_sigmas(beta_schedule("scaled_linear", start=0.00085, end=0.012), 7)
    torch.testing.assert_close(mine, ((1 - a) / a).sqrt(), rtol=1e-12, atol=0)
    assert torch.equal(own_sigmas(FlowSchedule(), 10), ddim_sigmas(10))
