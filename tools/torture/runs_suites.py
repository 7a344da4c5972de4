"""Suites of whole runs: flags, options, damaged caches, full disks, kills, concurrent runs, names, numbers."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from PIL import Image
from tests.ground_truth import brute_force

import scorelens
from scorelens import entries
from scorelens.cli.parser import COMMANDS, main
from scorelens.data import ImageSet
from scorelens.denoisers import DENOISERS, build_denoiser, denoiser_options
from scorelens.denoisers.specs import parse_specs
from scorelens.files import TEMPORARY
from tools.torture.files_suites import TRAIN
from tools.torture.runner import Fault, command, refused

# ---- flags and options

BASE = {
    "data info": ["digits", "--limit", "20"],
    "data spectra": ["--sources", "digits", "--limit", "20"],
    "sample": ["--data", "digits", "--limit", "20", "--num", "2", "--steps", "2", "--denoiser", "wiener"],
    "sensitivity": ["--data", "digits", "--limit", "20", "--num", "1", "--steps", "2", "--levels", "1"],
    "report-card": ["wiener", "--data", "digits", "--limit", "20", "--num", "2", "--formulas", "wiener"],
    "manipulation": ["--data", "digits", "--limit", "20", "--num", "1", "--steps", "2", "--model", "digits-unet"],
    "compare": ["--data", "digits", "--limit", "20", "--reference", "digits-unet", "--num", "2", "--steps", "2",
                "--model", "wiener"],
    "calibrate": ["--data", "digits", "--limit", "20", "--reference", "digits-unet", "--num", "1", "--steps", "1",
                  "--sizes", "3", "5"],
    "explain": ["digits-unet", "--data", "digits", "--limit", "20", "--formulas", "wiener", "--samples", "4"],
    "attribute": ["--data", "digits", "--limit", "20", "--num", "1", "--steps", "2", "--formulas", "wiener"],
    "demo": ["--num", "2", "--steps", "2"],
    "bench run": ["held-out", "--data", "digits", "--reference", "digits-unet", "--only", "wiener"],
    "train": ["--data", "digits", "--limit", "8", "--epochs", "1", "--batch", "4"],
    "cache clear": [],
}
WORDS = ("nan", "inf", "-inf", "0", "-1", "1e30", "-1e30", "1e-30", "word", "", "100000000000000000000", "3.5",
         "9007199254740993", "1,5", "0x10", "1e3", "  7 ", "٣", "1_0", "true")


def numeric_flags() -> list[tuple[str, str]]:
    """(command, flag) of every flag that takes a number."""
    from scorelens.cli.load_data import load_data
    from scorelens.cli.load_networks import loading_flags

    found = []
    for name in BASE:
        function = COMMANDS[name].function
        shared = [load_data] if COMMANDS[name].data != "none" else []
        if "loading" in inspect.signature(function).parameters:
            shared.append(loading_flags)
        for source in (function, *shared):
            hints = get_type_hints(source)
            for key in inspect.signature(source).parameters:
                kinds = {hints.get(key), *get_args(hints.get(key)), *(inner for each in get_args(hints.get(key))
                                                                       for inner in get_args(each))}
                if kinds & {int, float}:
                    found.append((name, f"--{key.replace('_', '-')}"))
    return [pair for pair in dict.fromkeys(found) if pair[1] not in ("--port",)]


LONG, INTERRUPTED = 60, 130  # seconds until a command is interrupted, and its exit code then
MUCH = "1e3"  # of steps, samples, ...: minutes of work, which a user may ask for
FLAGS = [*(((name, ""), "") for name in BASE), *itertools.product(numeric_flags(), WORDS)]


def flags(number: int, rng: random.Random, folder: Path) -> None:
    """A command with one number out of range; the first cases are the commands as they are, which must answer."""
    (name, flag), word = FLAGS[number]
    own = list(BASE[name])
    if flag in own:
        at = own.index(flag)
        stop = next((k for k in range(at + 1, len(own)) if own[k].startswith("--")), len(own))
        del own[at:stop]
    out = [] if name == "cache clear" else ["--out", "out"]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(LONG if name == "train" or word == MUCH else 0)  # Ctrl-C: some ask for hours, and may have them
    code = command(*name.split(), *own, *([f"{flag}={word}"] if flag else []), *out)
    signal.alarm(0)
    if code and not flag:
        raise Fault(f"wrong exit code {code} of a command without faults")
    if code == 0:
        _check_finite(folder / "out")
    if code == INTERRUPTED:
        code = 0
    refused(code)


def _check_finite(folder: Path) -> None:
    """No array or record of a finished run has NaN or infinite numbers."""
    for path in folder.rglob("*.npz"):
        with np.load(path) as arrays:
            for key in arrays.files:
                if arrays[key].dtype.kind == "f" and not np.isfinite(arrays[key]).all():
                    raise Fault(f"wrong: {path.name} {key} is not finite, but the exit code is 0")


VALUES = ("x", "nan", "inf", "0", "-1", "1e30", "3.5", "true", "1.5", "-0.5", "1e-30", "10**20",
          "100000000000000000000", "auto", "none", "[1]", "0.5", "2", "")
OPTIONS = [(name, option, value) for name in DENOISERS for option in denoiser_options(name) for value in VALUES]


def options(number: int, rng: random.Random, folder: Path) -> None:
    """Every option of every denoiser, as text: `locality:threshold=x`."""
    name, option, value = OPTIONS[number]
    digits = scorelens.load_images("digits", limit=20)
    (spec,) = parse_specs(f"{name}:{option}={value}")
    model = spec.build(digits)
    for sigma in (0.05, 1.0, 30.0):
        x0_hat = model(digits[:2] + sigma * scorelens.seeded_noise(digits.shape, [0, 1]), sigma)
        if not torch.isfinite(x0_hat).all():
            raise Fault(f"wrong: {spec} is not finite at sigma {sigma}")


# ---- caches, disks, kills, neighbours


def small_folder(folder: Path, count: int = 12) -> Path:
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(exist_ok=True)
    for k in range(count):
        Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(folder / "images" / f"{k:02d}.png")
    return folder / "images"


def _results(folder: Path) -> torch.Tensor:
    """x0_hat of several methods on images from a folder: everything that is cached takes part."""
    images = scorelens.load_images(f"folder:{small_folder(folder)}", split="all")
    z = images[:2] + 0.5 * scorelens.seeded_noise(images.shape, [0, 1])
    specs = (("wiener", {}), ("locality", {}), ("wiener", {"components": 5}), ("kernel", {}),
             ("optimal", {"temperature": "auto"}))
    return torch.stack([build_denoiser(name, images, **given)(z, 0.5) for name, given in specs])


def caches(number: int, rng: random.Random, folder: Path) -> None:
    """A damaged, truncated, emptied, exchanged or missing file of the cache changes no number."""
    expected = _results(folder)
    files = _cached(folder)
    path = files[number % len(files)]
    _damage_one(path, files, rng)
    _forget()
    if not torch.equal(_results(folder), expected):
        raise Fault(f"wrong: a damaged {path.parent.name} changed the result")


def read_only(number: int, rng: random.Random, folder: Path) -> None:
    """A cache that cannot be written: empty, filled, in part, or with a damaged file."""
    expected = _results(folder)
    files = _cached(folder)
    match number % 4:
        case 0:
            shutil.rmtree(folder / "cache")
            (folder / "cache").mkdir()
        case 1:
            for path in rng.sample(files, len(files) // 2):
                path.unlink()
        case 2:
            _damage_one(files[rng.randrange(len(files))], files, rng)
    for path in [folder / "cache", *(folder / "cache").rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o555)
    _obey_modes()
    _forget()
    if not torch.equal(_results(folder), expected):
        raise Fault("wrong: a cache that cannot be written changed the result")


def _cached(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").rglob("*") if path.is_file())


def _damage_one(path: Path, files: list[Path], rng: random.Random) -> None:
    content = path.read_bytes()
    match rng.randrange(7):
        case 0 | 1 | 2:
            at, changed = rng.randrange(len(content)), bytearray(content)
            changed[at] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
        case 3:
            path.write_bytes(content[:rng.randrange(len(content))])
        case 4:
            path.write_bytes(rng.choice(files).read_bytes())
        case 5:
            path.unlink()
            path.mkdir() if rng.random() < 0.5 else path.symlink_to("/dev/null")
        case _:
            path.write_bytes(content + rng.randbytes(rng.randint(1, 9)))


def _forget() -> None:
    """Clear everything that this process keeps in memory, as a new process would not have it."""
    entries._verified.clear()
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if getattr(module, "__name__", "").startswith("scorelens") else ():
            if hasattr(value, "cache_info"):
                value.cache_clear()


def _obey_modes() -> None:
    """Give up root's right to write to whatever it likes (Linux's CAP_DAC_OVERRIDE), if this process has it."""
    if os.geteuid() == 0:
        header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.capget(header, rights) or libc.capset(header, (ctypes.c_uint32 * 6)(rights[0] & ~2, *rights[1:])):
            raise OSError(ctypes.get_errno(), "capset")


def full_disk(number: int, rng: random.Random, folder: Path) -> None:
    """No file may grow beyond a random size, as on a full disk: the kernel refuses the write."""
    job = rng.choice([
        ("sample", "--data", f"folder:{small_folder(folder)}", "--denoiser", "wiener", "--num", "2", "--steps", "2",
         "--out", "o"),
        (*TRAIN[:-4], "--out", "o"), ("data", "info", f"folder:{small_folder(folder)}", "--out", "o"),
        ("compare", "--data", "digits", "--limit", "20", "--reference", "digits-unet", "--num", "1", "--steps", "2",
         "--model", "wiener", "--out", "o"),
        ("sensitivity", "--data", "digits", "--limit", "20", "--num", "1", "--steps", "2", "--levels", "1", "--out",
         "o")])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = int(10 ** rng.uniform(1, 5.5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    code = command(*job)
    if code != 0 and (folder / "o").exists() and job[0] != "train":
        raise Fault("left: an output folder")
    refused(code)


JOBS: dict[str, tuple[str, ...]] = {
    "sample": ("sample", "--data", "digits", "--denoiser", "locality", "--num", "4", "--steps", "5", "--out", "out"),
    "train": (*TRAIN[:5], "--epochs", "12", "--batch", "4", "--device", "cpu", "--save-seconds", "0", "--out", "out"),
    "bench": ("bench", "run", "softmax", "--only", "digits: locality:threshold=0.05, 32", "--out", "out"),
    "decoding": ("sample", "--data", "folder:images", "--split", "all", "--denoiser", "nearest", "--num", "2",
                 "--steps", "2", "--out", "out"),
    "fitting": ("sample", "--data", "digits", "--resolution", "16", "--denoiser", "wiener", "--num", "2", "--steps",
                "2", "--out", "out"),
}


def in_child(work: Callable[[], object]) -> int:
    """Start work in a forked process; returns its id. Its exit code is what `work` returns, or 70 for an exception."""
    child = os.fork()
    if child == 0:
        code = 70
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()):
            code = int(work() or 0)  # type: ignore[call-overload]
        os._exit(code)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _content(folder: Path) -> dict[str, Any]:
    """The numbers of a run, without times: arrays, weights, and the metrics of rows."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                found |= {f"{path.name}/{key}": arrays[key].tobytes() for key in arrays.files}
        elif path.suffix == ".safetensors" or path.name == "losses.json":
            found[path.name] = path.read_bytes()
        elif path.name == "rows.jsonl":
            for line in path.read_text().splitlines():
                row = json.loads(line)
                metrics = {key: value for key, value in row.get("metrics", {}).items() if "second" not in key}
                found[f"row {row['name']}"] = (metrics, row.get("failed"))
    return found


