"""`scorelens compare`: how well each closed-form denoiser predicts a trained network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.analysis import comparison
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_named
from scorelens.cli.run_folder import output_folder
from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_names
from scorelens.distributed import choose_device


def compare(images: ImageSet, reference: str, *, model: Sequence[str] = (), num: int = 128, steps: int = 10,
            seed: int = 128, tuning_seed: int = 0, label: str | None = None, labels: Sequence[str] = (),
            guidance: float | None = None, loading: Loading | None = None,
            skip_single_steps: bool = False, device: str = "auto", out: Path | None = None) -> Path:
    """Compare denoisers with a trained network, from the same noise; returns the folder of the results.

    Args:
        reference: the network: a zoo name, a folder saved by diffusers, a hub id, a checkpoint file or paper:NAME.
        model: denoisers, with options after a colon (locality:threshold=0.05,softmax=batch-mean), and other networks;
            of several values (threshold=0.02/0.05) the one with the best r2 on other noise is reported. By default all
            denoisers for images of up to 16 x 16, and the fast ones for larger images.
        label: class of a class-conditional reference, a number or null, for a comparison with formulas of all images.
        skip_single_steps: compare whole samples only, in half the time.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/compare-...
    """
    name = Path(reference).name
    folder = output_folder("compare", f"{images.name}-{name}", out)
    class_label = int(label) if label is not None and label.isdigit() else label
    named = [each for each in model if each.partition(":")[0] not in denoiser_names()]
    others = {each: load_named(each, images, loading) for each in named}
    network = (loading or Loading()).network(reference, images, class_label)  # its notes are in the result
    result = comparison.compare(network, images, [each for each in model if each not in others], networks=others,
                                num=num, steps=steps, seed=seed, tuning_seed=tuning_seed, labels=labels,
                                guidance=guidance, with_single_steps=not skip_single_steps,
                                device=choose_device(device), name=name)
    return write(result, folder)


def write(result: comparison.Comparison, folder: Path) -> Path:
    """Save a comparison, and print its notes and table."""
    for note in result.record["notes"]:
        print(f"note: {note}")
    result.save(folder)
    print(f"{result.table()}\n\npage: {folder / 'report.html'}")
    return folder
