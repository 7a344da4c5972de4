"""Suites of damaged input files: images, archives, arrays, weights, configs, records of runs."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import scorelens
from scorelens.denoisers import build_denoiser
from tools.torture.mutations import mutated, mutated_value
from tools.torture.runner import Fault, command, refused

GOOD = np.arange(6 * 7 * 3, dtype=np.uint8).reshape(6, 7, 3)
FORMATS = ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm")
TINY = Path(__file__).parents[2] / "src" / "scorelens" / "zoo" / "digits-unet"


def picture(rng: random.Random) -> bytes:
    """A small valid image file of a random format, mode and size; sometimes very thin."""
    size = rng.choice([(5, 4), (1, 1), (17, 1), (1, 9), (64, 48), (1, 20_000), (30_000, 1)])
    mode = rng.choice(["RGB", "L", "P", "1", "RGBA", "LA", "CMYK", "I;16"])
    image = Image.frombytes("L", size, rng.randbytes(size[0] * size[1])).convert("L" if mode == "I;16" else mode)
    buffer = io.BytesIO()
    kind = rng.choice(FORMATS)
    try:
        image.save(buffer, kind)
    except (OSError, ValueError):  # the format has no such mode
        image.convert("RGB").save(buffer := io.BytesIO(), "png")
    return buffer.getvalue()


def images(number: int, rng: random.Random, folder: Path) -> None:
    """A good image beside a damaged one: the good one is loaded unchanged, or the bad one is named."""
    (folder / "data").mkdir()
    Image.fromarray(GOOD).save(folder / "data" / "good.png")
    (folder / "data" / f"bad.{rng.choice(FORMATS).replace('jpeg', 'jpg')}").write_bytes(mutated(picture(rng), rng))
    size = rng.choice([None, 6, 64, (6, 7)])
    loaded = scorelens.load_images(f"folder:{folder / 'data'}", split="all", resolution=size, channels=3,
                                   skip_bad=rng.random() < 0.5)
    expected = scorelens.data.decode.resize(GOOD.transpose(2, 0, 1)[None], size) if isinstance(size, tuple) else None
    if expected is not None and not any(np.array_equal(expected[0], each) for each in loaded.pixels):
        raise Fault("wrong: the good image is not among the loaded ones")


def archives(number: int, rng: random.Random, folder: Path) -> None:
    with zipfile.ZipFile(folder / "data.zip", "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for k in range(3):
            Image.fromarray(GOOD + np.uint8(k)).save(buffer := io.BytesIO(), "png")
            archive.writestr(rng.choice(["", "a/", "train/", "../", "/"]) + f"{k}.png", buffer.getvalue())
        if number % 50 == 0:  # a bomb: hundreds of MB of zeros in a few hundred kB
            with archive.open("bomb.png", "w", force_zip64=True) as member:
                for _ in range(rng.choice([300, 600])):
                    member.write(bytes(2**20))
    data = (folder / "data.zip").read_bytes()
    (folder / "data.zip").write_bytes(data if number % 50 == 0 else mutated(data, rng))
    loaded = scorelens.load_images(f"zip:{folder / 'data.zip'}", split="all", skip_bad=rng.random() < 0.5)
    allowed = [(GOOD + np.uint8(k)).transpose(2, 0, 1) for k in range(3)]
    if not all(any(np.array_equal(pixels, each) for each in allowed) for pixels in loaded.pixels):
        raise Fault("wrong: an image that nobody stored")


def arrays(number: int, rng: random.Random, folder: Path) -> None:
    path, stored = folder / "data.npz", np.arange(5 * 6 * 7, dtype=np.uint8).reshape(5, 6, 7)
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(path, images=stored, labels=np.arange(5))
    if number % 20 == 0:  # a header that promises more than there is
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape":
                                                      (10**rng.randint(6, 15), 8, 8)})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", header.getvalue() + bytes(1000))
    else:
        path.write_bytes(mutated(path.read_bytes(), rng))
    loaded = scorelens.load_images(f"npz:{path}")
    if not np.array_equal(loaded.pixels[:, 0], stored):
        raise Fault("wrong: pixels changed without an error")


def _network(folder: Path) -> Path:
    shutil.copytree(TINY, folder / "network")
    return folder / "network"


def _predicts(folder: Path) -> torch.Tensor:
    network = scorelens.load_network(str(folder), shape=(1, 8, 8))
    with torch.no_grad():
        x0_hat = network(torch.linspace(-1, 1, 64).view(1, 1, 8, 8), 1.0)
    if x0_hat.shape != (1, 1, 8, 8):
        raise Fault(f"wrong: shape {tuple(x0_hat.shape)}")
    if not torch.isfinite(x0_hat).all():
        raise Fault("wrong: not finite")
    return x0_hat


def weights(number: int, rng: random.Random, folder: Path) -> None:
    """Damaged headers are refused; a changed weight cannot be told from a trained one."""
    path = _network(folder) / "unet" / "diffusion_pytorch_model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little") + 8
    header = mutated(content[:length], rng) if rng.random() < 0.9 else content[:length]
    whole = header != content[:length]
    path.write_bytes(header + (content[length:] if whole else content[length:-rng.randint(1, 999)]))
    _predicts(folder / "network")


def configs(number: int, rng: random.Random, folder: Path) -> None:
    """A value of another type, a missing or an unknown key in one of a network's JSON files."""
    _network(folder)
    path = folder / "network" / rng.choice(["unet/config.json", "unet/config.json", "scheduler/scheduler_config.json",
                                            "model_index.json", "card.json"])
    if rng.random() < 0.2:
        path.write_bytes(mutated(path.read_bytes(), rng))
    else:
        path.write_text(json.dumps(mutated_value(json.loads(path.read_text()), rng)))
    _predicts(folder / "network")


