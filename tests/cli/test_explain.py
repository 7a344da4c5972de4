"""`scorelens explain`, on models whose answer is known."""

import json
import math
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch

import scorelens
from scorelens.analysis.examination import (
    Plan,
    Subject,
    _call_seconds,
    build_models,
    examine,
    expected_seconds,
    make_plan,
    memorization,
)
from scorelens.analysis.probes import PROBES
from scorelens.analysis.verdict import (
    THRESHOLDS,
    _generalization,
    _memorization,
    above,
    enough,
    enough_samples,
    linear_share,
    mean_ratio,
    verdict,
)
from scorelens.cli.parser import main
from scorelens.metrics import share_interval
from scorelens.networks import load_network
from scorelens.networks.architectures import build_network, preset
from scorelens.networks.folders import export_network
from scorelens.noise import ddim_timesteps, ddpm_alphas
from scorelens.sampling import Samples, Step

pytestmark = pytest.mark.e2e
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return scorelens.load_images("digits", split="train"), scorelens.load_images("digits", split="test")


def judged(network, images, held_out, models=("optimal", "wiener")):
    """The verdict, with a small plan: enough to decide."""
    subject = Subject(network, images, held_out, build_models(models, images), CPU)
    plan = Plan(samples=80, held_out=32, models=dict.fromkeys(models, 32), left_out=[], fields=2)
    return {sentence.about: sentence for sentence in verdict(examine(subject, plan).numbers)}


def as_network(denoiser):
    return load_network(denoiser, parametrization="denoised")


def test_the_optimal_denoiser_memorizes(digits):
    found = judged(as_network(scorelens.build_denoiser("optimal", digits[0])), *digits)
    assert found["memorized"].holds and found["memorized"].value == 1 and "It memorizes" in found["memorized"].text
    assert found["generalizes"].holds is False and "does not generalize" in found["generalizes"].text
    assert found["explained"].holds and "optimal explains it" in found["explained"].text
    assert found["explained"].value == pytest.approx(1, abs=1e-4)
    assert "From the data alone one would name wiener" in found["explained"].text


def test_the_wiener_filter_does_not(digits):
    found = judged(as_network(scorelens.build_denoiser("wiener", digits[0])), *digits)
    assert found["memorized"].holds is False and found["memorized"].value == 0
    assert found["generalizes"].holds and "wiener explains it" in found["explained"].text
    assert "From the data alone" not in found["explained"].text  # it is the same
    assert found["wiener"].value == pytest.approx(1, abs=1e-3)
    assert "its Jacobian predicts 100%" in found["equivariant"].text
    assert "beats the linear filter at 0 of 10 noise levels and is nowhere worse" in found["trained"].text
    assert found["trained"].holds is False and found["trained"].value > 1.02  # optimal does better on digits


