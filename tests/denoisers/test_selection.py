"""Options chosen by held-out error: the choice is the least error, uses the data alone, and is kept by content."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers import DENOISERS, selection
from scorelens.denoisers.locality import at_scales
from scorelens.denoisers.multiscale import THRESHOLDS, convex_weights, multiscale
from scorelens.denoisers.selection import CANDIDATES, LEVELS, STARTS, HeldOut, held_out
from tests.ground_truth.cases import image_set

LOW = LEVELS[7]


@pytest.fixture(scope="module")
def images():
    return image_set("smooth", 80, (1, 5, 6))


def brute_force_errors(images, name, option, sigma, **others):
    """Mean squared error of each candidate on the held-out images, image by image."""
    part = held_out(images)
    errors = []
    for value in CANDIDATES[option]:
        model = scorelens.build_denoiser(name, part.rest, **{option: value}, **others)
        squares = [(model(x[None] + sigma * eps[None], sigma)[0] - x).square().mean().item()
                   for x, eps in zip(part.x0, part.noise, strict=True)]
        errors.append(sum(squares) / len(squares))
    return errors


@pytest.mark.parametrize(("name", "option"), [("locality", "threshold"), ("locality", "temperature"),
                                              ("optimal", "temperature"), ("soft-locality", "temperature")])
def test_the_chosen_value_has_the_least_held_out_error(images, name, option):
    model = scorelens.build_denoiser(name, images, **{option: "auto"})
    truth = brute_force_errors(images, name, option, LOW)
    (choice,) = model.choices(LOW)
    np.testing.assert_allclose(list(choice.errors.values()), truth, rtol=1e-4)
    assert model.values(LOW) == {option: CANDIDATES[option][int(np.argmin(truth))]}


@pytest.mark.parametrize("name", ["kernel", "kernel-locality"])
def test_the_bandwidth_is_chosen_by_default(images, name):
    model = scorelens.build_denoiser(name, images)
    truth = brute_force_errors(images, name, "bandwidth", LOW)
    assert model.values(LOW) == {"bandwidth": CANDIDATES["bandwidth"][int(np.argmin(truth))]}
    assert DENOISERS[name](images).values(LOW) == model.values(LOW)


@pytest.mark.slow
def test_several_options_are_chosen_one_after_the_other(images):
    """The threshold with the bandwidth of STARTS, then the bandwidth with the chosen threshold."""
    first, second = scorelens.build_denoiser("kernel-locality", images, threshold="auto").choices(LOW)
    thresholds = brute_force_errors(images, "kernel-locality", "threshold", LOW, bandwidth=STARTS["bandwidth"])
    best = CANDIDATES["threshold"][int(np.argmin(thresholds))]
    bandwidths = brute_force_errors(images, "kernel-locality", "bandwidth", LOW, threshold=best)
    np.testing.assert_allclose([*first.errors.values(), *second.errors.values()], [*thresholds, *bandwidths], rtol=1e-4)
    assert (first.value, second.value) == (best, CANDIDATES["bandwidth"][int(np.argmin(bandwidths))])


def test_too_few_images_to_hold_any_out_have_the_starting_value():
    images = image_set("smooth", 2, (1, 3, 4))
    assert scorelens.build_denoiser("kernel", images).values(LOW) == {"bandwidth": STARTS["bandwidth"]}


def test_patch_sizes_are_those_that_fit_into_the_image(images):
    model = scorelens.build_denoiser("ls", images, patch_size="auto")
    (choice,) = model.choices(LOW)
    assert tuple(choice.errors) == (3, 5, 7) and choice.value in choice.errors


def test_all_images_serve_once_the_value_is_chosen(images):
    model = scorelens.build_denoiser("locality", images, threshold="auto")
    z = images[:3] + 0.5 * scorelens.seeded_noise(images.shape, range(3))
    fixed = scorelens.build_denoiser("locality", images, threshold=model.values(0.5)["threshold"])
    torch.testing.assert_close(model(z, 0.5), fixed(z, 0.5), rtol=0, atol=0)
    pixels = torch.tensor([4, 17])
    torch.testing.assert_close(model.at(z, 0.5, pixels), fixed(z, 0.5).flatten(1)[:, pixels], rtol=0, atol=1e-5)
    scorelens.check_denoiser(model)


def test_the_held_out_part_is_seeded_and_is_not_used_to_predict_itself(images):
    part = held_out(images)
    assert len(part.x0) + len(part.rest) == len(images) and len(part.x0) == 20
    held, rest = ({x.numpy().tobytes() for x in some[:]} for some in (part.x0, part.rest))
    assert not held & rest and held | rest == {x.numpy().tobytes() for x in images[:]}
    held_out.cache_clear()
    torch.testing.assert_close(held_out(images).x0, part.x0, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 4, 5)])
def test_large_sets_are_measured_on_few_squares_of_outputs(monkeypatch, shape):
    images = image_set("smooth", 80, shape)
    monkeypatch.setattr(selection, "WORK", 3 * 4 * 10 * len(images) * images.dim)
    monkeypatch.setattr(selection, "FEWEST", 4)
    held_out.cache_clear()
    part = held_out(images)
    held_out.cache_clear()
    c, h, w = shape
    assert len(part.x0) == 10 and len(part.outputs) == len(part.outputs.unique()) < images.dim
    pixels = {(k % (h * w) // w, k % w) for k in part.outputs.tolist()}
    assert len(pixels) * c == len(part.outputs)  # all channels
    squares = {(row // 2, column // 2) for row, column in pixels}
    assert len(squares) == 4
    assert pixels == {(row, column) for row in range(h) for column in range(w) if (row // 2, column // 2) in squares}


def test_a_choice_is_made_once(images, fresh_cache, monkeypatch):
    first = scorelens.build_denoiser("locality", images, threshold="auto").choices(LOW)
    monkeypatch.setattr(HeldOut, "predict_all", lambda *_: pytest.fail("predicted again"))
    assert scorelens.build_denoiser("locality", images, threshold="auto").choices(LOW) == first


def test_only_missing_candidates_are_predicted(images, fresh_cache, monkeypatch):
    """And the others are those of the cache, in their own order."""
    whole = scorelens.build_denoiser("locality", images, threshold="auto").choices(LOW)
    files = sorted((fresh_cache / "held-out").glob("*.safetensors"))
    for file in files[::2]:
        file.unlink()
    counts, predict = [], HeldOut.predict_all
    monkeypatch.setattr(HeldOut, "predict_all", lambda self, models, sigma: counts.append(len(models)) or predict(
        self, models, sigma))
    again = scorelens.build_denoiser("locality", images, threshold="auto").choices(LOW)
    assert counts == [len(files[::2])]
    np.testing.assert_allclose(list(again[0].errors.values()), list(whole[0].errors.values()), rtol=1e-5)


@pytest.mark.parametrize("sigma", [LEVELS[2], LOW, LEVELS[-1]])
def test_nested_masks_in_one_pass_are_the_masks_one_by_one(images, sigma):
    models = [scorelens.build_denoiser("locality", images, threshold=threshold) for threshold in THRESHOLDS]
    z, pixels = images[:3] + sigma * scorelens.seeded_noise(images.shape, range(3)), torch.tensor([17, 4, 22])
    expected = torch.stack([model(z, sigma).flatten(1)[:, pixels] for model in models])
    torch.testing.assert_close(at_scales(models, z, sigma, pixels), expected, rtol=0, atol=1e-5)


def test_multiscale_shares_the_predictions_of_the_automatic_threshold(images, fresh_cache, monkeypatch):
    scorelens.build_denoiser("locality", images, threshold="auto").choices(LOW)
    counts, predict = [], HeldOut.predict_all
    monkeypatch.setattr(HeldOut, "predict_all", lambda self, models, sigma: counts.append(len(models)) or predict(
        self, models, sigma))
    multiscale(images).weights(LOW)
    assert counts == [1]  # the Wiener filter


def test_options_without_content_to_tell_apart_are_refused(images):
    """The cache could mistake one network or operator for another."""
    with pytest.raises(scorelens.ScorelensError, match="operators must be a number, a text or statistics, got Tensor"):
        scorelens.build_denoiser("generalized", images, operators=torch.eye(30), temperature="auto")


def test_a_calibration_file_is_told_by_its_content(images, tmp_path):
    path, names = tmp_path / "sizes.txt", set()
    for text in ("one", "two"):
        path.write_text(text)
        names.add(selection._content("patch_size", str(path)))
    assert len(names) == 2


@pytest.mark.e2e
def test_the_choice_looks_at_no_network():
    code = """if True:
        import sys, scorelens
        images = scorelens.load_images("digits", limit=60)
        for model in (scorelens.build_denoiser("locality", images, threshold="auto"),
                      scorelens.build_denoiser("kernel-locality", images, threshold="auto"),
                      scorelens.build_denoiser("kernel", images), scorelens.build_denoiser("multiscale", images)):
            model(images[:2], 0.5)
        assert "diffusers" not in sys.modules  # without which no network can be built or loaded
        """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_multiscale_is_the_weighted_mean_of_its_scales(images):
    model, z = multiscale(images), images[:3] + LOW * scorelens.seeded_noise(images.shape, range(3))
    weights = model.weights(LOW)
    assert (weights >= 0).all() and weights.sum().item() == pytest.approx(1)
    models = [scorelens.build_denoiser("locality", images, threshold=threshold) for threshold in THRESHOLDS]
    models.append(scorelens.build_denoiser("wiener", images))
    mean = sum(weight * each(z, LOW) for weight, each in zip(weights.tolist(), models, strict=True))
    torch.testing.assert_close(model(z, LOW), mean, rtol=0, atol=1e-6)
    pixels = torch.tensor([17, 4, 22])
    torch.testing.assert_close(model.at(z, LOW, pixels), mean.flatten(1)[:, pixels], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kept", [[3], [len(THRESHOLDS)], [1, len(THRESHOLDS)]])
def test_multiscale_with_some_weights_alone(images, kept):
    """The Wiener filter alone, thresholds without it, and both; with gradients."""
    weights = torch.zeros(len(THRESHOLDS) + 1, dtype=torch.float64)
    weights[kept] = 1 / len(kept)
    posterior = multiscale(images).scales[kept[0]].posterior(LOW) if kept[0] < len(THRESHOLDS) else None
    model = replace(multiscale(images), weights=lambda sigma: weights, stacked=lambda sigma: posterior)
    models = [scorelens.build_denoiser("locality", images, threshold=threshold) for threshold in THRESHOLDS]
    models.append(scorelens.build_denoiser("wiener", images))
    z = (images[:3] + LOW * scorelens.seeded_noise(images.shape, range(3))).requires_grad_()
    expected = sum(models[k](z, LOW) for k in kept) / len(kept)
    torch.testing.assert_close(model(z, LOW), expected, rtol=0, atol=1e-6)
    gradients = [torch.autograd.grad(out[:, 0, 2, 3].sum(), z)[0] for out in (model(z, LOW), expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


def test_multiscale_is_at_least_as_good_as_each_scale_on_the_held_out_images(images):
    part, model = held_out(images), multiscale(images)
    weights = model.weights(LOW)
    scales = torch.stack([*(part.predict(scorelens.build_denoiser("locality", part.rest, threshold=threshold), LOW)
                            for threshold in THRESHOLDS),
                          part.predict(scorelens.build_denoiser("wiener", part.rest), LOW)])
    mixed = (weights.float()[:, None, None] * scales).sum(dim=0)
    assert (mixed - part.truth()).square().mean() <= (scales - part.truth()).square().mean(dim=(1, 2)).min() + 1e-7


@pytest.mark.parametrize("seed", range(5))
def test_weights_equal_a_search_over_the_simplex(seed):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(4, 6, generator=generator)
    predictions = truth + torch.randn(3, 4, 6, generator=generator) * torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1)
    grid = torch.linspace(0, 1, 101)
    simplex = torch.tensor([(a, b, 1 - a - b) for a in grid for b in grid if a + b <= 1 + 1e-6])
    errors = (torch.einsum("sk,knq->snq", simplex, predictions) - truth).square().mean(dim=(1, 2))
    weights = convex_weights(predictions, truth)
    best = (torch.einsum("k,knq->nq", weights.float(), predictions) - truth).square().mean()
    assert best <= errors.min() + 1e-6
    torch.testing.assert_close(weights.float(), simplex[errors.argmin()], rtol=0, atol=0.02)
