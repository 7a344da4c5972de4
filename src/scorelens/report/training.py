"""Pictures of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scorelens.report.figures import INK, MUTED, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def training_figure(losses: Sequence[float], batch: int, *, title: str,
                    agreement: Sequence[tuple[int, float]] = ()) -> Figure:
    """The loss against images seen and, where it is known, the agreement with another seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5 if agreement else 6.0, 3.2), layout="constrained")
    panels = figure.subplots(1, 2 if agreement else 1, squeeze=False)[0]
    _draw_losses(panels[0], np.asarray(losses), batch)
    if agreement:
        seen, scores = zip(*agreement, strict=True)
        panels[1].semilogx(seen, scores, "-o", color="#c8502d", ms=4, lw=1.6)
        panels[1].set(xlabel="images seen", ylabel="r2 between the two seeds", ylim=(min(0.0, *scores), 1.02))
        quiet(panels[1])
    panels[0].set_title(title, fontsize=10, color=INK, loc="left")
    return figure


def _draw_losses(axes: Axes, losses: np.ndarray, batch: int) -> None:
    """Every step pale, the running mean dark."""
    window = max(1, len(losses) // 100)
    means = np.convolve(losses, np.ones(window) / window, mode="valid")
    seen = batch * np.arange(1, len(losses) + 1)
    axes.loglog(seen, losses, color=MUTED, lw=0.4, alpha=0.35, rasterized=True)
    middle = seen[window // 2:window // 2 + len(means)]
    axes.loglog(middle, means, color="#1f6fb4", lw=1.8)
    axes.set(xlabel="images seen", ylabel="loss", xlim=(0.9 * middle[0], seen[-1] * 1.1))
    quiet(axes)
