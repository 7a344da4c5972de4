"""The clustered approximation of the posterior over patches: a patch is compared with the nearest clusters only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import distributed, progress
from scorelens.data.images import to_floats
from scorelens.posterior.sources import Patches

SAMPLE = 100  # patches for each cluster that the centres are fitted to
CHUNK = 2**15  # patches at a time


@dataclass(frozen=True, eq=False)
class Clusters:
    """Patches of the data in clusters. A noisy patch is compared with the `searched` clusters nearest to its own."""

    patches: Patches
    centres: Float[np.ndarray, "k d"]
    members: list[Int[np.ndarray, "_"]]  # of each cluster
    searched: int

    def groups(self, z: Float[Tensor, "n d"]) -> Iterator[tuple[Int[Tensor, "m"], Patches]]:
        """The noisy patches of each cluster, and the source to compare them with."""
        own = _broadcast(_nearest(z.detach().float().cpu().numpy(), self.centres))
        for cluster in np.unique(own):
            distances = ((self.centres - self.centres[cluster]) ** 2).sum(axis=1)
            near = np.argsort(distances, kind="stable")[:self.searched]
            indices = np.sort(np.concatenate([self.members[k] for k in near]))
            yield torch.from_numpy(np.flatnonzero(own == cluster)).to(z.device), replace(self.patches, indices=indices)


def fit_clusters(patches: Patches, count: int, searched: int, seed: int = 0) -> Clusters:
    """k-means of a sample of the patches, then every patch to its nearest centre."""
    from sklearn.cluster import MiniBatchKMeans

    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(len(patches), min(len(patches), SAMPLE * count), replace=False))
    means = MiniBatchKMeans(count, random_state=seed, n_init=1).fit(_floats(patches.take(sample)))
    starts = progress.track(range(0, len(patches), CHUNK), "clusters", unit="chunk")
    chunks = (_floats(patches.raw(start, min(start + CHUNK, len(patches)))) for start in starts)
    centres = _broadcast(means.cluster_centers_)
    own = _broadcast(np.concatenate([_nearest(chunk, centres) for chunk in chunks]))
    return Clusters(patches, centres, [np.flatnonzero(own == k) for k in range(count)], searched)


def _floats(raw: Tensor) -> Float[np.ndarray, "n d"]:
    return to_floats(raw, torch.empty(raw.shape)).numpy()


def _nearest(x: Float[np.ndarray, "n d"], centres: Float[np.ndarray, "k d"]) -> Int[np.ndarray, "n"]:
    return np.argmin((centres**2).sum(axis=1) - 2 * x @ centres.T, axis=1)


def _broadcast(array: np.ndarray) -> np.ndarray:
    """Rank 0's array, for all processes."""
    return distributed.world().broadcast(torch.from_numpy(array)).numpy()
