"""Runs cases of a suite, each in a forked process of its own, and records what came of them.

A case passes if the library answers, or refuses in one line with exit code 2. It fails with a traceback, a hang, a
wrong number, more than two lines on stderr, gigabytes of memory, or files left behind.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scorelens.cli.parser import main
from scorelens.files import TEMPORARY
from scorelens.types import ScorelensError

PATIENCE = 300  # seconds until a case hangs; far more than any takes on a busy machine
MEMORY = 3e9  # bytes
PASSES = ("ok", "refused")
Case = Callable[[random.Random, Path], None]


class Fault(Exception):
    """A wrong answer; the message starts with its kind: wrong, lines, left, lost."""


@dataclass(frozen=True)
class Suite:
    """Cases by number: `case(rng, folder)` raises on failure. `count` is the full number."""

    about: str
    count: int
    case: Callable[[int, random.Random, Path], None]


@dataclass(frozen=True)
class Outcome:
    number: int
    result: str  # ok, refused, traceback, hang, memory, or the kind of a Fault
    detail: str = ""
    commit: str = ""  # of the code that was tried


def command(*argv: object) -> int:
    """Run a command in this process. Returns its exit code; raises Fault if it says more than it should."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in argv])
    lines = err.getvalue().splitlines()
    said = [line for line in lines if line.strip() and "warning:" not in line and "\r" not in line]
    if "Traceback" in err.getvalue():
        raise Fault(f"traceback {err.getvalue()[-200:]}")
    if code == 2 and (len(said) != 1 or not said[0].startswith("scorelens: error: ")):
        raise Fault(f"lines {said}")
    left = [path for path in Path().rglob(".*") if TEMPORARY.fullmatch(path.name) or (path.name.endswith(".lock")
            and path.name != ".lock")]
    if left:
        raise Fault(f"left {left[0]}")
    return code


def refused(code: int) -> None:
    """Record an exit code: 2 is a refusal."""
    if code == 2:
        raise ScorelensError("refused")
    if code not in (0, 1, 3):
        raise Fault(f"wrong exit code {code}")


def run_suite(name: str, suite: Suite, count: int, folder: Path, seed: int = 0, commit: str = "") -> list[Outcome]:
    """The outcomes of `count` cases, evenly spread over the full number; those recorded earlier are not repeated."""
    record, done = folder / f"{name}.jsonl", recorded(name, folder)
    chosen = [k * suite.count // count for k in range(count)]
    for number in chosen:
        if number not in done:
            done[number] = replace(run_case(suite, number, seed), commit=commit)
            with record.open("a") as file:
                file.write(json.dumps(asdict(done[number])) + "\n")
            if done[number].result not in PASSES:
                print(f"{name} {number}: {done[number].result}: {done[number].detail}", flush=True)
    return [done[number] for number in chosen]


def recorded(name: str, folder: Path) -> dict[int, Outcome]:
    """The outcomes of earlier runs, by number."""
    record = folder / f"{name}.jsonl"
    lines = record.read_text().splitlines() if record.exists() else []
    return {row["number"]: Outcome(**row) for row in map(json.loads, lines)}


def run_case(suite: Suite, number: int, seed: int = 0) -> Outcome:
    """One case, in a forked process: the libraries are loaded already, and whatever it breaks ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        result, detail = _attempt(suite, number, seed, folder)
        os.write(writer, json.dumps([result, detail[:400]]).encode())
        os._exit(0)
    os.close(writer)
    waited, last, status = 0.0, time.monotonic(), None
    while status is None:
        pid, code, usage = os.wait4(child, os.WNOHANG)
        now = time.monotonic()
        waited, last = waited + min(now - last, 1.0), now  # while this process is stopped, the case is too
        if pid:
            status = code
        elif waited > PATIENCE:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        else:
            time.sleep(0.005)
    said = os.read(reader, 65536)
    os.close(reader)
    shutil.rmtree(folder, ignore_errors=True)
    if not said:
        return Outcome(number, "hang" if waited > PATIENCE else "killed", f"status {status}")
    result, detail = json.loads(said)
    if usage.ru_maxrss * 1024 > MEMORY:
        return Outcome(number, "memory", f"{usage.ru_maxrss / 2**20:.1f} GiB; {result} {detail}")
    return Outcome(number, result, detail)


def _attempt(suite: Suite, number: int, seed: int, folder: Path) -> tuple[str, str]:
    os.chdir(folder)
    os.environ["SCORELENS_CACHE"] = str(folder / "cache")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    try:
        suite.case(number, random.Random(f"{seed}-{number}"), folder)
        return "ok", ""
    except ScorelensError as error:
        return ("lines", str(error)) if "\n" in str(error) else ("refused", str(error))
    except Fault as fault:
        return str(fault).split()[0], str(fault)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        own = next((frame for frame in reversed(where) if "scorelens" in frame.filename), where[-1])
        return "traceback", f"{type(error).__name__}: {error} ({Path(own.filename).name}:{own.lineno})"


def summary(name: str, suite: Suite, outcomes: list[Outcome]) -> dict[str, object]:
    """The row of a suite: counts by result, and the first failures."""
    counts = Counter(outcome.result for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.result not in PASSES]
    return {"suite": name, "about": suite.about, "tried": len(outcomes), "answered": counts["ok"],
            "refused": counts["refused"], "failed": len(failed),
            "commits": dict(Counter(outcome.commit for outcome in outcomes)),
            "kinds": {kind: n for kind, n in sorted(counts.items()) if kind not in PASSES},
            "examples": [f"{outcome.number}: {outcome.result}: {outcome.detail}" for outcome in failed[:5]]}
