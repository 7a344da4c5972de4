"""Where committed results lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scorelens.results import Row, read_rows

ROOT = Path(__file__).parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "perf" / "results"


def results(name: str = "bench") -> list[Row]:
    """Committed rows of one schema: of the paper's presets, or of another comparison."""
    return read_rows(RESULTS / f"{name}.jsonl")


def rows_of(name: str) -> list[dict[str, Any]]:
    """The committed rows of a benchmark; none, if it has not run."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
