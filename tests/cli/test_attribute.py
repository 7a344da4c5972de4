"""`scorelens attribute`: what it writes is what the functions give, and mistakes are one line."""

import json

import pytest

import scorelens
from scorelens.cli.parser import main

pytestmark = pytest.mark.e2e
FEW = ["attribute", "--data", "digits", "--limit", "80", "--device", "cpu", "--seed", "3"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(folder):
    return json.loads((folder / "trajectory.json").read_text())


def test_a_formula_is_attributed_at_every_step(tmp_path, capsys):
    assert main([*FEW, "--model", "locality:threshold=0.05", "--num", "2", "--steps", "3", "--top", "4", "--pixels",
                 "2,3", "centre", "--out", "out"]) == 0
    images = scorelens.load_images("digits", limit=80)
    model = scorelens.build_denoiser("locality", images, threshold=0.05)
    samples = scorelens.sample(model, scorelens.seeded_noise(images.shape, [3, 4]), scorelens.ddim_sigmas(3))
    who = scorelens.attribute_samples(model, samples, pixels=[(2, 3), (4, 4)], top=4)
    record = written(tmp_path / "out")
    assert [step["sigma"] for step in record["steps"]] == [step.sigma for step in who.steps]
    for targets, behind in zip([*(step["targets"] for step in record["steps"]), record["all_steps"]],
                               [*(step.behind for step in who.steps), who.total], strict=True):
        assert [(each["noisy_image"], each["of"]) for each in targets] == [
            (b, f"pixel {pixel}") for b in range(2) for pixel in ((2, 3), (4, 4))]
        assert [each["index"] for each in targets] == behind.index.flatten(0, 1).tolist()
        for each, weights in zip(targets, behind.weight.flatten(0, 1).tolist(), strict=True):
            assert each["weight"] == pytest.approx(weights) and each["covered"] == pytest.approx(sum(weights))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {f"{kind}-{b}.png" for kind in ("trajectory", "mosaic") for b in range(2)} <= names
    assert sum(name.startswith("mosaic-1-sigma") for name in names) == 3
    assert (tmp_path / "out" / "report.html").read_text().count("<img") == 2 * (2 + 3)
    assert "all steps" in capsys.readouterr().out


def test_a_network_is_attributed_by_a_formula_with_its_r2(tmp_path):
    assert main([*FEW, "--model", "digits-unet", "--steps", "2", "--formulas", "optimal", "--skip-mosaics", "--out",
                 "out"]) == 0
    images, network = scorelens.load_images("digits", limit=80), scorelens.load_network("digits-unet")
    samples = scorelens.sample(network, scorelens.seeded_noise(images.shape, [3]), scorelens.ddim_sigmas(2))
    optimal = scorelens.build_denoiser("optimal", images)
    for step, made in zip(written(tmp_path / "out")["steps"], samples.steps, strict=True):
        assert step["formula"] == "optimal"
        expected = scorelens.r2(optimal(made.z, made.sigma), made.x0_hat).tolist()
        assert step["r2"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert not list((tmp_path / "out").glob("mosaic*"))


@pytest.mark.parametrize(("flags", "says"), [
    (["--model", "wiener"], "kernel"), (["--num", "0"], "num must be at least 1"), (["--pixels", "8,0"], "8"),
    (["--model", "digits-unet", "--formulas", "wiener"], "leave it out")])
def test_mistakes_are_one_line_and_nothing_is_written(tmp_path, capsys, flags, says):
    assert main([*FEW, *flags, "--steps", "2", "--out", "out"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in error and not (tmp_path / "out").exists()
