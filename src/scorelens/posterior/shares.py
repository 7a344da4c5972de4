"""What each of several processes averages: a share of the source, and the processes that have the others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scorelens import distributed
from scorelens.distributed import World
from scorelens.posterior.patches import Translations
from scorelens.posterior.slots import Source


@dataclass(frozen=True)
class Share:
    """Rows of a source, which is read there and nowhere else."""

    source: Source
    rows: range
    team: World


def share_of(source: Source) -> Share:
    """Neighbouring images for each process, so that of a memory-mapped file it holds only its part in memory."""
    if isinstance(source, Translations):  # whose neighbours are all images, translated alike
        count = len(source.images)
        own = replace(source, images=source.images.part(distributed.team(count).share(count)))
        return Share(own, range(len(own)), distributed.team(count))
    team = distributed.team(len(source))
    return Share(source, team.share(len(source)), team)
