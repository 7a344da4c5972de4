"""Tables and numbers as the generated pages print them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from textwrap import fill
from typing import Any

from scorelens.report.tables import markdown

MISSING = "–"
Columns = Mapping[str, str | Callable[[Any], str]]


def table(rows: Iterable[Any], columns: Columns) -> str:
    """A Markdown table. Each header has the text of its cells: a format string of the row `r`, or a function of it."""
    return markdown(list(columns), [[text.format(r=row) if isinstance(text, str) else text(row)
                                     for text in columns.values()] for row in rows]) + "\n"


def mean(values: Iterable[float]) -> str:
    """Their mean with two decimals."""
    numbers = list(values)
    return f"{sum(numbers) / len(numbers):.2f}" if numbers else MISSING


def paragraph(text: str) -> str:
    """The text in lines of at most 120 characters."""
    return fill(" ".join(text.split()), 120) + "\n"
