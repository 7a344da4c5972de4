"""`scorelens train`: killed at any moment, the same command goes on and ends with the same weights."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from types import SimpleNamespace

import pytest
import torch

import scorelens
from scorelens.cli.parser import main
from scorelens.networks import load_network, training
from scorelens.types import ScorelensError

pytestmark = pytest.mark.e2e
COMMAND = ["train", "--data", "digits", "--limit", "64", "--epochs", "12", "--batch", "16", "--device", "cpu"]
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def command(out, *more):
    return [sys.executable, "-m", "scorelens.cli", *COMMAND, "--out", str(out), *more]


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)


def start(out, *more):
    return subprocess.Popen(command(out, "--save-seconds", "0", *more), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that nobody interrupted."""
    out = tmp_path_factory.mktemp("train") / "whole"
    subprocess.run(command(out), check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return out


def test_a_finished_folder_has_everything(whole):
    found = {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()}
    assert found >= {"card.json", "README.md", "loss.png", "losses.json", "samples.png", "model_index.json", WEIGHTS,
                     "scheduler/scheduler_config.json", "training.json"}
    assert not {"checkpoint.safetensors"} & found
    card = json.loads((whole / "card.json").read_text())
    assert card["data"]["count"] == 64 and card["steps"] == 48 and card["images_seen"] == 768 and card["seed"] == 0
    assert card["environment"]["versions"]["torch"] and card["data"]["fingerprint"] in (whole / "README.md").read_text()
    assert load_network(whole).shape == (1, 8, 8)


def test_diffusers_itself_reads_the_folder(whole):
    """It is an ordinary pipeline, for people who do not have Scorelens."""
    from diffusers import DDIMPipeline

    pipeline = DDIMPipeline.from_pretrained(whole, low_cpu_mem_usage=False)
    assert pipeline.scheduler.config.prediction_type == "v_prediction" and pipeline.unet.config.sample_size == 8


def test_a_network_that_is_saved_again_forgets_where_it_came_from(whole, tmp_path):
    from diffusers import UNet2DModel

    from scorelens.networks.folders import export_network

    model = UNet2DModel.from_pretrained(whole / "unet", low_cpu_mem_usage=False)
    assert str(whole) in str(model.config["_name_or_path"])
    export_network(model, "epsilon", tmp_path / "again")
    assert str(whole) not in (tmp_path / "again" / "unet" / "config.json").read_text()
    assert load_network(tmp_path / "again").shape == (1, 8, 8)


def test_killed_twice_it_ends_with_the_same_weights(whole, tmp_path):
    out = tmp_path / "killed"
    for _ in range(2):
        process = start(out)
        checkpoint = out / "checkpoint.safetensors"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        wait_for(lambda c=checkpoint, b=before: c.exists() and c.stat().st_mtime_ns > b, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (out / "card.json").exists()
    ended = subprocess.run(command(out), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0 and "resuming at step" in ended.stdout
    assert (out / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert (out / "losses.json").read_text() == (whole / "losses.json").read_text()


def test_a_second_training_in_the_same_folder_is_refused(tmp_path):
    out = tmp_path / "busy"
    endless = ("--epochs", "100000")
    first = start(out, *endless)
    try:
        wait_for((out / "checkpoint.safetensors").exists, first)
        second = subprocess.run(command(out, *endless), capture_output=True, text=True)
        assert second.returncode == 2
        assert "another training is running" in second.stderr and second.stderr.count("\n") == 1
    finally:
        first.kill()
        first.communicate()


def test_other_settings_do_not_go_on(whole, capsys):
    assert main([*COMMAND, "--out", str(whole), "--seed", "5"]) == 2
    assert "seed: 0 there, 5 now" in capsys.readouterr().err


def test_a_finished_training_is_left_alone(whole, capsys):
    before = (whole / WEIGHTS).stat().st_mtime_ns
    assert main([*COMMAND, "--out", str(whole)]) == 0
    assert "already" in capsys.readouterr().out and (whole / WEIGHTS).stat().st_mtime_ns == before


def test_a_folder_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main([*COMMAND, "--out", str(tmp_path)]) == 2
    assert "holds no training" in capsys.readouterr().err


def test_nan_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, capsys):
    """The loss is poisoned at step 5; the checkpoint of step 4 stays, and the message says so."""
    import scorelens.networks.training_loop as module

    plain = module._loss
    calls = []

    def poisoned(*given):
        calls.append(1)
        return plain(*given) * (float("nan") if len(calls) == 5 else 1.0)

    monkeypatch.setattr(module, "_loss", poisoned)
    assert main([*COMMAND, "--out", str(tmp_path / "out"), "--save-seconds", "0"]) == 2
    told = capsys.readouterr().err
    assert "the loss is nan at step 5" in told and "learning-rate" in told and told.count("\n") == 1
    from safetensors import safe_open

    with safe_open(tmp_path / "out" / "checkpoint.safetensors", "pt") as file:
        assert file.metadata()["step"] == "4"


def test_minutes_decide_the_number_of_steps(tmp_path, monkeypatch):
    """By a clock of our own, on which the trial takes as long as six steps may."""
    ticks = count(step=60 * 0.02 * training.TIMED_STEPS / 6)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    short = [word for word in COMMAND if word not in ("--epochs", "12")]
    assert main([*short, "--minutes", "0.02", "--snapshots", "2", "--out", str(tmp_path / "out")]) == 0
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["steps"] == 6 and card["minutes"] == 0.02 and card["epochs"] is None
    assert load_network(next((tmp_path / "out" / "snapshots").iterdir())).shape == (1, 8, 8)


@pytest.mark.parametrize("flags, told", [(["--minutes", "1"], "not both"), (["--epochs", "0"], "epochs must be"),
                                         (["--epochs", "1e30"], "at most 10,000,000, got 1e+30"),
                                         (["--network", "unett"], "unett"), (["--batch", "0"], "batch must be"),
                                         (["--batch", "-1"], "batch must be"), (["--seed", "-1"], "seed must be")])
def test_impossible_wishes_are_refused(flags, told, tmp_path, capsys):
    assert main([*COMMAND, "--out", str(tmp_path / "out"), *flags]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    from scorelens.files import resumable_folder

    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "out"
    with pytest.raises(ScorelensError, match="cannot write to"), resumable_folder(folder, {}, "training"):
        pass


def test_a_training_can_start_from_another_network(whole, tmp_path, capsys):
    """With a step too small to change anything, it ends where it started; another architecture is refused."""
    out = tmp_path / "on"
    flags = ["--start", str(whole), "--learning-rate", "1e-30", "--precision", "float32"]
    assert main([*COMMAND, "--epochs", "1", "--out", str(out), *flags]) == 0
    noise = scorelens.seeded_noise((1, 8, 8), [0])
    before, after = (load_network(folder)(noise, 1.0) for folder in (whole, out))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    card = json.loads((out / "card.json").read_text())
    assert card["start"]["name"] == whole.name and "the weights of" in (out / "README.md").read_text()
    assert main([*COMMAND, "--out", str(tmp_path / "other"), "--start", str(whole), "--network", "dit"]) == 2
    assert "another architecture" in capsys.readouterr().err