def kills(number: int, rng: random.Random, folder: Path) -> None:
    """kill -9 at a random moment, once or twice; the same command then ends as if nothing had happened."""
    name = list(JOBS)[number % len(JOBS)]
    small_folder(folder, 200)
    (folder / "whole").mkdir()
    os.environ["SCORELENS_CACHE"] = str(folder / "cache-whole")
    os.chdir(folder / "whole")
    if name == "decoding":
        Path("images").symlink_to("../images")
    before = time.monotonic()
    if exit_code(in_child(lambda: main(list(JOBS[name])))) != 0:
        raise Fault(f"wrong: {name} failed undisturbed")
    seconds = time.monotonic() - before
    os.chdir(folder)
    os.environ["SCORELENS_CACHE"] = str(folder / "cache")
    for _ in range(rng.randint(1, 2)):
        child = in_child(lambda: main(list(JOBS[name])))
        time.sleep(rng.random() * seconds)
        os.kill(child, signal.SIGKILL)
        exit_code(child)
    if (folder / "out").exists() and name not in ("train", "bench"):
        pass  # it had finished
    else:
        code = command(*JOBS[name])
        if code != 0:
            raise Fault(f"wrong: {name} exits with {code} after a kill")
    whole, again = _content(folder / "whole" / "out"), _content(folder / "out")
    if set(whole) != set(again):
        raise Fault(f"lost: {sorted(set(whole) ^ set(again))[:3]} after {name} was killed")
    if whole != again:
        raise Fault(f"wrong: {[key for key in whole if whole[key] != again[key]][:2]} after {name} was killed")
    left = [path for path in folder.rglob(".*") if TEMPORARY.fullmatch(path.name)]
    if left:
        raise Fault(f"left: {left[0].name}")


