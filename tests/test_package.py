"""What a stranger installs: declared dependencies, one version, and a wheel that holds the package and nothing else."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import scorelens

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scorelens"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # of modules with other names
NOT_SHIPPED = {"__pycache__"}


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_every_import_is_declared():
    """In the dependencies or in an extra; not only installed because something else needs it."""
    optional = PROJECT["project"]["optional-dependencies"]
    users = [each for extra, requirements in optional.items() if extra not in ("dev", "docs") for each in requirements]
    declared = names_of(PROJECT["project"]["dependencies"] + users)
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    outside = imported - set(sys.stdlib_module_names) - {"scorelens"}
    assert {DISTRIBUTIONS.get(name, name).lower().replace("_", "-") for name in outside} <= declared


def test_the_version_has_one_source():
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "scorelens.__version__"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == scorelens.__version__
    assert f"({scorelens.__version__})" in (ROOT / "CHANGELOG.md").read_text() or \
        f"## {scorelens.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_tests_every_supported_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["fast"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == ">=3.10"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    called = {word for step in steps for word in re.findall(r"make ([\w-]+)", step)}
    assert called and called <= set(targets)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src"):
        (source / name).symlink_to(ROOT / name)
    return build(source, "build_wheel")


def build(source: Path, what: str) -> Path:
    """Call the build backend in `source`; the result lies beside it."""
    script = f"from setuptools import build_meta; print(build_meta.{what}('..'))"
    done = subprocess.run([sys.executable, "-c", script], cwd=source, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return source.parent / done.stdout.split()[-1]


@pytest.mark.slow
def test_the_source_distribution_holds_the_repository(tmp_path):
    """Tests, docs, tools, measurements and pinned versions too; but not the networks of zoo/, which are fetched."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name for name in done.stdout.splitlines()
              if not name.startswith(("zoo/", ".ci/")) and name != ".gitignore"}
    for name in wanted:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).symlink_to(ROOT / name)
    built = build(tmp_path / "source", "build_sdist")
    with tarfile.open(built) as archive:
        found = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert wanted <= found, sorted(wanted - found)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """Every file of src/scorelens: code, templates, the page of the app, configs, the digits' networks, the index."""
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*")
              if path.is_file() and not NOT_SHIPPED & set(path.parts) and not path.name.startswith(".")}
    assert found == wanted
    assert f"scorelens-{scorelens.__version__}-" in wheel.name
    for name in ("scorelens/py.typed", "scorelens/zoo/index.json", "scorelens/configs/cifar10.yaml",
                 "scorelens/zoo/digits-unet/unet/diffusion_pytorch_model.safetensors", "scorelens/app/page/index.html"):
        assert name in found
    assert wheel.stat().st_size < 6e6


@pytest.mark.e2e
def test_the_wheel_runs_the_demo_in_an_empty_folder(wheel, tmp_path):
    """Unpacked far from the checkout: no zoo/, no docs, nothing but the package."""
    unpacked, empty = tmp_path / "unpacked", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(unpacked)
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "SCORELENS_ZOO": ""}

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(unpacked) in run("-c", "import scorelens; print(scorelens.__file__)")
    assert "report.html" in run("-m", "scorelens.cli", "demo", "--num", "16")
    assert {path.name for path in empty.iterdir()} == {"runs"}
    listed = run("-m", "scorelens.cli", "zoo", "list")
    assert re.search(r"mnist-unet .* no +\|", listed)
    assert re.search(rf"digits-unet .*{re.escape(str(unpacked))}", listed)
