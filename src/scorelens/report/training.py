"""The loss curve of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scorelens.report.figures import MUTED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training_figure(losses: Sequence[float], batch: int, *, title: str,
                    agreement: Sequence[tuple[int, float]] = ()) -> Figure:
    """The loss by images seen (each step pale, the running mean dark) and, if given, the r2 with another seed."""
    titles, width = ((title, ""), 9.5) if agreement else ((title,), 6.0)
    figure, (axes, *others) = panels(*titles, size=(width, 3.2))
    window = max(1, len(losses) // 100)
    means = np.convolve(losses, np.ones(window) / window, mode="valid")
    seen = batch * np.arange(1, len(losses) + 1)
    middle = seen[window // 2:window // 2 + len(means)]
    axes.loglog(seen, losses, color=MUTED, lw=0.4, alpha=0.35, rasterized=True)
    axes.loglog(middle, means, color="#1f6fb4", lw=1.8)
    axes.set(xlabel="images seen", ylabel="loss", xlim=(0.9 * middle[0], seen[-1] * 1.1))
    if agreement:
        images, scores = zip(*agreement, strict=True)
        others[0].semilogx(images, scores, "-o", color="#c8502d", ms=4, lw=1.6)
        others[0].set(xlabel="images seen", ylabel="r2 between the two seeds", ylim=(min(0.0, *scores), 1.02))
    return figure
