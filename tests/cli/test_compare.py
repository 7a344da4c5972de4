"""`scorelens compare`: every number equals what the public functions give by hand."""

import json

import numpy as np
import pytest
import torch
from diffusers import UNet2DModel

import scorelens
from scorelens.cli.parser import main
from scorelens.results import read_rows

pytestmark = pytest.mark.e2e
REFERENCE = "digits-unet"
DATA = ["--data", "digits", "--split", "train"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def compared(tmp_path, *argv):
    assert main(["compare", *DATA, "--reference", REFERENCE, "--num", "4", "--out", "out", *argv]) == 0
    return {row.label: row for row in read_rows(tmp_path / "out" / "rows.jsonl") if row.settings["role"] != "network"}


def by_hand(model, seeds):
    with torch.no_grad():
        return scorelens.sample(model, scorelens.seeded_noise((1, 8, 8), seeds), scorelens.ddim_sigmas(10))


def test_rows_hold_the_numbers_of_the_public_functions(tmp_path):
    row = compared(tmp_path, "--model", "wiener")["wiener"]
    images = scorelens.load_images("digits", split="train")
    network, wiener = scorelens.load_network(REFERENCE), scorelens.build_denoiser("wiener", images)
    ours, theirs = by_hand(wiener, range(128, 132)), by_hand(network, range(128, 132))
    for name in ("r2", "pearson", "mse"):
        values = getattr(scorelens, name)(ours.steps[-1].x0_hat, theirs.steps[-1].x0_hat).numpy()
        assert row.metrics[name]["mean"] == pytest.approx(values.mean(), rel=1e-5)
        assert row.metrics[name]["std"] == pytest.approx(values.std(ddof=1), rel=1e-4)
        assert row.metrics[name]["median"] == pytest.approx(np.median(values), rel=1e-5)
        assert row.metrics[name]["low"] <= row.metrics[name]["mean"] <= row.metrics[name]["high"]
    found = scorelens.novelty(ours.images, images)
    assert row.metrics["novelty_rms"]["mean"] == pytest.approx(found.rms.mean().item(), rel=1e-5)
    assert row.data["fingerprint"] == images.fingerprint and row.noise["seeds"] == [128, 131]
    for path, points in (("reference_path", theirs.steps), ("own_path", ours.steps)):
        expected = [scorelens.r2(wiener(s.z, s.sigma), network(s.z, s.sigma)).mean().item() for s in points]
        assert [s["r2"]["mean"] for s in row.metrics["single_steps"][path]] == pytest.approx(expected, rel=1e-4)


def test_a_network_explains_itself_and_another_seed_comes_by_itself(tmp_path):
    rows = compared(tmp_path, "--model", "wiener", REFERENCE)
    assert list(rows)[:3] == [REFERENCE, "digits-unet-seed1", "wiener"]
    assert rows["digits-unet-seed1"].settings["role"] == "another seed" and rows["digits-unet-seed1"].r2["mean"] < 1
    (itself,) = (row for row in read_rows(tmp_path / "out" / "rows.jsonl") if row.name == f"network: {REFERENCE}")
    assert itself.r2["mean"] == pytest.approx(1) and itself.metrics["mse"]["mean"] == pytest.approx(0, abs=1e-9)
    for path in itself.metrics["single_steps"].values():
        assert [s["r2"]["mean"] for s in path] == pytest.approx([1] * 10)


def test_options_are_chosen_on_other_noise(tmp_path):
    rows = compared(tmp_path, "--model", "locality:threshold=0.05/0.9", "--skip-single-steps")
    name, row = list(rows.items())[-1]
    assert row.settings["chosen"]["seeds"] == [0, 3]
    images = scorelens.load_images("digits", split="train")
    theirs = by_hand(scorelens.load_network(REFERENCE), range(4)).steps[-1].x0_hat
    scores = {}
    for threshold in (0.05, 0.9):
        ours = by_hand(scorelens.build_denoiser("locality", images, threshold=threshold), range(4)).steps[-1].x0_hat
        scores[threshold] = scorelens.r2(ours, theirs).mean().item()
        told = row.settings["chosen"]["r2"][f"locality:threshold={threshold}"]
        assert told == pytest.approx(scores[threshold], rel=1e-4)
    best = max(scores, key=scores.__getitem__)
    assert row.options == {"threshold": best} and name == f"locality, threshold {best}"
    assert "single_steps" not in row.metrics and not (tmp_path / "out" / "single_steps.png").exists()


def test_table_pictures_and_page_are_written(tmp_path, capsys):
    compared(tmp_path, "--model", "optimal", "wiener")
    table = (tmp_path / "out" / "table.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        REFERENCE, "digits-unet-seed1", "optimal", "wiener"]
    assert table.strip() in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 2 and "Noise seeds 128–131" in page and "optimal" in page
    for name in ("samples.png", "single_steps.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000


def test_other_data_than_the_networks_own_are_noted(tmp_path, capsys):
    assert main(["compare", "--data", "digits", "--limit", "40", "--reference", REFERENCE, "--num", "2", "--model",
                 "wiener", "--skip-single-steps", "--out", "out"]) == 0
    assert "was trained on other images than these: digits, train split, 1618 images" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "says"), [
    (["--reference", "digits-unett"], "did you mean 'digits-unet'"),
    ([], "--reference"),
    (["--reference", REFERENCE, "--num", "0"], "num must be at least 1"),
    (["--reference", REFERENCE, "--model", "locality:threshold=0.1/0.2", "--seed", "5"], "overlap"),
    (["--reference", REFERENCE, "--label", "3"], "class"),
    (["--reference", REFERENCE, "--resolution", "16"], "16"),
    (["--reference", REFERENCE, "--channels", "3"], "3 x 8 x 8"),
    (["--reference", REFERENCE, "--denoisers", "wiener"], "--denoisers is now called --model"),
    (["--reference", "nowhere/at/all"], "no folder")])
def test_mistakes_end_in_one_line_and_no_folder(argv, says, capsys, tmp_path):
    assert main(["compare", *DATA, *argv]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_network_of_someone_else_is_compared_on_its_own_noise_levels(tmp_path):
    """Stable Diffusion's betas reach neither the paper's highest nor its lowest noise level."""
    from diffusers import DDPMScheduler

    torch.manual_seed(0)
    UNet2DModel(sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 16), norm_num_groups=4,
                layers_per_block=1, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                up_block_types=("AttnUpBlock2D", "UpBlock2D")).save_pretrained(tmp_path / "theirs")
    scheduler = DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    scheduler.save_pretrained(tmp_path / "theirs")
    assert main(["compare", *DATA, "--reference", "theirs", "--num", "2", "--model", "wiener", "--out", "out"]) == 0
    sigmas = json.loads((tmp_path / "out" / "run.json").read_text())["sigmas"]
    a = scheduler.alphas_cumprod[[900, 0]]
    assert [sigmas[0], sigmas[-1]] == pytest.approx(((1 - a) / a).sqrt().tolist(), rel=1e-5)
