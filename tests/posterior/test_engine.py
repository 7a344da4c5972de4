import pytest
import torch

import scorelens
from scorelens import progress
from scorelens.posterior import Masks, OwnOutput, Posterior, WholeImage, WholeOutput, engine, posterior_mean
from scorelens.posterior.costs import choose_plan
from scorelens.posterior.engine import Run
from scorelens.posterior.threads import map_threads
from tests.ground_truth.cases import image_set


@pytest.mark.parametrize("memory", [1, 10_000, 10**9])
@pytest.mark.parametrize("plan", ["dense", "sparse", "differences"])
def test_workspace_stays_within_the_budget(memory, plan):
    """A chunk and what is computed from it fit the budget, unless a single image does not."""
    images = image_set("smooth", 500)
    z = torch.zeros(6, 20)
    chosen = choose_plan(Masks(torch.ones(20, 20, dtype=torch.bool), images.shape).plans(z, 1.0), plan).plan
    run = Run(Posterior(WholeImage(), OwnOutput(), images), chosen, 1.0, len(images), memory)
    sizes = [x.shape[1] for x in run.chunks(z, range(500))]
    assert sum(sizes) == 500
    assert max(sizes) == 1 or max(sizes) * 4 * images.dim * 4 <= memory


def test_masks_of_one_pixel_compare_that_pixel_alone():
    """With identity masks each output pixel is its own one-dimensional posterior mean."""
    images = image_set("random", 50)
    x, sigma = images[:].flatten(1).double(), 0.3
    z = torch.rand(2, 1, 4, 5, dtype=torch.float64)
    posterior = Posterior(Masks(torch.eye(20, dtype=torch.bool)), OwnOutput(), images)
    weights = torch.softmax(-(z.flatten(1)[:, None] - x).square() / (2 * sigma**2), dim=1)
    torch.testing.assert_close(posterior_mean(posterior, z, sigma).flatten(1), (weights * x).sum(1), rtol=0, atol=1e-6)


def test_two_images_a_grey_level_apart_are_told_apart_at_the_smallest_sigma():
    """In float32, at D = 3072: the weights of two near-duplicates against the closed form in float64."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (2, 3, 32, 32), generator=rng, dtype=torch.uint8)
    pixels[1] = pixels[0]
    pixels[1, 0, :4, :4] += 1
    images = scorelens.ImageSet(pixels.numpy(), "twins")
    sigma = 0.01
    # the rest of z is far away from both, so that their distances agree in all but the last digits
    z = images[:1] + 0.5 * scorelens.seeded_noise(images.shape, [1])
    z[0, 0, :4, :4] = images[0][0, :4, :4] + 1 / 255
    x = (pixels.double() / 127.5 - 1).flatten(1)
    gap = ((z.double().flatten(1) - x) ** 2).sum(1)
    weight = torch.sigmoid((gap[0] - gap[1]) / (2 * sigma**2)).item()
    assert 0.01 < weight < 0.99
    mean = posterior_mean(Posterior(WholeImage(), WholeOutput(), images), z, sigma)[0].flatten().double()
    changed = (x[1] - x[0]) > 0
    got = ((mean - x[0]) / (x[1] - x[0]).where(changed, 1.0))[changed]
    torch.testing.assert_close(got, torch.full_like(got, weight), rtol=0, atol=2e-5)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": -1.0}, {"softmax_batch": 0}])
def test_impossible_options_are_refused(options):
    posterior = Posterior(WholeImage(), WholeOutput(), image_set("random", 5))
    with pytest.raises(scorelens.ScorelensError, match=next(iter(options))):
        posterior_mean(posterior, torch.zeros(1, 1, 4, 5), 1.0, **options)


def test_progress_moves_within_a_step(monkeypatch):
    seen = []
    monkeypatch.setattr(progress, "fraction", seen.append)
    images = image_set("random", 50)
    scorelens.build_denoiser("optimal", images, memory=2000)(images[:1], 0.5)
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == 1


@pytest.mark.parametrize("name", ["locality", "ls"])
@pytest.mark.parametrize("sigma", [2.0, 0.05])
def test_threads_that_take_spans_of_images_change_nothing(name, sigma, monkeypatch):
    images = image_set("smooth", 50, (3, 6, 5))
    model = scorelens.build_denoiser(name, images)
    z = (images[:3] + sigma * scorelens.seeded_noise(images.shape, range(3))).double()
    whole = model(z, sigma)
    monkeypatch.setattr(engine, "SPAN", 8)
    before = torch.get_num_threads()
    (gradient,) = torch.autograd.grad(model(z.requires_grad_(), sigma).sum(), z)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        results.append(model(z.detach(), sigma))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], whole, rtol=0, atol=1e-12)
    assert gradient.isfinite().all()


def test_an_error_in_a_thread_is_raised_and_leaves_the_number_of_threads():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        list(map_threads(lambda item: 1 // item, [2, 1, 0]))
    assert torch.get_num_threads() == before
    assert list(map_threads(lambda item: torch.is_grad_enabled(), [0, 1])) == [False, False]
