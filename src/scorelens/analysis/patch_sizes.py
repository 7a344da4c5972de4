"""Patch sizes fitted to a network: at each step of its own trajectory the size whose score is closest to its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from scorelens import progress
from scorelens.data.images import ImageSet
from scorelens.denoisers import build_denoiser
from scorelens.denoisers.patch_sizes import patch_sizes
from scorelens.files import fresh_folder, write_json
from scorelens.metrics import r2
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.results import noise_record
from scorelens.sampling import Samples, sample
from scorelens.types import Denoiser, ScorelensError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"r2": r2, "cosine": lambda p, r: cosine_similarity(p.flatten(1), r.flatten(1))}
PATCH_MODELS = ("ls", "els", "bbels")
TIE = 0.001  # scores that differ by less count as equal
CANDIDATES = (3, 5, 7, 9, 13, 17, 23, 29, 33, 45)  # about those that the paper's fits chose among


@dataclass(frozen=True)
class Fit:
    """The size chosen at one noise level, and the median score of every size."""

    sigma: float
    size: int
    scores: dict[int, float]


@dataclass(frozen=True)
class PatchSizes:
    """Fitted patch sizes. Patch models read what `save` writes: patch_size="FOLDER/calibration.json"."""

    fits: list[Fit]
    side: int  # of the images
    record: Mapping[str, Any]  # the settings of the fit

    @property
    def sizes(self) -> list[int]:
        """One size for each noise level."""
        return [fit.size for fit in self.fits]

    def table(self) -> str:
        """The score of every size at every noise level; the best is in brackets."""
        from scorelens.report.calibration import calibration_table

        return calibration_table([asdict(fit) for fit in self.fits])

    def figure(self) -> Figure:
        """The chosen sizes, and what every size misses."""
        from scorelens.report.calibration import calibration_figure

        title = f"{self.record['denoiser']} fitted to {self.record['reference']}"
        return calibration_figure([asdict(fit) for fit in self.fits], self.side, title=title,
                                  metric=self.record["metric"])

    def save(self, folder: str | Path) -> Path:
        """Write calibration.json and .png into a new folder."""
        with fresh_folder(Path(folder)) as partial:
            self.write(partial)
        return Path(folder)

    def write(self, folder: Path) -> None:
        """The same into a folder that exists."""
        write_json(folder / "calibration.json", {"sigmas": [fit.sigma for fit in self.fits], "sizes": self.sizes,
                                                 **self.record})
        self.figure().savefig(folder / "calibration.png", dpi=160)


@dataclass(frozen=True, eq=False)
class PatchFit:
    """A fit that is about to run: its settings, and the steps that it yields."""

    network: Network
    images: ImageSet
    sizes: list[int]
    sigmas: list[float]
    noise: Tensor
    record: Mapping[str, Any]

    def run(self, finished: Sequence[Fit] = ()) -> Iterator[Fit]:
        """The fits of all noise levels but those that are finished, highest noise first."""
        if len(finished) == len(self.sigmas):
            return
        reference = sample(self.network, self.noise, self.sigmas, label=self.record["reference"])
        yield from fit_steps(lambda size: build_denoiser(self.record["denoiser"], self.images, patch_size=size,
                                                         **self.record["options"]),
                             reference, self.sizes, self.record["metric"], first=len(finished))

    def result(self, fits: Sequence[Fit]) -> PatchSizes:
        return PatchSizes(list(fits), max(self.images.shape[1:]), self.record)


def fit_patch_sizes(network: str | Network, images: ImageSet, denoiser: str = "ls", **settings: Any) -> PatchSizes:
    """Fit the patch size of each noise level to a network; `settings` are those of `prepare_fit`."""
    fit = prepare_fit(network, images, denoiser, **settings)
    return fit.result(list(fit.run()))


def prepare_fit(network: str | Network, images: ImageSet, denoiser: str = "ls", *,
                options: Mapping[str, Any] | None = None, sizes: Sequence[int] | None = None, metric: str = "r2",
                num: int = 16, steps: int = 10, seed: int = 0, device: torch.device | str = "cpu",
                name: str | None = None) -> PatchFit:
    """Check the settings of a fit.

    Args:
        network: a zoo name, a folder, a hub id, or what load_network returns.
        images: its training images.
        denoiser: ls, els or bbels.
        options: of the denoiser, other than patch_size.
        sizes: candidates, by default odd numbers up to the whole image.
        metric: r2 or cosine, of a sample's score against the network's; the median over samples counts.
        num: number of samples.
        steps: number of noise levels, on the paper's grid (of the network's own schedule).
        seed: the noise of image k is drawn from seed + k.
        name: what to call the network; by default its zoo name or folder.
    """
    given = dict(options or {})
    if denoiser not in PATCH_MODELS or "patch_size" in given:
        raise ScorelensError(f"calibrate fits the patch_size of {', '.join(PATCH_MODELS)}; got --denoiser {denoiser}"
                             + (" with a patch size" if "patch_size" in given else ""))
    loaded = load_network(network, shape=images.shape) if isinstance(network, str) else network
    called = name or (Path(network).name if isinstance(network, str) else "network")
    candidates = list(sizes or candidate_sizes(max(images.shape[1:])))
    for size in candidates:
        patch_sizes(size, images.shape)  # raises for sizes that no window has
    sigmas, seeds = own_sigmas(loaded.schedule, steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=device)
    record = {"data": images.describe(), "reference": called, "network": loaded.describe(), "denoiser": denoiser,
              "options": given, "candidates": candidates, "metric": metric, "grid": sigmas,
              "noise": noise_record(seeds, noise)}
    return PatchFit(loaded, images, candidates, sigmas, noise, record)


def candidate_sizes(side: int) -> list[int]:
    """All odd sizes of small images, some of larger ones; and the window that covers everything."""
    return [*([k for k in CANDIDATES if k < side] if side > 16 else range(1, side, 2)), 2 * side - 1]


@torch.no_grad()
def fit_steps(build: Callable[[int], Denoiser], reference: Samples, sizes: Sequence[int], metric: str = "r2",
              first: int = 0) -> Iterator[Fit]:
    """Fit each step of a network's trajectory, from step `first` on.

    Scores, (x0_hat - z) / sigma^2, are compared, not predictions: a sample's value is the metric over its pixels, a
    size's the median over samples. Where the noise is so strong that all sizes fit, the largest is taken.
    """
    models = {size: build(size) for size in sizes}
    for step in progress.steps(iter(reference.steps[first:]), "calibrating", len(reference.steps) - first):
        target = _score(step.x0_hat, step.z, step.sigma)
        scores = {size: _score(model(step.z, step.sigma), step.z, step.sigma) for size, model in models.items()}
        medians = {size: METRICS[metric](score, target).median().item() for size, score in scores.items()}
        best = max(medians.values())
        yield Fit(step.sigma, max(size for size, score in medians.items() if score >= best - TIE), medians)


def _score(x0_hat: Tensor, z: Tensor, sigma: float) -> Tensor:
    return (x0_hat - z) / sigma**2
