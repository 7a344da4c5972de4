"""`scorelens sensitivity`: the input pixels that an output pixel of a formula or network depends on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scorelens.analysis.fields import EPSILON, NoisyImages, Trajectories, compare_fields
from scorelens.analysis.guidance import choose_guidance
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_model
from scorelens.cli.run_folder import output_folder
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.jacobian import Pixel
from scorelens.networks.adapters import Network
from scorelens.noise import ddim_sigmas, own_sigmas, seeded_noise
from scorelens.report.fields import file_name
from scorelens.results import noise_record, run_record
from scorelens.types import ScorelensError


@dataclass(frozen=True)
class Preset:
    """The models ({data} is the name of the data) and output pixels of a figure of the paper."""

    models: tuple[str, ...]
    pixels: tuple[str, ...] = ("centre",)


PRESETS = {
    "architectures": Preset(("{data}-unet-x0", "{data}-dit-x0", "wiener")),  # fig:sensitivity_diff_arch
    "faces": Preset(("{data}-unet", "wiener"), ("eye", "centre")),  # fig:sensitivity-fields-faces
    "parametrization": Preset(("{data}-unet-x0@epsilon", "{data}-unet-x0")),  # fig:sensitivity_different_ways
    "training": Preset(("{data}-unet", "{data}-unet-x0", "{data}-dit-x0", "wiener")),  # fig:sensitivity_eps_vs_x0
    "optimal": Preset(("optimal", "wiener")),  # the optimal denoiser's field diverges at low noise
}
NAMED_PIXELS = {"centre": (0.5, 0.5), "eye": (0.45, 0.36)}  # shares of height and width; the eye of aligned faces


def sensitivity(images: ImageSet, model: Sequence[str] = (), *,
                preset: Literal["architectures", "faces", "parametrization", "training", "optimal"] | None = None,
                pixels: Sequence[str] = (), channel: int | None = None, wrt: Literal["z", "x_t"] = "z",
                sigmas: Sequence[float] = (), num: int = 32, steps: int = 10, levels: int = 10, seed: int = 0,
                labels: Sequence[str] = (), guidance: float | None = None, linear: bool = False,
                loading: Loading | None = None, device: str = "auto", out: Path | None = None) -> Path:
    """Draw the sensitivity fields of denoisers and networks; returns the folder of the results.

    Args:
        model: denoisers (with options: locality:threshold=0.05), zoo names, folders saved by diffusers, checkpoint
            files; with the suffix @epsilon, the field of the predicted noise. By default wiener.
        preset: models and pixels of a figure of the paper.
        pixels: output pixels, each ROW,COLUMN or centre or eye. By default the centre.
        channel: of the output; by default the sum over all.
        wrt: differentiate with respect to z, or to DDPM's x_t.
        sigmas: measure at these noise levels, on noisy images of the data, instead of along trajectories.
        num: number of trajectories, or of noisy images, that fields are averaged over (the paper: 32).
        steps: noise levels of a trajectory, of the first network's own timesteps (the paper: 1000).
        levels: number of these at which fields are measured.
        seed: the noise of trajectory k is drawn from seed + k.
        labels: classes, by name or number, repeated over the trajectories: all models are conditional on them.
        guidance: weight of classifier-free guidance towards these classes; by default 1, the conditional models.
        linear: also measure how linear each model is, and how symmetric its Jacobian.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/sensitivity-...
    """
    if num < 1 or levels < 1:
        raise ScorelensError(f"num and levels must be at least 1, got {num} and {levels}")
    defaults = PRESETS[preset] if preset else Preset(("wiener",))
    names = list(dict.fromkeys(model or [name.format(data=images.name) for name in defaults.models]))
    outputs = [parse_pixel(text, images) for text in pixels or defaults.pixels]
    towards = choose_guidance(images, labels, guidance, num)
    loaded = {name: load_model(name.removesuffix(EPSILON), images, loading, towards) for name in names}
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    torch_device, seeds = choose_device(device), range(seed, seed + num)
    folder = output_folder("sensitivity", f"{images.name}-{preset or file_name(names[0])}", out)
    noise = seeded_noise(images.shape, seeds, device=torch_device)
    network = next((each for each in loaded.values() if isinstance(each, Network)), None)
    grid = ddim_sigmas(steps) if network is None else own_sigmas(network.schedule, steps)
    path = Trajectories(noise, grid.tolist(), levels)
    points = NoisyImages(images, noise, sigmas) if sigmas else path
    result = compare_fields(loaded, images, outputs, points, channel=channel, wrt=wrt, linear=linear)
    record = {"command": "sensitivity", "data": images.describe(), "models": names, "preset": preset, "pixels": outputs,
              "channel": channel, "wrt": wrt, "sigmas": next(iter(result.fields.values())).sigmas, "steps": steps,
              "noise": noise_record(seeds, noise), "guidance": towards and towards.describe(),
              **run_record(started, clock, torch_device)}
    result.save(folder, record)
    print(f"{result.table()}\n\ncosine with the Wiener field, mean over the pixels; pictures: "
          f"{folder / 'fields.png'}, {folder / 'curves.png'}")
    return folder


def parse_pixel(text: str, images: ImageSet) -> Pixel:
    """The pixel of a text: ROW,COLUMN inside the image, or a name in NAMED_PIXELS."""
    _, h, w = images.shape
    if text in NAMED_PIXELS:
        return int(h * NAMED_PIXELS[text][0]), int(w * NAMED_PIXELS[text][1])
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise ScorelensError(f"pixel {text!r} is neither ROW,COLUMN nor {' nor '.join(NAMED_PIXELS)}")
    row, column = (int(part) for part in parts)
    if not (0 <= row < h and 0 <= column < w):
        raise ScorelensError(f"pixel {row},{column} is outside the image of {h}x{w}")
    return row, column
