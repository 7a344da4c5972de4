"""The direction of imports: a module may use only what stands before it in the architecture."""

import ast
import statistics
from pathlib import Path

import pytest

from scorelens import DENOISERS

SOURCE = Path(__file__).parents[1] / "src" / "scorelens"
BASE = {"types", "validation", "progress", "files", "entries", "timings", "distributed"}  # what everyone may use
MODELS = {"noise", "data", "statistics", "posterior", "jacobian", "denoisers", "networks", "sampling", "metrics"}
MAY_IMPORT = {  # results draw themselves: the tables and figures of report take their plain rows
    "types": set(),
    "validation": {"types"},
    "progress": set(),
    "timings": set(),
    "distributed": {"types"},
    "files": {"types", "distributed"},
    "entries": {"types", "files"},
    "results": BASE,
    "noise": BASE,
    "data": BASE,
    "statistics": BASE | {"data"},
    "posterior": BASE | {"data", "statistics"},
    "jacobian": BASE,
    # noise for its grids, the Jacobian for masks measured on a network: neither knows more than types
    "denoisers": BASE | {"noise", "data", "statistics", "posterior", "jacobian"},
    "networks": BASE | {"noise", "data", "sampling", "results", "report"},
    "sampling": BASE | {"noise", "report"},
    "metrics": BASE | {"data", "statistics"},
    "checks": BASE | {"noise", "data"},
    "analysis": BASE | MODELS | {"results", "report"},
    "paper": BASE | MODELS | {"results", "analysis"},
    "report": BASE | {"data", "results", "analysis", "paper"},
    "interop": BASE | {"noise", "data", "denoisers"},
    "app": BASE | MODELS | {"analysis"},
}
EVERYTHING = {*MAY_IMPORT, "cli"}
MAY_IMPORT |= {"cli": EVERYTHING | {"__version__"}, "__init__": EVERYTHING}


def imported(path):
    """The top-level parts of scorelens that a file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "scorelens":
            parts = node.module.split(".")
            yield from ([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("scorelens."))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert part in MAY_IMPORT, f"{part} has no place in the architecture yet: add it to MAY_IMPORT"
    assert set(imported(path)) <= MAY_IMPORT[part] | {part}


def test_only_noise_knows_timesteps():
    """DDPM's alphas and betas appear nowhere but in noise.py and networks/adapters.py."""
    for path in SOURCE.rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        knowing = path.relative_to(SOURCE).as_posix() in ("noise.py", "networks/adapters.py")
        assert knowing or not {"alphas", "betas", "timesteps"} & names, path


def test_a_method_is_a_short_file():
    """The median file that holds a method of the registry has fewer than 80 lines."""
    files = {SOURCE / "denoisers" / f"{builder.__module__.split('.')[-1]}.py" for builder in DENOISERS.values()}
    assert statistics.median(len(path.read_text().splitlines()) for path in files) < 80