def _damage(path: Path, rng: random.Random) -> None:
    """Bytes, lines or values of a text file."""
    content = path.read_bytes()
    try:
        lines = [json.loads(line) for line in content.decode().splitlines()]
    except ValueError:
        lines = []
    if lines and rng.random() < 0.6:
        at = rng.randrange(len(lines))
        lines[at] = mutated_value(lines[at], rng)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif not lines and rng.random() < 0.6:
        path.write_text(json.dumps(mutated_value(json.loads(content), rng)))
    else:
        path.write_bytes(mutated(content, rng))


TRAIN = ("train", "--data", "digits", "--limit", "8", "--epochs", "2", "--batch", "4", "--device", "cpu", "--out", "t",
         "--save-seconds", "0")
BENCH = ("bench", "run", "softmax", "--only", "digits", "--out", "b")


def trainings(number: int, rng: random.Random, folder: Path) -> None:
    """training.json, the checkpoint or the card of an interrupted training."""
    stop_training_after(2)
    damaged = rng.choice(["training.json", "checkpoint.safetensors"])
    path = folder / "t" / damaged
    if damaged.endswith(".json"):
        _damage(path, rng)
    else:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little") + 8
        path.write_bytes(mutated(content[:length], rng) + content[length:])
    refused(command(*TRAIN))


def stop_training_after(steps: int) -> None:
    """An interrupted training in folder t, with a checkpoint."""
    import scorelens.networks.training_loop as module

    plain, calls = module._loss, []

    def poisoned(*given: object) -> torch.Tensor:
        calls.append(1)
        return plain(*given) * (float("nan") if len(calls) > steps else 1.0)

    module._loss = poisoned
    if command(*TRAIN) != 2:
        raise Fault("wrong: the training was not interrupted")
    module._loss = plain


def calibrations(number: int, rng: random.Random, folder: Path) -> None:
    path = folder / "calibration.json"
    path.write_text(json.dumps({"sigmas": [80.0, 1.0, 0.01], "sizes": [7, 5, 3], "denoiser": "ls"}))
    _damage(path, rng)
    digits = scorelens.load_images("digits", limit=20)
    model = build_denoiser(rng.choice(["ls", "els"]), digits, patch_size=str(path))
    x0_hat = model(digits[:2], rng.choice([0.05, 1.0, 50.0]))
    if not torch.isfinite(x0_hat).all():
        raise Fault("wrong: not finite")


def benchmarks(number: int, rng: random.Random, folder: Path) -> None:
    """bench.json or rows.jsonl of a finished benchmark: the report, and the run again."""
    shutil.copytree(os.environ["TORTURE_BENCH"], folder / "b")
    _damage(folder / "b" / rng.choice(["bench.json", "rows.jsonl", "rows.jsonl"]), rng)
    refused(command("bench", "report", "b"))


def settings(number: int, rng: random.Random, folder: Path) -> None:
    """YAML configs of commands."""
    text = "num: 2\nsteps: 2\nseed: 3\nlimit: 20\ndevice: cpu\ndata: digits\ndenoiser: {name: wiener, rank: 5}\n"
    content = mutated(text.encode(), rng)
    (folder / "c.yaml").write_bytes(content)
    refused(command("sample", "--config", "c.yaml", "--dry-run"))