def neighbours(number: int, rng: random.Random, folder: Path) -> None:
    """Four processes at once on one cache; with names of their own, one name for all, or one training."""
    small_folder(folder, 60)
    kind = number % 4
    jobs = {0: JOBS["decoding"][:-2], 1: JOBS["decoding"], 2: JOBS["fitting"][:-2], 3: JOBS["train"]}[kind]
    codes = [exit_code(child) for child in [in_child(lambda: main(list(jobs))) for _ in range(4)]]
    finished = [path for path in (folder / "runs").iterdir() if not path.name.startswith(".")] \
        if (folder / "runs").exists() else []
    if kind in (0, 2) and (codes != [0] * 4 or len(finished) != 4):
        raise Fault(f"lost: exit codes {codes}, {len(finished)} folders of 4")
    if kind in (0, 2) and len({str(_content(path)) for path in finished}) != 1:
        raise Fault("wrong: the four runs differ")
    if kind in (1, 3) and not (0 in codes and set(codes) <= {0, 2}):
        raise Fault(f"lost: exit codes {codes} of four runs in one folder")
    left = [path for path in folder.rglob(".*") if TEMPORARY.fullmatch(path.name)]
    if left:
        raise Fault(f"left: {left[0].name}")


# ---- names and terminals

NAMES = ("$\\frac{$", "a\nb", "\x1b[31mred\x1b[0m", "ümläut", "日本", "a b", "-rf", "{name}", "%s", "x" * 200, "a'b\"c",
         "..hidden", "<script>", "a&b", "$x^2$", "\\", "~", "\udcff", "#", "σ")
