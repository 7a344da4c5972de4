"""`scorelens calibrate`: sizes that a network with a known window is fitted with, and resuming."""

import json

import pytest
import torch

import scorelens
from scorelens import progress
from scorelens.analysis import patch_sizes as module
from scorelens.analysis.patch_sizes import candidate_sizes, fit_steps
from scorelens.cli.parser import main
from tests.ground_truth.cases import image_set
from tests.test_progress import Bar

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("metric", ["r2", "cosine"])
def test_the_window_of_a_local_score_model_is_found_again(metric):
    """The "network" is itself LS with known windows: calibration must return them, with a perfect score."""
    images = image_set("smooth", 60, (1, 7, 7))
    sigmas = scorelens.ddim_sigmas(10).tolist()[6:9]
    truth = dict(zip(sigmas, [5, 3, 1], strict=True))
    models = {size: scorelens.build_denoiser("ls", images, patch_size=size) for size in (1, 3, 5, 13)}
    noise = scorelens.seeded_noise(images.shape, range(4))
    path = scorelens.sample(lambda z, sigma: models[truth[sigma]](z, sigma), noise, sigmas)
    fits = list(fit_steps(models.__getitem__, path, list(models), metric))
    assert [fit.size for fit in fits] == [5, 3, 1]
    for fit in fits:
        assert fit.scores[fit.size] == pytest.approx(1.0, abs=1e-6)
        assert all(score < 1 for size, score in fit.scores.items() if size != fit.size)


def test_of_sizes_that_fit_alike_the_largest_is_taken():
    """At overwhelming noise every window gives the mean, and so does the network."""
    images = image_set("smooth", 60, (1, 7, 7))
    models = {size: scorelens.build_denoiser("ls", images, patch_size=size) for size in (1, 3, 13)}
    path = scorelens.sample(models[1], scorelens.seeded_noise(images.shape, range(4)), [1e4])
    assert [fit.size for fit in fit_steps(models.__getitem__, path, list(models))] == [13]


def test_the_bar_never_passes_its_end(monkeypatch):
    """With several sizes a step reports several times; on a slow machine the last report was past the end."""
    digits, bar = scorelens.load_images("digits", limit=20), Bar()
    path = scorelens.sample(scorelens.build_denoiser("wiener", digits), scorelens.seeded_noise(digits.shape, [0]),
                            scorelens.ddim_sigmas(2))
    monkeypatch.setattr(progress, "tqdm", lambda *args, **options: bar)
    with progress.shown():
        list(fit_steps(lambda size: scorelens.build_denoiser("ls", digits, patch_size=size), path, [3, 5]))
    assert max(bar.seen) == bar.seen[-1] == 2 and min(bar.seen) < 1


def test_candidates_end_with_the_whole_image():
    assert candidate_sizes(8) == [1, 3, 5, 7, 15]
    assert candidate_sizes(32) == [3, 5, 7, 9, 13, 17, 23, 29, 63]


ARGS = ["calibrate", "--data", "digits", "--split", "train", "--limit", "100", "--reference", "digits-unet",
        "--num", "2", "--steps", "4", "--denoiser", "ls", "--sizes", "1", "3", "15"]


def test_an_interrupted_fit_goes_on_and_is_read_by_the_models(tmp_path, monkeypatch, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*ARGS, "--out", str(whole)]) == 0

    def stops_after_two(*args, **kwargs):
        for k, fit in enumerate(fit_steps(*args, **kwargs)):
            if k == 2:
                raise KeyboardInterrupt
            yield fit

    monkeypatch.setattr(module, "fit_steps", stops_after_two)
    assert main([*ARGS, "--out", str(cut)]) == 130
    assert not (cut / "calibration.json").exists()
    started = []
    monkeypatch.setattr(module, "fit_steps",
                        lambda *args, first, **kwargs: started.append(first) or fit_steps(*args, first=first, **kwargs))
    assert main([*ARGS, "--out", str(cut)]) == 0
    assert started == [2]
    assert (cut / "calibration.json").read_text() == (whole / "calibration.json").read_text()
    assert (cut / "rows.jsonl").read_text() == (whole / "rows.jsonl").read_text()
    fitted = json.loads((whole / "calibration.json").read_text())
    images = scorelens.load_images("digits", limit=50)
    model = scorelens.build_denoiser("ls", images, patch_size=str(whole / "calibration.json"))
    z = torch.zeros(1, 1, 8, 8)
    for sigma, size in zip(fitted["sigmas"], fitted["sizes"], strict=True):
        same = scorelens.build_denoiser("ls", images, patch_size=size)
        torch.testing.assert_close(model(z, sigma), same(z, sigma), rtol=0, atol=0)
    assert (whole / "calibration.png").stat().st_size > 10_000


def test_other_settings_and_other_models_are_refused(tmp_path, capsys):
    assert main([*ARGS, "--out", str(tmp_path / "fit")]) == 0
    assert main([*ARGS, "--metric", "cosine", "--out", str(tmp_path / "fit")]) == 2
    assert "other settings (metric: r2 there, cosine now)" in capsys.readouterr().err
    assert main([*ARGS[:-6], "--denoiser", "wiener"]) == 2
    assert "ls, els, bbels" in capsys.readouterr().err
    assert main([*ARGS, "--denoiser.patch-size", "3"]) == 2
    assert "with a patch size" in capsys.readouterr().err
    assert main([*ARGS[:-4], "--sizes", "4"]) == 2
    assert "even" in capsys.readouterr().err
