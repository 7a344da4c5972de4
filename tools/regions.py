"""Generated regions of Markdown pages: whatever stands around them is written by people."""

from __future__ import annotations

import re
from collections.abc import Mapping

REGION = re.compile(r"(<!-- begin (?P<name>[\w-]+)[^>]*-->\n)(?P<content>.*?)(<!-- end (?P=name) -->)", re.DOTALL)


def with_regions(page: str, regions: Mapping[str, str]) -> str:
    """The page with new content in its regions `<!-- begin NAME ... -->` to `<!-- end NAME -->`.

    Raises if the page lacks one of them, or has one that nobody generates.
    """
    found = [match["name"] for match in REGION.finditer(page)]
    if sorted(found) != sorted(regions):
        raise ValueError(f"the page has the regions {sorted(found)}, the generator {sorted(regions)}")
    return REGION.sub(lambda match: f"{match[1]}{regions[match['name']].rstrip()}\n{match[4]}", page)


def marked(name: str, content: str, source: str) -> str:
    """A region with its marks."""
    return f"<!-- begin {name}: written by tools/pages.py from {source} -->\n{content.rstrip()}\n<!-- end {name} -->\n"