JOBS_WITH_NAMES = (("sample", "--denoiser", "wiener", "--num", "1", "--steps", "2", "--data"), ("data", "info"),
                   ("sensitivity", "--num", "1", "--steps", "2", "--levels", "1", "--data"))


def names(number: int, rng: random.Random, folder: Path) -> None:
    """Folders and classes with odd names, on terminals of several encodings."""
    name, encoding = NAMES[number % len(NAMES)], ("utf-8", "ascii", "latin-1", "cp437")[number // len(NAMES) % 4]
    inner = folder / name
    inner.mkdir()
    small_folder(inner, 4)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    errors = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    job = JOBS_WITH_NAMES[number % len(JOBS_WITH_NAMES)]
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(errors):
        code = main([*job, f"folder:{inner}"])
    for text in (stream, errors):
        text.seek(0)
    if "\x1b" in stream.read() + errors.read():
        raise Fault("wrong: an escape code reached the terminal")
    refused(code)


# ---- numbers

DATA = {"constant": lambda rng: np.full((6, 1, 4, 4), 77),
        "one image": lambda rng: rng.integers(0, 256, (1, 3, 4, 4)),
        "two images": lambda rng: rng.integers(0, 256, (2, 1, 5, 3)),
        "1x1": lambda rng: rng.integers(0, 256, (9, 1, 1, 1)),
        "1x5x17": lambda rng: rng.integers(0, 256, (12, 1, 5, 17)),
        "duplicates": lambda rng: np.repeat(rng.integers(0, 256, (2, 1, 4, 4)), 6, axis=0),
        "black and white": lambda rng: 255 * rng.integers(0, 2, (10, 1, 4, 4)),
        "one pixel varies": lambda rng: np.pad(rng.integers(0, 256, (8, 1, 1, 1)), ((0, 0), (0, 0), (0, 0), (15, 0))),
        "nearly equal": lambda rng: 128 + rng.integers(0, 2, (16, 3, 3, 3))}
SIGMAS = (1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 1e3, 1e6)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NUMBERS = list(itertools.product(DATA, DENOISERS, SIGMAS, DTYPES))
TRUTH = {"optimal": lambda z, x, sigma: brute_force.optimal(z, x, sigma),
         "wiener": lambda z, x, sigma: brute_force.wiener(z, x, sigma)}


def numbers(number: int, rng: random.Random, folder: Path) -> None:
    """Hard data at noise levels from 1e-6 to 1e6: finite, within the range of the data, and right where it is known."""
    kind, name, sigma, dtype = NUMBERS[number]
    pixels = DATA[kind](np.random.default_rng(3)).astype(np.uint8)
    images = ImageSet(pixels, kind)
    model = build_denoiser(name, images)
    noise = scorelens.seeded_noise(images.shape, [1, 2], dtype=torch.float64)
    z = (images[[0, -1]].double() + sigma * noise).to(dtype)
    if not torch.isfinite(z).all():
        return  # 1e6 is not a number of half precision
    x0_hat = model(z, sigma)
    if x0_hat.dtype != dtype or x0_hat.shape != z.shape:
        raise Fault(f"wrong: {x0_hat.dtype} {tuple(x0_hat.shape)}")
    if not torch.isfinite(x0_hat).all():
        raise Fault(f"wrong: {name} on {kind} at {sigma:g} in {dtype} is not finite")
    if name in TRUTH:
        x = brute_force.floats(pixels)
        truth = torch.from_numpy(TRUTH[name](z.double().flatten(1).numpy(), x, sigma)).view(z.shape)
        error = (x0_hat.double() - truth).abs().max().item()
        allowed = tolerance(name, z, x, sigma, dtype)
        if error > allowed:
            raise Fault(f"wrong: {name} on {kind} at {sigma:g} in {dtype} errs by {error:.2g}, allowed {allowed:.2g}")


def tolerance(name: str, z: torch.Tensor, x: np.ndarray, sigma: float, dtype: torch.dtype) -> float:
    """Rounding of the output, and of distances or products in the dtype that is computed in."""
    eps = torch.finfo(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype).eps
    output = 2 * torch.finfo(dtype).eps
    if name == "wiener":  # computed in float64; truth by solving, which loses the condition number of Sigma + sigma^2
        spread = np.linalg.eigvalsh(np.atleast_2d(np.cov(x.T)))[-1] if len(x) > 1 else 0.0
        return output + 1e-13 * (1 + z.abs().max().item()) * (1 + spread / sigma**2)
    scale = float(np.abs(z.double().flatten(1).numpy()).max() + 1) * x.shape[1]
    return output + min(2.0, 8 * eps * scale / sigma**2 * (1 if sigma < 1 else sigma))


FULL = {"flags": len(FLAGS), "options": len(OPTIONS), "names": 4 * len(NAMES), "numbers": len(NUMBERS)}
