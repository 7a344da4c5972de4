"""The generated region of docs/reliability.md: what was tried to break Scorelens, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.tables import Columns, paragraph, table

TABLE: Columns = {"suite": "{r[suite]}", "what": "{r[about]}", "tried": lambda r: f"{r['tried']:,} of {r['full']:,}",
                  "answered": "{r[answered]:,}", "refused": "{r[refused]:,}", "failed": "{r[failed]:,}"}


def reliability_regions(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The table of the campaign, and the failures that remain."""
    tried, failed = (sum(row[key] for row in rows) for key in ("tried", "failed"))
    parts = [table(rows, TABLE), paragraph(f"{tried:,} cases in {len(rows)} suites; {failed:,} failed.")]
    if failed:
        examples = [f"- {row['suite']}: `{example}`\n" for row in rows for example in row["examples"]]
        parts.append("Failures that remain:\n\n" + "".join(examples))
    return {"torture": "\n".join(parts)}
