"""The commands, links and Python of the README and the docs work: those that need the reader's files are parsed."""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scorelens
from scorelens.cli import parser
from scorelens.cli.parser import COMMANDS, main

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
COMMAND = re.compile(r"^ *(scorelens [a-z-].*)$", re.MULTILINE)


def blocks(language, page=README):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def run_commands():
    """Those in blocks of bash, once each; `demo` runs below, with fewer samples."""
    found = [line for page in PAGES for block in blocks("bash", page.read_text()) for line in COMMAND.findall(block)]
    return [line for line in dict.fromkeys(found) if shlex.split(line, comments=True) != ["scorelens", "demo"]]


def shown_commands():
    """All others: they name files, data or repositories of the reader."""
    found = [line for page in PAGES for line in COMMAND.findall(page.read_text())]
    return [line for line in dict.fromkeys(found) if line not in run_commands()]


@pytest.mark.parametrize("command", run_commands())
def test_commands_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command, comments=True)[1:]) == 0


@pytest.mark.parametrize("command", shown_commands())
def test_commands_have_real_flags(command):
    name, words = parser._command(shlex.split(command, comments=True)[1:])
    configs, words = parser._values("--config", words)
    words = [word for path in configs if "." not in path
             for word in parser._config_words(parser._config_file(path))] + words
    parser._parser(name, words).parse(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*name.split(), "--help"]) == 0
    assert COMMANDS[name].example in capsys.readouterr().out
    if name == "app":  # it serves until someone ends it; tests/app does
        return
    if name == "bench report":
        assert main(shlex.split(COMMANDS["bench run"].example)[1:]) == 0
    fewer = ["--num", "16"] if name == "demo" else []  # the whole demo takes half a minute
    assert main([*shlex.split(COMMANDS[name].example)[1:], *fewer]) == 0


def test_readme_python_runs(tmp_path):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([8, 1, 8, 8])" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_pages_calls_what_exists(page):
    """Each call of a public function has a name and options that it takes, also where the data are the reader's."""
    text = page.read_text()
    lines = re.findall(r"^ {4}(.*scorelens\.\w+\(.*\).*)$", text, re.MULTILINE)
    for code in [*blocks("python", text), *(line for line in lines if not line.startswith(("python ", " ")))]:
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            function = getattr(scorelens, name.removeprefix("scorelens."), None) if "." not in name[10:] else None
            assert function or not re.fullmatch(r"scorelens\.\w+", name), name
            if inspect.isfunction(function):
                parameters = inspect.signature(function).parameters
                taken = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
                assert taken or {word.arg for word in call.keywords} <= set(parameters), ast.unparse(call)


@pytest.mark.parametrize("name", ["attribution"])
def test_python_of_a_page_runs(name, tmp_path):
    (code,) = blocks("python", (ROOT / "docs" / f"{name}.md").read_text())
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "mosaic.png").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`?make ([a-z-]+)`|^make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= {
        pair for target in targets for pair in ((target, ""), ("", target))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_files_and_headings(page):
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


def test_equations_name_code_and_tests_that_exist():
    for cells in re.findall(r"^\| .*", (ROOT / "docs" / "equations.md").read_text(), re.MULTILINE)[2:]:
        code, test = [cell.strip() for cell in cells.strip("| ").split(" | ")][-2:]
        for name in re.findall(r"`([^`]+)`", test):
            path, _, function = name.partition("::")
            assert function in (ROOT / "tests" / path).read_text(), name
        for name in re.findall(r"`([\w/.]+)", code):
            word = name.removesuffix(".py").rstrip("/").split("/")[-1].split(".")[-1]
            sources = [p for p in (ROOT / "src").rglob("*.py") if p.stem == word or p.parent.name == word
                       or re.search(rf"(def|class) {word}\b", p.read_text())]
            assert sources, name


def test_the_guide_to_a_new_method_names_code_that_exists():
    """Every helper and attribute in its tables is a definition in the source."""
    guide = (ROOT / "docs" / "adding_a_method.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "scorelens").rglob("*.py"))
    for first in re.findall(r"^\| (`.*?) \|", guide, re.MULTILINE):
        for name in re.findall(r"`([\w.]+)", first):
            word = name.split(".")[-1]
            assert re.search(rf"(def|class) {word}\b|^    {word}:|\"{word}\"", source, re.MULTILINE), name


def test_the_guide_to_a_new_method_runs(capsys):
    """Its blocks, one after the other, as a reader would paste them; the registry is left as it was."""
    from scorelens import DENOISERS, build_denoiser, load_images

    guide = (ROOT / "docs" / "adding_a_method.md").read_text()
    known, names = dict(DENOISERS), {}
    try:
        for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
            exec(compile(code, "adding_a_method.md", "exec"), names)
        assert "r2 against the network: 0." in capsys.readouterr().out
        images = load_images("digits", limit=100)
        z = images[:2] + 0.3
        whole = build_denoiser("rows", images, reach=8)
        torch.testing.assert_close(whole(z, 0.5), build_denoiser("optimal", images)(z, 0.5), rtol=0, atol=1e-5)
        assert (build_denoiser("rows", images)(z, 0.5) - whole(z, 0.5)).abs().max() > 0.01
        torch.testing.assert_close(build_denoiser("hard-wiener", images, snr=0)(z, 0.5), z, rtol=0, atol=1e-5)
        assert (build_denoiser("hard-wiener", images)(z, 0.5) - z).abs().max() > 0.01
    finally:
        DENOISERS.clear()
        DENOISERS.update(known)
