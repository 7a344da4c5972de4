"""The notebooks run from top to bottom, and are committed without output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def cells(path, kind):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    done = subprocess.run([sys.executable, "-c", "\n".join(cells(path, "code"))], cwd=tmp_path, text=True,
                          env={**os.environ, "MPLBACKEND": "agg"}, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_clean(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4 and len(notebook["cells"]) < 15
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook["cells"])


def test_the_notebook_of_methods_is_the_guides():
    guide = (Path(__file__).parents[1] / "docs" / "adding_a_method.md").read_text()
    for code in cells(NOTEBOOKS[0], "code")[:3]:
        assert code in guide
