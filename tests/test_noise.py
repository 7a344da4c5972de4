import pytest
import torch

import scorelens
from scorelens.noise import ddim_timesteps


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
