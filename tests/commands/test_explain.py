"""`scorelens explain`, on models whose answer is known."""

import json

import numpy as np
import pytest
import torch

import scorelens
from scorelens.benchmark.explain import Subject, build_models, examine, make_plan
from scorelens.benchmark.verdict import THRESHOLDS, verdict
from scorelens.cli import main
from scorelens.networks import load_network

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return scorelens.load_images("digits", split="train"), scorelens.load_images("digits", split="test")


def judged(network, images, held_out, models=("optimal", "wiener"), seconds=4.0):
    subject = Subject(network, images, held_out, build_models(models, images), CPU)
    return {sentence.about: sentence for sentence in verdict(examine(subject, make_plan(subject, seconds)).numbers)}


def as_network(denoiser):
    return load_network(denoiser, parametrization="denoised")


def test_the_optimal_denoiser_memorizes(digits):
    found = judged(as_network(scorelens.build_denoiser("optimal", digits[0])), *digits)
    assert found["memorized"].holds and found["memorized"].value == 1 and "It memorizes" in found["memorized"].text
    assert not found["generalizes"].holds and "does not generalize" in found["generalizes"].text
    assert found["explained"].holds and "optimal explains it" in found["explained"].text
    assert found["explained"].value == pytest.approx(1, abs=1e-4)


def test_the_wiener_filter_does_not(digits):
    found = judged(as_network(scorelens.build_denoiser("wiener", digits[0])), *digits)
    assert not found["memorized"].holds and found["memorized"].value == 0
    assert found["generalizes"].holds and "wiener explains it" in found["explained"].text
    assert found["wiener"].value == pytest.approx(1, abs=1e-3)
    assert "predict is 0%" in found["equivariant"].text


def test_a_network_of_the_zoo_generalizes(digits, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["explain", "digits-unet", "--data", "digits", "--minutes", "0.1", "--models", "optimal", "wiener",
                 "--device", "cpu", "--fail-if-memorized", "0.05", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    record = json.loads((out / "verdict.json").read_text())
    assert [s["about"] for s in record["verdict"]] == list(THRESHOLDS)
    assert {s["about"]: s["holds"] for s in record["verdict"]}["memorized"] is False
    assert all(s["text"] in told and f"{s['threshold']:g}"[:2] for s in record["verdict"])
    assert "about" in told.splitlines()[0] and "seconds" in told.splitlines()[0]  # the plan comes before its results
    page = (out / "report.html").read_text()
    assert page.count("<img") == 4 and "most suspicious" not in page.split("<img")[0]


def test_pipelines_can_stop_at_memorization(tmp_path, monkeypatch, capsys):
    """A network that always paints the same training image."""
    image = scorelens.load_images("digits", split="train")[:1]
    monkeypatch.setattr("scorelens.commands.explain.load_network", lambda *given, **more: as_network(
        lambda z, sigma: image.to(z).expand(len(z), -1, -1, -1) + 0 * z))
    flags = ["explain", "copier", "--data", "digits", "--minutes", "0.05", "--models", "wiener", "--device", "cpu"]
    assert main([*flags, "--fail-if-memorized", "0.5", "--out", str(tmp_path / "a")]) == 1
    assert "memorizes: 100.0%" in capsys.readouterr().err and (tmp_path / "a" / "report.html").exists()
    assert main([*flags, "--out", str(tmp_path / "b")]) == 0


def test_without_held_out_images_there_is_no_sentence_about_them(digits):
    found = judged(load_network("digits-unet"), digits[0], None, ("wiener",), seconds=1.0)
    assert set(found) == set(THRESHOLDS) - {"generalizes"}


def test_the_plan_keeps_to_the_time(digits):
    network = load_network("digits-unet")
    subject = Subject(network, *digits, build_models(("optimal", "wiener"), digits[0]), CPU)
    short, long = make_plan(subject, 1.0), make_plan(subject, 60.0)
    assert short.samples < long.samples == 256 and sum(short.seconds.values()) < sum(long.seconds.values()) < 60
    nothing = make_plan(subject, 0.001)
    (kept,) = nothing.models
    assert nothing.models[kept] == 4 and {kept, *nothing.left_out} == {"optimal", "wiener"}
    assert "too slow" in str(nothing)


def test_mistakes_are_told(tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", images=scorelens.load_images("digits").pixels[:30, 0])
    source = f"npz:{tmp_path / 'mine.npz'}"
    for flags, told in (["--minutes", "0"], "minutes"), (["--fail-if-memorized", "5"], "share"), (
            ["--split", "all", "--holdout", source], "training images themselves"):
        assert main(["explain", "digits-unet", "--data", source, "--out", str(tmp_path / "x"), *flags]) == 2
        assert told in capsys.readouterr().err
