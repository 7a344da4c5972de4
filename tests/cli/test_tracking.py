"""--log: curves in TensorBoard or Weights & Biases; nothing is logged, and nothing imported, by default."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from scorelens.cli import parser
from scorelens.cli.parser import CONFIGS, main
from scorelens.cli.tracking import tracked
from scorelens.paper.presets import DATASETS
from scorelens.types import ScorelensError

TRAIN = ["train", "--data", "digits", "--limit", "64", "--epochs", "1.5", "--out", "run"]


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that knows just the calls we make."""
    module, runs = ModuleType("wandb"), []

    def init(**settings):
        run = SimpleNamespace(settings=settings, logged=[], finished=False)
        run.log = lambda numbers, step: run.logged.append((step, numbers))
        run.finish = lambda: setattr(run, "finished", True)
        runs.append(run)
        return run

    module.init, module.__spec__ = init, ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


@pytest.mark.e2e
def test_train_logs_every_loss(wandb, tmp_path, monkeypatch):
    """The same numbers as losses.json, from step 1; run.json lies beside."""
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--log", "wandb"]) == 0
    (run,) = wandb
    assert run.settings["config"]["epochs"] == 1.5 and run.settings["resume"] == "allow" and run.finished
    losses = json.loads((tmp_path / "run" / "losses.json").read_text())
    assert [(step, round(numbers["loss"], 6)) for step, numbers in run.logged] == list(enumerate(losses, start=1))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["log"] == "wandb" and record["data"]["count"] == 64 and record["environment"]["versions"]
    assert main([*TRAIN, "--log", "wandb"]) == 0 and len(wandb) == 1  # trained already: nothing to log


@pytest.mark.e2e
def test_bench_logs_every_cell(wandb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", "softmax", "--only", "digits", "--log", "wandb", "--out", "run"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    assert [numbers[f"r2/{row['name']}"] for (_, numbers), row in zip(wandb[0].logged, rows, strict=True)] == [
        row["metrics"]["r2"]["mean"] for row in rows]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["cells"] == len(rows)


def test_tensorboard_gets_a_file(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracked("tensorboard", tmp_path, {}) as add:
        add(1, {"loss": 0.5})
        add(2, {"loss": 0.25})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]


def test_a_missing_extra_is_one_line_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ScorelensError, match=r"pip install 'scorelens\[wandb\]'"), tracked("wandb", tmp_path, {}):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_flags_of_their_command(path):
    """Each holds only known flags, and the threshold of the preset of its dataset."""
    name = "train" if path.stem.startswith("train-") else "sample"
    words = list(parser._config_words(parser._config_file(path.stem)))
    given = parser._parser(name, words).parse(words)
    config = yaml.safe_load(path.read_text())
    assert given["data"] == config["data"] == path.stem.removeprefix("train-")
    if name == "sample":
        source = {(each.at_paper_scale or (dataset,))[0]: each for dataset, each in DATASETS.items()}[given["data"]]
        assert given["denoiser.threshold"] == source.threshold
        assert (source.at_paper_scale or ("", source.options))[1] == {
            key: config[key] for key in ("resolution",) if key in config}


def test_an_unknown_config_is_answered_with_the_nearest(capsys):
    assert main(["sample", "--config", "cifar"]) == 2
    assert "did you mean 'cifar10'" in capsys.readouterr().err
