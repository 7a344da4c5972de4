"""Tables as text: aligned Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in (header, rule, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in aligned)


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
