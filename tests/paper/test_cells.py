"""What a cell measures, done once more by hand."""

import shutil
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import scorelens
from scorelens.denoisers.selection import held_out, nearest_level
from scorelens.networks.zoo import zoo_folder
from scorelens.paper import cells as paper_cells
from scorelens.paper import runner
from scorelens.paper.cells import Resources, measure_cell
from scorelens.paper.presets import Cell, method
from scorelens.paper.runner import run_cell

RESOURCES = Resources(torch.device("cpu"))
DIGITS = ("digits", (("split", "train"),))
WIENER = Cell("samples", "digits", method("wiener"), 3, data=DIGITS, reference="digits-unet", steps=5, seed=40)
GRID = [800, 600, 400, 200, 0]  # five of a thousand steps


def levels():
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)[GRID]
    return ((1 - alphas) / alphas).sqrt().tolist()


def last(denoiser, noise):
    """DDIM with clipping, written out: the last prediction."""
    z = noise * (1 + levels()[0] ** 2) ** 0.5
    for sigma, following in pairwise([*levels(), 0.0]):
        x0 = denoiser(z, sigma).detach()
        z = x0.clamp(-1, 1) + following / sigma * (z - x0)
    return x0


def test_samples_are_compared_from_the_same_noise():
    images = scorelens.load_images("digits", split="train")
    noise = torch.stack([torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (40, 41, 42)])
    ours, network = (last(d, noise) for d in (scorelens.build_denoiser("wiener", images),
                                              scorelens.load_network("digits-unet")))
    spread = (network - network.mean(dim=(1, 2, 3), keepdim=True)).square().mean(dim=(1, 2, 3))
    apart = (ours - network).square().mean(dim=(1, 2, 3))
    row = measure_cell(WIENER, RESOURCES).metrics
    assert row["each"]["mse"] == pytest.approx(apart.tolist(), rel=1e-4)
    assert row["each"]["r2"] == pytest.approx((1 - apart / spread).tolist(), rel=1e-4)
    assert [step["sigma"] for step in row["path"]] == pytest.approx(levels(), rel=1e-5)
    nearest = torch.cdist(ours.clamp(-1, 1).flatten(1), images[:].flatten(1)).square().amin(dim=1) / 64
    assert row["novelty_mse"]["mean"] == pytest.approx(nearest.mean().item(), rel=1e-3)


def test_errors_on_held_out_images():
    row = measure_cell(replace(WIENER, kind="heldout"), RESOURCES).metrics
    x0 = scorelens.load_images("digits", split="test")[:3]
    noise = scorelens.seeded_noise((1, 8, 8), [40, 41, 42])
    wiener = scorelens.build_denoiser("wiener", scorelens.load_images("digits", split="train"))
    errors = [(wiener(x0 + sigma * noise, sigma) - x0).square().mean().item() for sigma in levels()]
    assert [level["mse"]["mean"] for level in row["levels"]] == pytest.approx(errors, rel=1e-4)
    assert row["test"]["split"] == "test"


def test_where_nothing_is_held_out_there_is_an_error():
    with pytest.raises(scorelens.ScorelensError, match="nothing is held out"):
        measure_cell(replace(WIENER, kind="heldout", data=("digits", (("split", "all"),))), RESOURCES)


def test_the_claim_is_measured_on_held_out_images_and_on_the_networks_trajectory():
    """The error of the filter of the remaining images; and r2 with the network from the same z."""
    row = measure_cell(replace(WIENER, kind="claim"), RESOURCES).metrics
    images, network = scorelens.load_images("digits", split="train"), scorelens.load_network("digits-unet")
    path = scorelens.sample(network, scorelens.seeded_noise(images.shape, [40, 41, 42]), levels()).steps
    linear, part = scorelens.build_denoiser("wiener", images), held_out(images)
    rest = scorelens.build_denoiser("wiener", part.rest)
    for step, measured in zip(path, row["levels"], strict=True):
        assert measured["sigma"] == pytest.approx(step.sigma, rel=1e-5)
        scores = scorelens.r2(linear(step.z, step.sigma), step.x0_hat)
        assert measured["r2"]["mean"] == pytest.approx(scores.mean().item(), abs=1e-4)
        level = nearest_level(step.sigma)
        error = (rest(part.x0 + level * part.noise, level) - part.x0).flatten(1)[:, part.outputs].square().mean()
        assert measured["error"] == pytest.approx(error.item(), rel=1e-4)


def test_networks_of_ones_own_folder_come_first(tmp_path):
    shutil.copytree(zoo_folder("digits-unet-x0"), tmp_path / "digits-unet")
    cell = replace(WIENER, method=method("another seed"))
    found = measure_cell(cell, Resources(RESOURCES.device, networks=tmp_path)).context
    assert found["network"]["prediction_type"] == "sample" and found["network"]["weights"] == scorelens.load_network(
        "digits-unet-x0").describe()["weights"]
    assert measure_cell(cell, RESOURCES).context["network"]["prediction_type"] == "v_prediction"


def test_times_are_those_of_the_sampling_and_of_the_cell(monkeypatch, tmp_path):
    real = paper_cells._sample

    def stopped(*given):
        return replace(real(*given), seconds=[6.0] * 5)

    monkeypatch.setattr(paper_cells, "_sample", stopped)
    (tmp_path / "pictures").mkdir()
    ticks = iter([100.0, 107.0])
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: next(ticks), strftime=time.strftime))
    row = run_cell(WIENER, tmp_path, RESOURCES)
    assert row.metrics["seconds_per_image"] == 10 and row.seconds == 7
