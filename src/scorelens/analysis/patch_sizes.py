"""Patch sizes fitted to a network: at each step of its trajectory, the size with the score closest to its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from scorelens import progress
from scorelens.analysis.models import named_network
from scorelens.data.images import ImageSet
from scorelens.denoisers import build_denoiser
from scorelens.denoisers.patch_sizes import patch_sizes
from scorelens.files import fresh_folder, write_json
from scorelens.metrics import r2
from scorelens.networks.adapters import Network
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.report.calibration import calibration_figure, calibration_table
from scorelens.report.figures import Figure
from scorelens.results import noise_record
from scorelens.sampling import Samples, sample
from scorelens.types import Denoiser, ScorelensError

METRICS = {"r2": r2, "cosine": lambda p, r: cosine_similarity(p.flatten(1), r.flatten(1))}
PATCH_MODELS = ("ls", "els", "bbels")
TIE = 0.001  # scores that differ by less count as equal
CANDIDATES = (3, 5, 7, 9, 13, 17, 23, 29, 33, 45)  # similar to those that the paper chose from


@dataclass(frozen=True)
class Fit:
    """The size chosen at one noise level, and the median score of every size."""

    sigma: float
    size: int
    scores: dict[int, float]


@dataclass(frozen=True)
class PatchSizes:
    """Fitted patch sizes. Patch models read the file that `save` writes: patch_size="FOLDER/calibration.json"."""

    fits: list[Fit]
    side: int  # of the images
    record: Mapping[str, Any]  # the settings of the fit

    @property
    def sizes(self) -> list[int]:
        """One size for each noise level."""
        return [fit.size for fit in self.fits]

    def table(self) -> str:
        """The score of every size at every noise level; the chosen one is in brackets."""
        return calibration_table([asdict(fit) for fit in self.fits])

    def figure(self) -> Figure:
        """The chosen sizes, and 1 - score of every size."""
        return calibration_figure([asdict(fit) for fit in self.fits], self.side, metric=self.record["metric"],
                                  title=f"{self.record['denoiser']} fitted to {self.record['reference']}")

    def save(self, folder: str | Path) -> Path:
        """Write calibration.json and .png into a new folder."""
        with fresh_folder(Path(folder)) as partial:
            self.write(partial)
        return Path(folder).expanduser()

    def write(self, folder: Path) -> None:
        """Write calibration.json and .png into an existing folder."""
        sigmas = [fit.sigma for fit in self.fits]
        write_json(folder / "calibration.json", {"sigmas": sigmas, "sizes": self.sizes, **self.record})
        self.figure().savefig(folder / "calibration.png", dpi=160)


@dataclass(frozen=True, eq=False)
class PatchFit:
    """A fit with checked settings, which are in the record."""

    network: Network
    images: ImageSet
    noise: Tensor
    record: Mapping[str, Any]

    def run(self, finished: Sequence[Fit] = ()) -> Iterator[Fit]:
        """Fit the noise levels that are not finished, highest noise first."""
        settings = self.record
        if len(finished) < len(settings["grid"]):
            reference = sample(self.network, self.noise, settings["grid"], label=settings["reference"])
            yield from fit_steps(lambda size: build_denoiser(settings["denoiser"], self.images, patch_size=size,
                                                             **settings["options"]),
                                 reference, settings["candidates"], settings["metric"], first=len(finished))

    def result(self, fits: Sequence[Fit]) -> PatchSizes:
        return PatchSizes(list(fits), max(self.images.shape[1:]), self.record)


def fit_patch_sizes(network: str | Network, images: ImageSet, denoiser: str = "ls", **settings: Any) -> PatchSizes:
    """Fit the patch size of each noise level to a network; `settings` are keywords of `prepare_fit`."""
    fit = prepare_fit(network, images, denoiser, **settings)
    return fit.result(list(fit.run()))


def prepare_fit(network: str | Network, images: ImageSet, denoiser: str = "ls", *,
                options: Mapping[str, Any] | None = None, sizes: Sequence[int] | None = None, metric: str = "r2",
                num: int = 16, steps: int = 10, seed: int = 0, device: torch.device | str = "cpu",
                name: str | None = None) -> PatchFit:
    """Check the settings of a fit.

    Args:
        network: a zoo name, a folder, a hub id, or a result of load_network.
        images: its training images.
        denoiser: ls, els or bbels.
        options: options of the denoiser other than patch_size.
        sizes: candidates, by default odd numbers up to the whole image.
        metric: r2 or cosine, of a sample's score against the network's; the median over samples counts.
        num: number of samples.
        steps: number of noise levels, on the paper's grid (of the network's own schedule).
        seed: the noise of image k is drawn from seed + k.
        name: name of the network; by default its zoo name or folder.
    """
    given = dict(options or {})
    if denoiser not in PATCH_MODELS or "patch_size" in given:
        raise ScorelensError(f"calibrate fits the patch_size of {', '.join(PATCH_MODELS)}; got --denoiser {denoiser}"
                             + (" with a patch size" if "patch_size" in given else ""))
    network, name = named_network(network, images, name)
    candidates = list(sizes or candidate_sizes(max(images.shape[1:])))
    for size in candidates:
        patch_sizes(size, images.shape)  # raises for even sizes
    sigmas, seeds = own_sigmas(network.schedule, steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=device)
    record = {"data": images.describe(), "reference": name, "network": network.describe(), "denoiser": denoiser,
              "options": given, "candidates": candidates, "metric": metric, "grid": sigmas,
              "noise": noise_record(seeds, noise)}
    return PatchFit(network, images, noise, record)


def candidate_sizes(side: int) -> list[int]:
    """All odd sizes for small images, CANDIDATES for larger ones, and the window that covers the whole image."""
    return [*([k for k in CANDIDATES if k < side] if side > 16 else range(1, side, 2)), 2 * side - 1]


@torch.no_grad()
def fit_steps(build: Callable[[int], Denoiser], reference: Samples, sizes: Sequence[int], metric: str = "r2",
              first: int = 0) -> Iterator[Fit]:
    """Fit each step of a network's trajectory, from step `first` on.

    The metric compares scores, (x0_hat - z) / sigma^2, over the pixels of a sample; a size is rated by its median over
    samples. Of sizes that fit equally well, as at high noise, the largest is chosen.
    """
    models = {size: build(size) for size in sizes}

    def fits() -> Iterator[Fit]:
        for step in reference.steps[first:]:
            target = (step.x0_hat - step.z) / step.sigma**2
            scores = {size: (model(step.z, step.sigma) - step.z) / step.sigma**2 for size, model in models.items()}
            medians = {size: METRICS[metric](score, target).median().item() for size, score in scores.items()}
            best = max(medians.values())
            yield Fit(step.sigma, max(size for size, score in medians.items() if score >= best - TIE), medians)

    yield from progress.steps(fits(), "calibrating", len(reference.steps) - first)
