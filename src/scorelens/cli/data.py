"""`scorelens data`: what can be loaded, and what a source holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.cli.run_folder import run_folder
from scorelens.data import SOURCES, load_images
from scorelens.data.images import ImageSet
from scorelens.report.figures import spectra_figure, spectrum
from scorelens.report.tables import markdown
from scorelens.statistics import GaussianStats, fit_gaussian

LEADING = (10, 100, 200)  # components whose share of the variance is printed


def list_sources() -> None:
    """List the sources of images that can be loaded."""
    print(markdown(["source", "what it is"], [[name, source.about] for name, source in SOURCES.items()]))


def info(images: ImageSet, *, out: Path | None = None) -> Path:
    """Show count, shape, fingerprint, mean image and spectrum of a source; returns the folder with the picture.

    Args:
        out: folder for the picture; it must not exist. By default runs/data-info-...
    """
    with run_folder("data-info", images.name, out) as run:
        stats = fit_gaussian(images)
        shares = energy_shares(stats)
        run.record.update(data=images.describe(), energy_shares=shares, eigenvalues=stats.eigenvalues.tolist())
        spectrum(stats.mean.float().view(images.shape), stats.eigenvalues.tolist(), f"{images.name} ({images.split})",
                 run.folder / "spectrum.png")
    print(_text(images, stats, shares))
    print(f"\npicture: {run.final / 'spectrum.png'}")
    return run.final


def spectra(sources: Sequence[str], *, root: Path | None = None, limit: int | None = None,
            resolution: int | None = None, out: Path | None = None) -> Path:
    """Draw the eigenvalue spectra of several sources in one picture; returns its folder.

    Args:
        sources: what to load, several names: see scorelens data list.
        root: the folder of datasets, by default $SCORELENS_DATA.
        limit: keep only so many images of each.
        resolution: side to scale to.
        out: folder for the picture; it must not exist. By default runs/data-spectra
    """
    found: dict[str, list[float]] = {}
    with run_folder("data", "spectra", out) as run:
        for source in sources:
            images = load_images(source, root=root, limit=limit, resolution=resolution)
            found[images.name] = fit_gaussian(images).eigenvalues.tolist()
            run.record.setdefault("data", []).append(images.describe())
        run.record["eigenvalues"] = found
        spectra_figure(found, run.folder / "spectra.png")
    print(f"picture: {run.final / 'spectra.png'}")
    return run.final


def energy_shares(stats: GaussianStats) -> dict[int, float]:
    """Share of sum lambda^2 (the variance) in the first k components, for the leading k that exist."""
    values = stats.eigenvalues
    total = values.sum().item() or 1.0
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
