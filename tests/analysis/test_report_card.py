"""The report card: errors on held-out images, beside the closed forms, with paired intervals."""

import json
import re

import numpy as np
import pytest
import torch

import scorelens
from scorelens.analysis import report_card as module_under_test
from scorelens.data.images import ImageSet
from scorelens.metrics import bootstrap, bootstrap_ratio
from scorelens.types import ScorelensError

DIGITS = scorelens.load_images("digits", split="train")
HELD_OUT = scorelens.load_images("digits", split="test")
SIGMAS = [10.0, 1.0, 0.3]


def card(denoiser, **options):
    return scorelens.report_card(denoiser, DIGITS, HELD_OUT, **{"sigmas": SIGMAS, "count": 12, **options})


def shrink(z, sigma):
    """A denoiser written as anyone might: pull towards zero."""
    return z / (1 + sigma**2)


def test_the_errors_of_a_lambda_are_what_one_computes_by_hand():
    found = card(lambda z, sigma: shrink(z, sigma), seed=5)
    for k, sigma in enumerate(SIGMAS):
        for i in range(12):
            x = HELD_OUT[i].double()
            noise = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(5 + i)).double()
            expected = ((x + sigma * noise) / (1 + sigma**2) - x).square().mean()
            assert found.errors[k, i].item() == pytest.approx(expected.item(), rel=1e-5)
    assert found.levels[1].error.mean == pytest.approx(found.errors[1].mean().item())


def test_a_formula_is_once_as_wrong_as_itself():
    """ratio(f, f) = 1, with an interval of no width: the same image and noise on both sides."""
    for name in ("wiener", "optimal"):
        found = card(scorelens.build_denoiser(name, DIGITS))
        for level in found.levels:
            assert vars(level.ratios[name]) == {"mean": 1.0, "low": 1.0, "high": 1.0, "confidence": 0.95}


def test_the_best_formula_has_the_lowest_error_and_decides_who_passes():
    found = card(scorelens.build_denoiser("wiener", DIGITS), count=64)
    for level in found.levels:
        assert level.formulas[level.best] == min(level.formulas.values())
    assert not found.passes  # at low noise digits are far from Gaussian
    best = scorelens.build_denoiser("locality", DIGITS, threshold=0.05)
    assert card(best, formulas=["wiener"]).passes


def test_on_large_data_a_formula_is_measured_on_some_pixels_of_some_images(monkeypatch):
    """The ratio then compares exactly those pixels, of both."""
    monkeypatch.setattr(module_under_test, "WORK", 5 * 40 * len(DIGITS) * DIGITS.dim)  # 5 images, 40 pixels
    monkeypatch.setattr(module_under_test, "FEWEST", 5)
    formula = scorelens.build_denoiser("locality", DIGITS, threshold=0.05)
    found = card(shrink, formulas={"local": formula}, count=20)
    some = found.formulas["local"]
    assert some.errors.shape == (3, 5) and some.coordinates == 40 and found.formulas["wiener"].errors.shape == (3, 20)
    x, noise = HELD_OUT[:5], scorelens.seeded_noise(DIGITS.shape, range(5))
    chosen = np.sort(np.random.default_rng(0).permutation(64)[:40])
    for k, sigma in enumerate(SIGMAS):
        for model, errors in ((formula, some.errors), (shrink, some.denoiser)):
            squares = (model(x + sigma * noise, sigma) - x).square().flatten(1)[:, chosen]
            torch.testing.assert_close(errors[k], squares.mean(dim=1), rtol=1e-4, atol=1e-9)
        level = found.levels[k]
        assert level.formulas["local"] == pytest.approx(level.error.mean / level.ratios["local"].mean)
        assert level.formulas["wiener"] == pytest.approx(found.formulas["wiener"].errors[k].mean().item())


def test_one_sentence_says_how_well_and_what_to_do():
    good = card(scorelens.build_denoiser("wiener", DIGITS)).sentence
    assert re.fullmatch("it beats the linear filter at 0 of 3 noise levels and is nowhere worse; its error is up to "
                        r"1\.\d+ times that of optimal, at sigma 1", good)
    bad = card(lambda z, sigma: z).sentence  # the error is sigma^2
    assert "at sigma 10: expect colour casts" in bad and "times that filter's" in bad
    half = card(lambda z, sigma: scorelens.build_denoiser("wiener", DIGITS)(z, sigma) * (1 if sigma > 0.5 else 0.5))
    assert "at sigma 0.3: train longer there" in half.sentence


def test_intervals_of_a_ratio_are_paired():
    values = torch.rand(40, generator=torch.Generator().manual_seed(0)) + 0.1
    exact = bootstrap_ratio(2 * values, values)
    assert exact.low == pytest.approx(2.0) and exact.high == pytest.approx(2.0)
    single = bootstrap(values)
    assert vars(single) == vars(bootstrap_ratio(values, torch.ones(40)))
    assert single.low < values.mean().item() < single.high
    shuffled = bootstrap_ratio(2 * values.flip(0), values)
    assert shuffled.high - shuffled.low > 0.1


def test_noise_levels_are_the_networks_own():
    network = scorelens.load_network("digits-unet")
    found = scorelens.report_card(network, DIGITS, HELD_OUT, formulas=["wiener"], count=2)
    assert found.sigmas == pytest.approx(scorelens.ddim_sigmas(10).tolist())


def test_images_of_another_shape_are_refused():
    other = ImageSet(np.zeros((4, 3, 8, 8), np.uint8), "colour")
    with pytest.raises(ScorelensError, match="same resolution and channels"):
        scorelens.report_card(shrink, DIGITS, other)


def test_a_card_is_written_whole_and_never_over_another(tmp_path):
    found = card(shrink, name="shrinkage")
    folder = found.save(tmp_path / "card")
    assert {path.name for path in folder.iterdir()} == {"report_card.json", "report_card.md", "report_card.png"}
    written = json.loads((folder / "report_card.json").read_text())
    assert written["levels"][0]["to_linear"]["mean"] == found.levels[0].to_linear.mean
    assert written["sentence"] in (folder / "report_card.md").read_text() and "shrinkage" in written["name"]
    with pytest.raises(ScorelensError, match="exists"):
        found.save(folder)
