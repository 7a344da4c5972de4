"""Tables as text: Markdown that lines up in a terminal, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in a terminal too; the first column is left-aligned, the rest right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    rule = [":" + "-" * (widths[0] - 1), *["-" * (width - 1) + ":" for width in widths[1:]]]
    lines = [_line(cells[0], widths), _line(rule, widths), *[_line(row, widths) for row in cells[1:]]]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return f"| {' | '.join([row[0].ljust(widths[0]), *numbers])} |"


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """The same table for LaTeX, with the rules of booktabs."""
    columns = "l" + "r" * (len(header) - 1)
    lines = [" & ".join(map(latex_text, row)) + r" \\" for row in (header, *rows)]
    ends = [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join([r"\begin{table}", r"  \centering", f"  \\caption{{{latex_text(caption)}}}",
                      f"  \\begin{{tabular}}{{{columns}}}", r"    \toprule", f"    {lines[0]}", r"    \midrule",
                      *(f"    {line}" for line in lines[1:]), *ends])


def latex_text(text: str) -> str:
    """Text with everything that LaTeX would take for a command made harmless."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


LATEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
         "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "σ": r"$\sigma$", "γ": r"$\gamma$",
         "−": "$-$", "–": "--", "…": r"\ldots{}", "≈": r"$\approx$", "²": r"$^2$", "×": r"$\times$", "τ": r"$\tau$",
         "→": r"$\to$"}
