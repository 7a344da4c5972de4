"""What the documents say comes from committed rows."""

import json
from pathlib import Path

from benchmarks.pages import performance_page

ROOT = Path(__file__).parents[1]


def rows(name):
    lines = (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_performance_page_is_written_from_its_rows():
    page = performance_page({row["cell"]: row for row in rows("performance")})
    assert (ROOT / "docs" / "performance.md").read_text() == page, "run python -m benchmarks.pages"


def test_the_foundation_keeps_within_its_limits():
    for row in rows("foundation"):
        assert row["limit"] is None or row["ratio"] <= row["limit"], row["what"]


def test_the_exact_plans_are_as_fast_as_promised():
    """Ten steps, batch 8: CIFAR-10 at least 2.5 times faster than dense, the others at least twice; memory bounded."""
    found = {row["cell"]: row for row in rows("performance")}
    assert found["plans cifar10"]["dense_to_bare"] <= 1.5
    for name, least in [("cifar10", 2.5), ("mnist", 2), ("celeba", 2)]:
        assert found[f"plans {name}"]["ratio_with_masks"] >= least
        assert max(step["largest_difference"] for step in found[f"plans {name}"]["steps"]) < 1e-3
    assert found["memory cifar10"]["peak_bytes"] < 3e9
    assert found["memory celeba"]["peak_bytes"] < 12e9
