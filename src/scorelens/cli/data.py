"""`scorelens data`: the sources of images, and the statistics of a source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scorelens.cli.run_folder import output_folder
from scorelens.data import SOURCES, load_images
from scorelens.data.images import ImageSet
from scorelens.files import fresh_folder, write_json
from scorelens.report.figures import spectra_figure, spectrum
from scorelens.report.tables import markdown
from scorelens.results import run_record
from scorelens.statistics import GaussianStats, fit_gaussian

LEADING = (10, 100, 200)  # numbers of components whose share of the variance is printed


def list_sources() -> None:
    """List the sources of images that can be loaded."""
    print(markdown(["source", "description"], [[name, source.about] for name, source in SOURCES.items()]))


def info(images: ImageSet, *, components: int | None = None, out: Path | None = None) -> Path:
    """Show count, shape, fingerprint, mean image and spectrum of a source; returns the folder with the figure.

    Args:
        components: fit only this many leading components, by a randomized method, if the images are too large for all.
        out: folder for the figure; it must not exist. By default runs/data-info-...
    """
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    folder = output_folder("data-info", images.name, out)
    stats = fit_gaussian(images, components=components)
    shares, eigenvalues = energy_shares(stats), stats.eigenvalues.tolist()
    with fresh_folder(folder) as partial:
        mean = images.pictures(stats.mean.float().view(1, *images.shape))[0]
        spectrum(mean, eigenvalues, f"{images.name} ({images.split})",
                 partial / "spectrum.png")
        write_json(partial / "run.json", {"command": "data-info", "data": images.describe(), "energy_shares": shares,
                                          "eigenvalues": eigenvalues, **run_record(started, clock, "cpu")})
    print(f"{_text(images, stats, shares)}\n\nfigure: {folder / 'spectrum.png'}")
    return folder


def spectra(sources: Sequence[str], *, root: Path | None = None, limit: int | None = None,
            resolution: int | None = None, out: Path | None = None) -> Path:
    """Draw the eigenvalue spectra of several sources in one figure; returns its folder.

    Args:
        sources: names of sources: see scorelens data list.
        root: the folder of datasets, by default $SCORELENS_DATA.
        limit: load only this many images of each source.
        resolution: side to scale to.
        out: folder for the figure; it must not exist. By default runs/data-spectra
    """
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    folder, eigenvalues, data = output_folder("data", "spectra", out), {}, []
    for source in sources:
        images = load_images(source, root=root, limit=limit, resolution=resolution)
        eigenvalues[images.name] = fit_gaussian(images).eigenvalues.tolist()
        data.append(images.describe())
    with fresh_folder(folder) as partial:
        spectra_figure(eigenvalues, partial / "spectra.png")
        write_json(partial / "run.json", {"command": "data", "data": data, "eigenvalues": eigenvalues,
                                          **run_record(started, clock, "cpu")})
    print(f"figure: {folder / 'spectra.png'}")
    return folder


def energy_shares(stats: GaussianStats) -> dict[int, float]:
    """The share of the variance in the first k components, for each k in LEADING that exists."""
    values = stats.eigenvalues
    total = values.sum().item() / (1 - stats.missing) or 1.0
    return {k: values[:k].sum().item() / total for k in LEADING if k <= len(values)}


def _text(images: ImageSet, stats: GaussianStats, shares: dict[int, float]) -> str:
    c, h, w = images.shape
    mean, deviation = stats.mean.mean().item(), stats.eigenvalues.mean().sqrt().item()
    labels = "none" if images.labels is None else f"{len(set(images.labels.tolist()))} classes"
    lines = [("name", f"{images.name} ({images.split})"), ("count", f"{len(images):,}"),
             ("shape", f"{c} x {h} x {w} (channels, height, width), D = {images.dim:,}"), ("labels", labels),
             ("fingerprint", images.fingerprint), *((k, str(v)) for k, v in images.record.items()),
             ("mean", f"{mean:+.3f} on [-1, 1]; rms deviation of a pixel {deviation:.3f}"),
             ("rank", f"{int((stats.eigenvalues > 0).sum()):,} of {images.dim:,}"),
             ("largest", "  ".join(f"{v:.4g}" for v in stats.eigenvalues[:5].tolist()) + "  (variances λ²)"),
             *((f"first {k}", f"{100 * share:.1f} % of the variance") for k, share in shares.items())]
    return "\n".join(f"{key:<12} {value}" for key, value in lines)
