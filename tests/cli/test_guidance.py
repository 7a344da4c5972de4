"""--labels and --guidance in the commands, on a small class-conditional network."""

import json
from pathlib import Path

import numpy as np
import pytest

from scorelens import load_images, train
from scorelens.analysis.guidance import Guidance
from scorelens.app.session import Session, Start
from scorelens.cli.parser import main

DATA = ["--data", "digits", "--split", "train", "--limit", "300"]
GUIDED = ["--labels", "3", "8", "--guidance", "2.5"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    images = load_images("digits", split="train", limit=300)
    return str(train(images, tmp_path_factory.mktemp("nets") / "classes", conditional=True, epochs=0.3).folder)


@pytest.mark.e2e
def test_sample(network: str, tmp_path: Path) -> None:
    """Networks and formulas; the record says which classes."""
    for name, model in (("net", ["--network", network]), ("formula", ["--denoiser", "wiener"])):
        out = tmp_path / name
        assert main(["sample", *DATA, *model, *GUIDED, "--num", "3", "--steps", "3", "--out", str(out)]) == 0
        assert json.loads((out / "run.json").read_text())["guidance"] == {"labels": [3, 8, 3], "weight": 2.5}
    plain, other = (tmp_path / name for name in ("plain", "other"))
    for out, weight in ((plain, []), (other, ["--labels", "3", "--guidance", "0"])):
        model = ["--denoiser", "wiener", "--num", "2", "--steps", "3"]
        assert main(["sample", *DATA, *model, *weight, "--out", str(out)]) == 0
    assert (np.load(plain / "images.npz")["floats"] == np.load(other / "images.npz")["floats"]).all()


@pytest.mark.e2e
def test_compare_and_sensitivity(network: str, tmp_path: Path) -> None:
    few = ["--num", "2", "--steps", "3"]
    assert main(["compare", *DATA, "--reference", network, "--model", "wiener", *GUIDED, *few, "--out",
                 str(tmp_path / "compare")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "compare" / "rows.jsonl").read_text().splitlines()]
    assert [row["settings"]["guidance"]["weight"] for row in rows] == [2.5, 2.5]
    assert main(["sensitivity", *DATA, "--model", network, "wiener", *GUIDED, *few, "--levels", "2", "--out",
                 str(tmp_path / "fields")]) == 0
    assert json.loads((tmp_path / "fields" / "run.json").read_text())["guidance"]["labels"] == [3, 8]


@pytest.mark.e2e
def test_bench(network: str, tmp_path: Path) -> None:
    """The preset guidance on one's own data and network, with one's own weights and classes."""
    out = tmp_path / "bench"
    assert main(["bench", "run", "guidance", "--data", "digits", "--reference", network, "--guidance", "1", "3",
                 "--labels", "3", "8", "--only", "wiener", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [row["options"]["guidance"] for row in rows] == [1.0, 3.0] and not any(row.get("failed") for row in rows)
    assert len(rows[0]["metrics"]["directions"]) == 10 and "directions" not in rows[1]["metrics"]
    assert "w = 3" in (out / "report.html").read_text()


def test_the_app_shows_guided_models(network: str) -> None:
    images = load_images("digits", split="train", limit=300)
    guided, plain = (Session(images, ["wiener"], [network], guidance=each) for each in (Guidance((3,), 2.5), None))
    assert guided.describe()["data"]["guidance"] == "class 3, guidance 2.5" and not plain.describe()["data"]["guidance"]
    assert [model["is_row"] for model in guided.describe()["models"]] == [False, False]
    for name in guided.models:
        steps = [list(session.steps(session.choose(name, {}), Start()))[-1].x0_hat for session in (guided, plain)]
        assert (steps[0] - steps[1]).abs().max() > 1e-3
    fields = list(guided.fields([guided.choose("wiener", {})], guided.choose("classes", {}), Start(), 3, (4, 4)))
    assert fields[-1].model == "wiener"


def test_mistakes(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in ((["--guidance", "2"], "guidance needs classes: give --labels"),
                           (["--labels", "11"], "digits has no class '11'"),
                           (["--labels", "1", "2", "3"], "3 labels were given for 2 images")):
        assert main(["sample", *DATA, "--num", "2", *words]) == 2
        assert message in capsys.readouterr().err
