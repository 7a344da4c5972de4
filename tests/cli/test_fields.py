"""The commands on sensitivity: what they write is what the functions give, and mistakes are one line."""

import json

import numpy as np
import pytest
import torch

import scorelens
from scorelens.analysis.fields import chosen_levels
from scorelens.cli.parser import main
from tests.arrays import read_arrays

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]


def test_sensitivity_writes_the_fields_that_the_function_gives(tmp_path):
    assert main(["sensitivity", "--data", "digits", "--split", "train", "--model", "digits-unet", "wiener", "--pixels",
                 "centre", "2,3", "--num", "3", "--steps", "5", "--levels", "3", "--out", "out"]) == 0
    network = scorelens.load_network("digits-unet")
    noise = scorelens.seeded_noise((1, 8, 8), range(3))
    with torch.no_grad():
        steps = scorelens.sample(network, noise, scorelens.ddim_sigmas(5)).steps
    found = read_arrays(tmp_path / "out" / "digits-unet.npz")
    assert found["values"].shape == (3, 2, 1, 8, 8) and found["samples"] == 3
    assert found["sigmas"] == pytest.approx([steps[k].sigma for k in (0, 2, 4)])
    expected = scorelens.sensitivity(network, steps[2].z, steps[2].sigma, (2, 3)).mean(dim=0).numpy()
    assert found["values"][1, 1] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    told = rows(tmp_path)
    assert len(told) == 2 * 3 * 2
    assert all(row["cosine"] == pytest.approx(1) for row in told if row["model"] == "wiener")
    assert all(-1 <= row["cosine"] < 0.9999 for row in told if row["model"] == "digits-unet" and row["sigma"] > 0.1)
    for name in ("fields.png", "curves.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000


def test_levels_are_spread_from_first_to_last():
    assert chosen_levels(range(10), 4) == [0, 3, 6, 9] and chosen_levels(range(3), 10) == [0, 1, 2]
    assert chosen_levels(range(5), 1) == [0]


def test_only_the_optimal_denoiser_returns_a_training_image(tmp_path, capsys):
    """At vanishing noise the optimal denoiser returns the nearest training image, the others the held-out one."""
    assert main(["report-card", "digits-unet", "--data", "digits", "--num", "16", "--out", "out"]) == 0
    train, test = scorelens.load_images("digits", split="train"), scorelens.load_images("digits", split="test")
    card = json.loads((tmp_path / "out" / "report_card.json").read_text())
    last, nearest = card["levels"][-1], scorelens.novelty(test[:16], train).mse.mean().item()
    assert last["formulas"]["optimal"] == pytest.approx(nearest, rel=0.02)
    assert max(last["error"]["mean"], last["formulas"]["wiener"]) < 0.02 * nearest
    assert card["data"]["split"] == "train" and card["heldout"]["split"] == "test"
    assert f"digits-unet: {card['sentence']}" in capsys.readouterr().out
    for name in ("report_card.png", "one_step.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000


def test_manipulation_measures_gain_and_visibility(tmp_path, capsys):
    assert main(["manipulation", "--data", "digits", "--model", "digits-unet", "--pattern", "I", "--num", "3",
                 "--steps", "4", "--out", "out"]) == 0
    told = rows(tmp_path)
    assert len(told) == 4 and all(row["gamma"] == 0 and row["predicted"] == 0 for row in told)
    assert told[-1]["gain"] == pytest.approx(1, abs=0.05)  # at vanishing noise everything passes through
    assert "| digits-unet |" in capsys.readouterr().out
    for name in ("fields.png", "gain.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000


DIGITS = ["--data", "digits", "--limit", "30"]


@pytest.mark.parametrize(("argv", "says"), [
    (["sensitivity", *DIGITS, "--pixels", "8,0"], "outside the image of 8x8"),
    (["sensitivity", *DIGITS, "--pixels", "middle"], "neither ROW,COLUMN nor centre"),
    (["sensitivity", *DIGITS, "--model", "wienr"], "unknown network 'wienr'"),
    (["sensitivity", *DIGITS, "--model", "locality:threshold=0.1/0.2"], "names several"),
    (["sensitivity", *DIGITS, "--num", "0"], "at least 1"),
    (["sensitivity", "--data", "leaves", "--limit", "9", "--resolution", "8", "--model", "digits-unet"], "3 x 8 x 8"),
    (["report-card", "wiener", *DIGITS, "--num", "1000"], "between 1 and the 179 held-out images"),
    (["report-card", "wiener", *DIGITS, "--num", "2", "--shown", "2"], "shown must be between 0 and 1"),
    (["manipulation", *DIGITS, "--model", "digits-unet", "--pattern", "nowhere.png"], "neither a single letter"),
    (["manipulation", *DIGITS], "--model")])
def test_mistakes_end_in_one_line_and_no_folder(argv, says, capsys, tmp_path):
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_presets_name_the_networks_of_the_data(tmp_path):
    assert main(["sensitivity", "--data", "digits", "--split", "train", "--preset", "parametrization", "--num", "2",
                 "--steps", "3", "--out", "out"]) == 0
    assert {row["model"] for row in rows(tmp_path)} == {"digits-unet-x0", "digits-unet-x0@epsilon"}
    plain = read_arrays(tmp_path / "out" / "digits-unet-x0.npz")
    noise = read_arrays(tmp_path / "out" / "digits-unet-x0-epsilon.npz")
    identity = np.zeros((1, 8, 8))
    identity[0, 4, 4] = 1
    for k, sigma in enumerate(plain["sigmas"]):
        assert noise["values"][k, 0] == pytest.approx((identity - plain["values"][k, 0]) / sigma, rel=1e-3, abs=1e-4)
    assert (tmp_path / "out" / "fields-joint.png").exists()


def test_noise_levels_of_ones_choice_are_measured_on_noisy_data(tmp_path):
    assert main(["sensitivity", "--data", "digits", "--limit", "40", "--model", "optimal", "--sigmas", "1", "3",
                 "--num", "2", "--linear", "--out", "out"]) == 0
    told = json.loads((tmp_path / "out" / "run.json").read_text())["linearity"]
    assert [row["sigma"] for row in told] == [3, 1] and told[0]["nonlinearity"] < told[1]["nonlinearity"]
    assert (tmp_path / "out" / "linearity.png").exists()
    found, images = read_arrays(tmp_path / "out" / "optimal.npz"), scorelens.load_images("digits", limit=40)
    assert found["sigmas"].tolist() == [3, 1]
    z = (images[:2] + 3 * scorelens.seeded_noise((1, 8, 8), range(2))).double()
    expected = scorelens.sensitivity(scorelens.build_denoiser("optimal", images), z, 3.0, (4, 4)).mean(dim=0)
    assert found["values"][0, 0] == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-9)