def test_a_network_of_the_zoo_generalizes(digits, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["explain", "digits-unet", "--data", "digits", "--minutes", "0.1", "--formulas", "optimal", "wiener",
                 "--device", "cpu", "--fail-if-memorized", "0.05", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    record = json.loads((out / "verdict.json").read_text())
    assert [s["about"] for s in record["verdict"]] == list(THRESHOLDS)
    assert {s["about"]: s["holds"] for s in record["verdict"]}["memorized"] is False
    assert all(s["text"] in told and f"{s['threshold']:g}"[:2] for s in record["verdict"])
    assert "about" in told.splitlines()[0] and "seconds" in told.splitlines()[0]  # the plan comes before its results
    page = (out / "report.html").read_text()
    assert page.count("<img") == 7 and "most suspicious" not in page.split("<img")[0]


def overfitted(images, steps=600):
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


def test_a_network_that_learned_16_digits_by_heart_memorizes(digits, tmp_path):
    """The architecture of the zoo's network above: only data and verdict differ."""
    few = digits[0].subset(range(16))
    export_network(overfitted(few), "x0", tmp_path / "network")
    found = judged(load_network(str(tmp_path / "network")), few, digits[1])
    assert found["memorized"].holds and found["memorized"].text.startswith("It memorizes")
    assert found["generalizes"].holds is False and found["generalizes"].value > 1.5
    assert not found["equivariant"].holds


def test_pipelines_can_stop_at_memorization(tmp_path, monkeypatch, capsys):
    """A network that always paints the same training image."""
    image = scorelens.load_images("digits", split="train")[:1]
    monkeypatch.setattr("scorelens.cli.explain.load_named", lambda *given, **more: as_network(
        lambda z, sigma: image.to(z).expand(len(z), -1, -1, -1) + 0 * z))
    flags = ["explain", "copier", "--data", "digits", "--minutes", "0.05", "--formulas", "wiener", "--device", "cpu"]
    assert main([*flags, "--fail-if-memorized", "0.5", "--out", str(tmp_path / "a")]) == 1
    assert "memorizes: 100.0% of 250 samples" in capsys.readouterr().err and (tmp_path / "a" / "report.html").exists()
    assert main([*flags, "--out", str(tmp_path / "b")]) == 0


def test_the_most_suspicious_samples_are_those_nearest_to_one_image(digits):
    """Of samples between two training images, the one nearest to an end of the line."""
    first, second = digits[0][[0, 900]]
    images = torch.stack([torch.lerp(first, second, share) for share in (0.5, 0.1, 0.3)])
    walked = Samples(images, [Step(0.01, images, images, images)], [0.0])
    subject = Subject(load_network("digits-unet"), digits[0].subset([0, 900]), None, {}, CPU)
    numbers, suspicious, nearest = memorization(subject, walked)
    assert torch.equal(suspicious, images[[1, 2, 0]]) and torch.equal(nearest[:2], torch.stack([first, first]))
    assert numbers["ratios"] == pytest.approx([1 / 9, 3 / 7, 1.0], rel=1e-4)
    assert numbers["memorized"]["mean"] == pytest.approx(1 / 3)


def test_a_jacobian_that_overshoots_predicts_nothing():
    assert linear_share({"nonlinearity": 0.25}) == 0.75 and linear_share({"nonlinearity": 17.0}) == 0


def test_the_ratio_of_errors_is_a_geometric_mean_over_the_middle_levels():
    def level(sigma, ratio, model="network"):
        return {"sigma": sigma, "ratio": ratio, "model": model}

    levels = [level(0.01, 99.0), level(0.5, 2.0), level(5.0, 8.0), level(1.0, None), level(60.0, 99.0),
              level(1.0, 3.0, "optimal")]
    assert mean_ratio(levels, "network") == pytest.approx(4) and mean_ratio(levels, "optimal") == 3
    assert mean_ratio(levels, "wiener") is None


def test_without_held_out_images_there_is_no_sentence_about_them(digits):
    found = judged(load_network("digits-unet"), digits[0], None, ("wiener",))
    assert set(found) == set(THRESHOLDS) - {"generalizes", "trained"}


def test_no_copy_among_15_samples_decides_nothing(digits):
    """0 of 15 is a share of up to 20 %: neither above the limit of 5 % nor below it."""
    def told(copies, samples):
        share = vars(share_interval(copies, samples))
        return next(_memorization({"memorized": share, "samples": samples}))

    few = told(0, 15)
    assert few.holds is None and few.low == 0 and few.high == pytest.approx(0.204, abs=1e-3)
    assert few.text.startswith("It cannot be told from 15 samples whether it memorizes (about 73 would tell): 0 of 15")
    assert told(0, 72).holds is None and told(0, 73).holds is False and told(5, 15).holds is True
    assert [enough_samples(0.0, limit) for limit in (0.5, 0.05, 0.01)] == [4, 73, 381]
    assert enough_samples(0.05, 0.05) is None


def test_an_interval_that_contains_its_limit_decides_nothing():
    """It would shrink with the square root of the number of images."""
    wide = {"mean": 1.3, "low": 1.1, "high": 1.5}
    (sentence,) = _generalization({"images": 20, "ratios": {"network": wide}})
    assert sentence.holds is None and "cannot be told from 20 held-out images" in sentence.text
    assert enough(20, wide, 1.25) == math.ceil(20 * (0.2 / 0.05) ** 2) + 1 and "about 330 would tell" in sentence.text
    assert [above({"low": low, "high": low + 1}, 1.25) for low in (0.2, 0.5, 1.3)] == [False, None, True]
    assert enough(20, {"mean": 1.25, "low": 1.1, "high": 1.4}, 1.25) is None


@pytest.mark.parametrize("share, samples, code", [("0.05", "15", 3), ("0.5", "15", 0)])
def test_an_undecided_check_has_an_exit_code_of_its_own(share, samples, code, tmp_path, capsys):
    assert main(["explain", "digits-unet", "--data", "digits", "--minutes", "0.01", "--formulas", "wiener", "--samples",
                 samples, "--fail-if-memorized", share, "--out", str(tmp_path / "out")]) == code
    assert ("--samples 73 would tell" in capsys.readouterr().err) == (code == 3)


def test_the_plan_does_not_depend_on_the_speed_of_the_machine(digits, monkeypatch):
    """On a machine that is a thousand times slower the same is measured; the announcement says that it takes longer."""
    subject = Subject(load_network("digits-unet"), *digits, build_models(("optimal", "wiener", "locality"), digits[0]),
                      CPU)
    plans = {minutes: make_plan(subject, minutes) for minutes in (1e-6, 0.1, 60.0)}
    least, most = plans[1e-6], plans[60.0]
    assert (least.samples, least.held_out, least.fields) == (80, 32, 4) and min(least.models.values()) == 16
    assert (most.samples, most.held_out, most.fields) == (256, len(digits[1]), 16) and not most.left_out
    assert not least.left_out  # on digits every formula is cheap
    monkeypatch.setattr("scorelens.analysis.examination.CHEAP", 0)  # none is: the first is measured all the same
    brief = make_plan(subject, 1e-6)
    assert brief.left_out == ["wiener", "locality"] and "too slow for these minutes: wiener, locality" in str(brief)
    monkeypatch.undo()
    for seconds in (1e-9, 1.0):
        monkeypatch.setattr("scorelens.analysis.examination._call_seconds", lambda *given, s=seconds: lambda count: s)
        assert make_plan(subject, 0.1) == plans[0.1]
        announced = str(replace(plans[0.1], seconds=expected_seconds(subject, plans[0.1])))
        assert ("longer on this machine than the 6 of --minutes" in announced) == (seconds == 1)
    assert make_plan(subject, 0.1, samples=7).samples == 7


def test_the_plan_times_every_part(digits, monkeypatch):
    """A call has a fixed cost and one for each image; the first at a level costs more and does not count."""
    now, seen = [0.0], set()
    monkeypatch.setattr("scorelens.analysis.examination.time.perf_counter", lambda: now[0])

    def slow(z, sigma):
        level = round(float(sigma), 3)
        now[0] += (3 if level in seen else 100) + 0.25 * len(z)
        seen.add(level)
        return z

    subject = Subject(as_network(slow), *digits, {"twice": lambda z, sigma: slow(slow(z, sigma), sigma)}, CPU)
    assert [_call_seconds(subject.network, subject)(count) for count in (1, 8, 100)] == [3.25, 5, 28]
    assert _call_seconds(subject.models["twice"], subject)(100) == 56
    plan = Plan(samples=10, held_out=20, models={"twice": 30}, left_out=[], fields=1)
    field = 3 + 0.25 * (9 + PROBES)
    assert expected_seconds(subject, plan) == {"memorization": 10 * 5.5, "generalization": 2 * 10 * 8,
                                               "explanation": 2 * 10 * 21, "locality": 10 * 3 * field}


def test_the_command_on_the_page_does_it_all_again(tmp_path, capsys):
    flags = ["explain", "digits-unet", "--data", "digits", "--split", "train", "--limit", "100", "--data-seed", "3",
             "--classes", "1", "7", "--flips", "--formulas", "wiener", "--minutes", "0.02", "--seed", "5"]
    assert main([*flags, "--device", "cpu", "--out", str(tmp_path / "a")]) == 0
    first = json.loads((tmp_path / "a" / "verdict.json").read_text())
    assert shlex.split(first["repeat"]) == ["scorelens", *flags]
    assert first["data"]["count"] == 200
    assert main([*shlex.split(first["repeat"])[1:], "--device", "cpu", "--out", str(tmp_path / "b")]) == 0
    second = json.loads((tmp_path / "b" / "verdict.json").read_text())
    assert second["data"] == first["data"] and second["repeat"] == first["repeat"]


def test_what_was_trained_on_is_not_held_out(tmp_path, capsys):
    """Of a source that was used whole, the test split is training data too."""
    flags = ["explain", "digits-unet", "--data", "digits", "--formulas", "wiener", "--minutes", "0.02"]
    for split, about in ("train", 6), ("all", 4):
        assert main([*flags, "--split", split, "--out", str(tmp_path / split)]) == 0
        record = json.loads((tmp_path / split / "verdict.json").read_text())
        assert len(record["verdict"]) == about and (record["held_out"] is None) == (split == "all")
    assert "there are no held-out images" in (tmp_path / "all" / "report.html").read_text()


def test_mistakes_are_told(tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", images=scorelens.load_images("digits").pixels[:30, 0])
    source = f"npz:{tmp_path / 'mine.npz'}"
    for flags, told in (["--minutes", "0"], "minutes"), (["--fail-if-memorized", "5"], "share"), (
            ["--split", "all", "--holdout", source], "training images themselves"):
        assert main(["explain", "digits-unet", "--data", source, "--out", str(tmp_path / "x"), *flags]) == 2
        assert told in capsys.readouterr().err


def test_five_training_images_are_enough(tmp_path):
    assert main(["explain", "digits-unet", "--data", "digits", "--split", "train", "--limit", "5", "--formulas",
                 "wiener", "--minutes", "0.02", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").exists()
