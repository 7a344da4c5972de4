"""Networks outside the zoo in every command that names one, with the same flags."""

import json
from pathlib import Path

import pytest
import torch

import scorelens
from scorelens.cli.parser import COMMANDS, main
from scorelens.results import read_rows
from tests.networks.foreign import Weights, pytorch_ddpm
from tests.networks.layouts import ZeroToOne, trained

NET = ["--module", "tests.networks.layouts:ZeroToOne", "--value-range", "0", "1"]
DATA = ["--data", "digits", "--split", "train"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    net = trained(ZeroToOne)
    torch.save({"model": {key: value + 0.1 for key, value in net.state_dict().items()}, "ema": net.state_dict()},
               tmp_path / "model.pt")
    return "model.pt"


def test_the_flags_are_the_same_everywhere(capsys: pytest.CaptureFixture) -> None:
    for name in ("explain", "compare", "sensitivity", "report-card", "app", "bench run", "calibrate", "manipulation"):
        assert name in COMMANDS and main([*name.split(), "--help"]) == 0
        text = capsys.readouterr().out
        for flag in ("--module", "--weights", "--value-range", "--parametrization", "--schedule", "--trust-pickle"):
            assert flag in text, (name, flag)


@pytest.mark.e2e
def test_a_file_in_a_report_card_and_in_fields(file: str, capsys: pytest.CaptureFixture) -> None:
    """The network is digits-unet behind other data: its error is that of digits-unet."""
    assert main(["report-card", file, *DATA, *NET, "--formulas", "wiener", "--num", "16", "--out", "card"]) == 0
    said = capsys.readouterr().out
    assert "model.pt: its weights are ema, the averaged ones (not model)" in said
    assert "model.pt: it predicts epsilon at linear noise levels, called as net(x, t)" in said
    images, test = (scorelens.load_images("digits", split=split) for split in ("train", "test"))
    levels = json.loads(Path("card/report_card.json").read_text())["levels"]
    card = scorelens.report_card(scorelens.load_network("digits-unet"), images, test, formulas=["wiener"], count=16,
                                 sigmas=[level["sigma"] for level in levels][3:5])
    for level, expected in zip(levels[3:5], card.levels, strict=True):
        assert level["error"]["mean"] == pytest.approx(expected.error.mean, rel=0.05)
    assert main(["sensitivity", *DATA, *NET, "--model", file, "--num", "2", "--steps", "3", "--out", "fields"]) == 0


@pytest.mark.e2e
def test_a_file_is_compared_and_benchmarked(file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", *DATA, *NET, "--reference", file, "--model", "wiener", "digits-unet", "--num", "4",
                 "--skip-single-steps", "--out", "compared"]) == 0
    rows = {row.label: row for row in read_rows(Path("compared/rows.jsonl"))}
    assert rows["digits-unet"].r2["mean"] > 0.9 > rows["wiener"].r2["mean"]
    assert "--value-range takes two numbers" in refused(capsys, "compare", *DATA, "--reference", file, "--value-range",
                                                        "0")
    assert "but not the code of their network: give module=" in refused(capsys, "explain", file, *DATA)


def refused(capsys: pytest.CaptureFixture, *argv: str) -> str:
    assert main(list(argv)) == 2
    return capsys.readouterr().err


@pytest.mark.e2e
def test_the_papers_networks_in_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture) -> None:
    """--reference paper:mnist needs no --data: the cells of the preset on MNIST, with the paper's thresholds."""
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", "table1", "--reference", "paper:cifar10", "--dry-run"]) == 0
    cells = capsys.readouterr().out
    assert "samples cifar10: locality:threshold=0.05, 128 samples" in cells and "another seed" not in cells
    assert main(["bench", "run", "table-appendix", "--reference", "paper:afhq", "--dry-run"]) == 0
    assert "samples afhq-cats: locality:threshold=0.02" in capsys.readouterr().out
    assert "unknown network of the paper 'cifar'" in refused(capsys, "bench", "run", "table1", "--reference",
                                                             "paper:cifar")
    weights = Weights()
    with torch.no_grad():
        pytorch_ddpm(weights, torch.zeros(1, 1, 28, 28), torch.tensor([0]), 32, (1, 1))
    file = tmp_path / "data" / "baseline_unet" / "mnist" / "ckpt_epoch_200.pt"
    file.parent.mkdir(parents=True)
    torch.save({"model_state_dict": dict(weights)}, file)
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 40), ("t10k", 10)):
        pixels = torch.randint(256, (count, 28, 28), generator=torch.Generator().manual_seed(0)).byte().numpy()
        _write_idx(raw / f"{prefix}-images-idx3-ubyte", pixels)
        _write_idx(raw / f"{prefix}-labels-idx1-ubyte", pixels[:, 0, 0] % 10)
    assert main(["bench", "run", "runtime", "--reference", "paper:mnist", "--root", str(tmp_path / "data"), "--only",
                 "wiener", "--out", "bench"]) == 0
    (row,) = read_rows(Path("bench/rows.jsonl"))
    assert not row.failed and row.settings["dataset"] == "mnist" and row.settings["reference"] == "paper:mnist"
    assert row.network["source"] == "paper:mnist" and row.network["class"] == "UNet2DModel"


def _write_idx(path: Path, array) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
