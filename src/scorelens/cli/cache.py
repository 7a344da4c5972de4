"""`scorelens cache`: what the cache folder holds, and removing it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from scorelens.entries import list_entries, remove_entries
from scorelens.files import cache_base
from scorelens.report.tables import markdown
from scorelens.types import ScorelensError
from scorelens.validation import unknown

LEFT_OVER = ("unfinished", "unused")


def cache_list() -> None:
    """List the files and bytes of each kind of cached data, and what is damaged or left over."""
    entries, rows = list_entries(), []
    for kind in dict.fromkeys(entry.kind for entry in entries):
        own = [entry for entry in entries if entry.kind == kind]
        rows.append([kind, str(len(own)), _megabytes(sum(entry.size for entry in own)),
                     str(sum(entry.state == "damaged" for entry in own)),
                     str(sum(entry.state in LEFT_OVER for entry in own))])
    print(f"{cache_base()}: {_megabytes(sum(entry.size for entry in entries))}")
    if rows:
        print(f"\n{markdown(['kind', 'files', 'size', 'damaged', 'left over'], rows)}")


def cache_clear(*, kind: Sequence[str] = (), older_than: float = 0.0, damaged: bool = False) -> None:
    """Remove cached data; whatever is needed again is computed again.

    Args:
        kind: remove only these kinds, such as images or gaussian; by default all.
        older_than: remove only files older than this many days.
        damaged: remove only what is damaged or left over.
    """
    if not (older_than >= 0 and math.isfinite(older_than)):
        raise ScorelensError(f"older_than must be a number of days, at least 0; got {older_than:g}")
    entries = list_entries()
    known = {entry.kind for entry in entries}
    for name in kind:
        if name not in known:
            raise unknown("kind of cached data", name, known) if known else ScorelensError("the cache is empty")
    limit = time.time() - older_than * 24 * 3600
    chosen = [entry for entry in entries if (not kind or entry.kind in kind) and entry.changed <= limit
              and (not damaged or entry.state)]
    print(f"removed {len(chosen)} files, {_megabytes(remove_entries(chosen))}, from {cache_base()}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
