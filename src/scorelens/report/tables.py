"""Tables as text: aligned Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NUMBER = re.compile(r"[-+±~]?\d")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first and those of words to the left, numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    left = [k == 0 or not any(map(NUMBER.match, column[1:])) for k, column in enumerate(columns)]
    rule = [":" + "-" * (width - 1) if to else "-" * (width - 1) + ":" for width, to in zip(widths, left, strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (
        [cell.ljust(width) if to else cell.rjust(width) for cell, width, to in zip(row, widths, left, strict=True)]
        for row in (header, rule, *rows)))


def grouped(rows: Iterable[Mapping[str, Any]], key: str) -> dict[Any, list[Mapping[str, Any]]]:
    """The rows by their value of `key`, in the order of its first appearance."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A LaTeX table with booktabs rules."""
    columns = "l" + "r" * (len(header) - 1)
    lines = [" & ".join(map(latex_text, row)) + r" \\" for row in (header, *rows)]
    ends = [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join([r"\begin{table}", r"  \centering", f"  \\caption{{{latex_text(caption)}}}",
                      f"  \\begin{{tabular}}{{{columns}}}", r"    \toprule", f"    {lines[0]}", r"    \midrule",
                      *(f"    {line}" for line in lines[1:]), *ends])


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return text.translate(LATEX)


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A CSV table."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "σ": r"$\sigma$", "γ": r"$\gamma$",
    "−": "$-$", "–": "--", "…": r"\ldots{}", "≈": r"$\approx$", "²": r"$^2$", "×": r"$\times$", "τ": r"$\tau$",
    "→": r"$\to$"})
