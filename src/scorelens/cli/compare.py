"""`scorelens compare`: how well each closed-form denoiser predicts a trained network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.analysis import comparison
from scorelens.cli.run_folder import output_folder
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.networks.load import load_network


def compare(images: ImageSet, reference: str, *, model: Sequence[str] = (), num: int = 128, steps: int = 10,
            seed: int = 128, tuning_seed: int = 0, label: str | None = None, trust_pickle: bool = False,
            skip_single_steps: bool = False, device: str = "auto", out: Path | None = None) -> Path:
    """Compare denoisers with a trained network, from the same noise; returns the folder of the results.

    Args:
        reference: the network: a zoo name, a folder saved by diffusers, or a hub id.
        model: denoisers, with options after a colon (locality:threshold=0.05,softmax=batch-mean), and other networks;
            of several values (threshold=0.02/0.05) the one with the best r2 on other noise is reported. By default all
            denoisers for images of up to 16 x 16, and the fast ones for larger images.
        label: class of a class-conditional reference, a number or null.
        trust_pickle: read weights saved as a pickle.
        skip_single_steps: compare whole samples only, in half the time.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/compare-...
    """
    name = Path(reference).name
    folder = output_folder("compare", f"{images.name}-{name}", out)
    class_label = int(label) if label is not None and label.isdigit() else label
    network = load_network(reference, shape=images.shape, label=class_label, trust_pickle=trust_pickle)
    result = comparison.compare(network, images, model, num=num, steps=steps, seed=seed, tuning_seed=tuning_seed,
                                with_single_steps=not skip_single_steps,
                                device=choose_device(device), name=name)
    return write(result, folder)


def write(result: comparison.Comparison, folder: Path) -> Path:
    """Save a comparison, and print its notes and table."""
    for note in result.record["notes"]:
        print(f"note: {note}")
    result.save(folder)
    print(f"{result.table()}\n\npage: {folder / 'report.html'}")
    return folder
