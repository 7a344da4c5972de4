"""Held-out errors rank formulas: of fixed ones against loops, of chosen ones as those of the choice."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers.held_out_error import held_out_error, ranked
from scorelens.denoisers.selection import CANDIDATES, LEVELS, HeldOut, held_out
from tests.ground_truth.cases import image_set

LOW = LEVELS[7]


@pytest.fixture(scope="module")
def images():
    return image_set("smooth", 80, (1, 5, 6))


def by_hand(images, name, sigma, **options):
    part = held_out(images)
    model = scorelens.build_denoiser(name, part.rest, **options)
    return np.mean([(model(x[None] + sigma * eps[None], sigma)[0] - x).square().mean().item()
                    for x, eps in zip(part.x0, part.noise, strict=True)])


@pytest.mark.parametrize(("name", "options"), [("wiener", {}), ("optimal", {}), ("locality", {"threshold": 0.1}),
                                               ("kernel", {"bandwidth": 0.3})])
def test_the_error_of_a_formula_is_that_of_the_remaining_images(images, name, options):
    expected = by_hand(images, name, LOW, **options)
    assert held_out_error(name, images, LOW, **options) == pytest.approx(expected, rel=1e-4)
    assert held_out_error(name, images, LOW * 1.1, **options) == held_out_error(name, images, LOW, **options)


def test_an_error_is_computed_once(images, fresh_cache, monkeypatch):
    first = held_out_error("soft-locality", images, LOW)
    monkeypatch.setattr(HeldOut, "predict_all", lambda *_: pytest.fail("predicted again"))
    assert held_out_error("soft-locality", images, LOW) == first


def test_the_error_of_a_choice_is_the_least_of_its_candidates(images):
    errors = [held_out_error("locality", images, LOW, threshold=value) for value in CANDIDATES["threshold"]]
    assert held_out_error("locality", images, LOW, threshold="auto") == pytest.approx(min(errors), rel=1e-4)


def test_the_error_of_a_mixture_is_that_of_its_weights(images):
    part, model = held_out(images), scorelens.build_denoiser("multiscale", images)
    weights = model.weights(LOW)
    specs = [("wiener", {}) if name == "wiener" else ("locality", {"threshold": float(name)})
             for name in model.chosen([LOW])[0]["weights"]]
    mixed = sum(w * part.predict(scorelens.build_denoiser(name, part.rest, **options), LOW)
                for w, (name, options) in zip(weights.tolist(), specs, strict=True))
    expected = (mixed - part.truth()).square().mean().item()
    assert held_out_error("multiscale", images, LOW) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_formulas_are_ranked_by_error_relative_to_the_linear_filter(images):
    names = ["optimal", "wiener", "locality:threshold=0.1"]
    ratios = {name: [by_hand(images, *spec, level, **options) / by_hand(images, "wiener", level) for level in LEVELS]
              for name, (spec, options) in zip(names, ((["optimal"], {}), (["wiener"], {}),
                                                       (["locality"], {"threshold": 0.1})), strict=True)}
    found = ranked(names, images)
    assert found == pytest.approx({name: np.exp(np.mean(np.log(each))) for name, each in ratios.items()}, rel=1e-3)
    assert list(found) == sorted(found, key=lambda name: found[name]) and found["wiener"] == pytest.approx(1)
    with pytest.raises(scorelens.ScorelensError, match="names several denoisers"):
        ranked(["locality:threshold=0.1/0.2"], images)


def test_too_few_images_rank_last():
    assert ranked(["kernel"], image_set("smooth", 2, (1, 3, 4))) == {"kernel": torch.inf}
