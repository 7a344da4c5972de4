"""`python -m tools.torture [--count 10] [SUITE ...]`: run suites, and write their rows to perf/results/torture.jsonl.

Interrupted campaigns resume: outcomes are kept in --work until it is removed. --count runs fewer cases of each suite,
evenly spread; the row says how many of how many.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import scorelens
from scorelens.results import environment
from tools.torture import files_suites as files
from tools.torture import runs_suites as runs
from tools.torture.runner import Outcome, Suite, recorded, run_suite, summary

ROWS = Path(__file__).parents[2] / "perf" / "results" / "torture.jsonl"
SUITES = {
    "images": Suite("image files with damaged bytes, beside good ones; very thin images", 1000, files.images),
    "archives": Suite("zips with damaged bytes, odd member names, members that expand to gigabytes", 1000,
                      files.archives),
    "arrays": Suite(".npz files with damaged bytes, headers that promise terabytes", 1000, files.arrays),
    "weights": Suite("safetensors of a network with a damaged header, or truncated", 1000, files.weights),
    "configs": Suite("JSON files of a network with values of another type, missing and unknown keys", 1000,
                     files.configs),
    "settings": Suite("YAML configs with damaged bytes", 300, files.settings),
    "trainings": Suite("damaged settings and checkpoint of an interrupted training", 200, files.trainings),
    "benchmarks": Suite("damaged settings and rows of a benchmark", 200, files.benchmarks),
    "calibrations": Suite("damaged calibration files", 300, files.calibrations),
    "flags": Suite("every numeric flag of every command with nan, inf, 0, -1, 1e30, words, ...", runs.FULL["flags"],
                   runs.flags),
    "options": Suite("every option of every denoiser with words and numbers out of range", runs.FULL["options"],
                     runs.options),
    "caches": Suite("a file of the cache with a flipped bit, truncated, emptied, exchanged or removed", 300,
                    runs.caches),
    "read-only": Suite("a cache that cannot be written: empty, filled, in part, or damaged", 120, runs.read_only),
    "full disk": Suite("files that cannot grow beyond a random size", 200, runs.full_disk),
    "kills": Suite("kill -9 at random moments of sampling, training, benchmarks, decoding and fitting", 100,
                   runs.kills),
    "neighbours": Suite("four processes at once on one cache and one folder", 40, runs.neighbours),
    "names": Suite("folders with odd names, on terminals that are not UTF-8", runs.FULL["names"], runs.names),
    "numbers": Suite("hard data, sigma from 1e-6 to 1e6, half to double precision, against float64",
                     runs.FULL["numbers"], runs.numbers),
}


def campaign(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torture", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], default=[])
    parser.add_argument("--count", type=int, help="run only this many cases of each suite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recorded", action="store_true", help="run nothing; write the rows of what was run so far")
    parser.add_argument("--work", type=Path, default=Path("build/torture"), help="folder of the outcomes")
    given, here = parser.parse_args(argv), environment()  # before the first row changes the tree
    if given.recorded:
        for name in given.suites or SUITES:
            if outcomes := [each for number, each in recorded(name, given.work).items() if number < SUITES[name].count]:
                record(row_of(name, outcomes, given.seed, here))
        return 0
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    os.environ["TORTURE_BENCH"] = str(finished_benchmark(given.work))
    preload()
    failed = 0
    for name in given.suites or SUITES:
        suite, clock = SUITES[name], time.monotonic()
        count = min(given.count or suite.count, suite.count)
        outcomes = run_suite(name, suite, count, given.work, given.seed, str(here.get("commit") or ""))
        row = row_of(name, outcomes, given.seed, here)
        failed += int(str(row["failed"]))
        print(f"{name}: {row['tried']} tried, {row['answered']} answered, {row['refused']} refused, {row['failed']} "
              f"failed {row['kinds'] or ''} ({time.monotonic() - clock:.0f} s)", flush=True)
        record(row)
    return int(failed > 0)


def row_of(name: str, outcomes: list[Outcome], seed: int, here: dict[str, Any]) -> dict[str, object]:
    suite = SUITES[name]
    machine = {key: value for key, value in here.items() if key != "commit"}  # a campaign may span several commits
    return summary(name, suite, outcomes) | {"full": suite.count, "seed": seed, "environment": machine}


def preload() -> None:
    """Import what cases would import, once, before they are forked."""
    import diffusers
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import scipy.optimize
    import yaml
    from PIL import Image

    assert diffusers.DDIMScheduler and matplotlib and scipy and yaml
    Image.init()
    digits = scorelens.load_images("digits", limit=20)
    scorelens.load_network("digits-unet")(digits[:1], 1.0)


def record(row: dict[str, object]) -> None:
    """Replace the suite's row."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    kept = {str(each["suite"]): each for each in [*rows, row]}
    ROWS.write_text("".join(json.dumps(kept[name]) + "\n" for name in SUITES if name in kept))


def finished_benchmark(work: Path) -> Path:
    folder = (work / "bench").resolve()
    if not (folder / "report.html").exists():
        subprocess.run([sys.executable, "-m", "scorelens.cli", "bench", "run", "softmax", "--only", "digits", "--out",
                        str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


if __name__ == "__main__":
    sys.exit(campaign(sys.argv[1:]))
