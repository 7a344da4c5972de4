"""`scorelens explain`, on models whose answer is known."""

import json
import math

import numpy as np
import pytest
import torch

import scorelens
from scorelens.benchmark.explain import Subject, build_models, examine, make_plan
from scorelens.benchmark.verdict import THRESHOLDS, verdict
from scorelens.cli import main
from scorelens.networks import load_network
from scorelens.networks.architectures import build_network, preset
from scorelens.networks.export import export_network
from scorelens.noise import ddim_timesteps, ddpm_alphas

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


def overfitted(images, steps=1200):
    """A U-Net that has learned these images by heart.

    It is trained to predict not the one image that was noised, but the mean of all that may have been: the same
    gradient on average, without its noise. Of all timesteps it sees those of a sampler's ten steps, but for the first
    two, where there is only noise.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_network("unet", images.shape, sizes=preset("small", images.shape), dropout=0.0)
        adam, levels = torch.optim.Adam(model.parameters(), fused=True), torch.tensor(ddim_timesteps(10)[2:])
        x0, alphas = images[:], ddpm_alphas().float()
        for step in range(steps):
            adam.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 50) * (1 + math.cos(math.pi * step / steps)) / 2
            t = levels[torch.randint(len(levels), (len(x0),))]
            a = alphas[t].view(-1, 1, 1, 1)
            z = x0 + ((1 - a) / a).sqrt() * torch.randn_like(x0)
            logits = -torch.cdist(z.flatten(1), x0.flatten(1)).square() / (2 * (1 - a) / a).flatten(1)
            mean = (logits.softmax(dim=1) @ x0.flatten(1)).view_as(x0)
            loss = (model(a.sqrt() * z, t).sample - mean).square().mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
    return model


def test_a_network_that_learned_64_digits_by_heart_memorizes(digits, tmp_path, capsys):
    """The same architecture, data and command as the zoo's network above: only the verdict differs."""
    export_network(overfitted(digits[0].subset(range(64))), "x0", tmp_path / "network")
    np.savez(tmp_path / "few.npz", images=digits[0].pixels[:64, 0])
    np.savez(tmp_path / "unseen.npz", images=digits[1].pixels[:, 0])
    out = tmp_path / "out"
    assert main(["explain", str(tmp_path / "network"), "--data", f"npz:{tmp_path / 'few.npz'}", "--split", "all",
                 "--holdout", f"npz:{tmp_path / 'unseen.npz'}", "--minutes", "0.2", "--models", "optimal", "wiener",
                 "--device", "cpu", "--fail-if-memorized", "0.05", "--out", str(out)]) == 1
    assert "memorizes" in capsys.readouterr().err
    found = {s["about"]: s for s in json.loads((out / "verdict.json").read_text())["verdict"]}
    assert found["memorized"]["holds"] and found["memorized"]["text"].startswith("It memorizes")
    assert not found["generalizes"]["holds"] and found["generalizes"]["value"] > 2
    assert found["explained"]["text"].startswith("optimal") and not found["equivariant"]["holds"]


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
