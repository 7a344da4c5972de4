"""Files that are whole or absent: written under a temporary name, then renamed; and where caches live."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scorelens import distributed
from scorelens.types import ScorelensError


def cache_folder(kind: str) -> Path:
    """$SCORELENS_CACHE, else the user's cache folder; one subfolder for each kind of thing kept there."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scorelens"
    base = Path(os.environ.get("SCORELENS_CACHE") or users).expanduser()
    try:
        (base / kind).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScorelensError(f"cannot use the cache folder {base}: {error.strerror}; "
                             "set SCORELENS_CACHE to one that can be written") from error
    return base / kind


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not.

    Two processes that write the same file at once do not meet: each has its own temporary name, the last rename wins.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    try:
        yield Path(name)
        Path(name).chmod(0o666 & ~_umask())  # mkstemp's files are private
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any] | list[float]) -> None:
    """A JSON file, whole or absent."""
    indent = 2 if isinstance(content, Mapping) else None
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, default=str) + "\n")


def check_fresh(path: Path) -> Path:
    """The path, if a new folder can be made there; raises otherwise, and leaves nothing behind."""
    path = Path(path).expanduser()
    with _writing(path):
        Path(tempfile.mkdtemp(dir=next(p for p in path.absolute().parents if p.exists()))).rmdir()
    return path


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """One line for what can go wrong when a new folder is made at `path`."""
    if path.exists():
        raise ScorelensError(f"the output folder {path} exists; choose another with --out, or remove it")
    try:
        yield
    except OSError as error:
        raise ScorelensError(f"cannot write to {path}: {error.strerror}; choose another folder with --out") from error


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """A folder that appears, complete, as `path` when the block ends well; an existing one is refused at the start."""
    path = Path(path).expanduser()
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if path.exists():  # someone else's run finished first
            raise ScorelensError(f"the output folder {path} appeared during this run; choose another with --out")
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def resumable_folder(folder: Path, config: Mapping[str, Any], what: str) -> Iterator[None]:
    """Lock a folder for this block: a new one, or one with the same settings, whose work is resumed.

    The settings are in `<what>.json`. The operating system releases the lock however the process ends.
    """
    from filelock import FileLock, Timeout

    if not distributed.world().is_main:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScorelensError(f"cannot write to {folder}: {error.strerror}; choose another with --out") from error
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ScorelensError(f"another {what} is running in {folder}; wait for it, or choose another with --out") \
            from error
    try:
        _claim(folder, config, what)
        yield
    finally:
        lock.release()


def _claim(folder: Path, config: Mapping[str, Any], what: str) -> None:
    """Write the settings down, or check that the folder's are the same."""
    path = folder / f"{what}.json"
    now = json.loads(json.dumps(config, default=str))
    if path.exists():
        there = json.loads(path.read_text())
        for name in {**there, **now}:
            if there.get(name) != now.get(name):
                raise ScorelensError(f"{folder} holds a {what} with other settings ({name}: {there.get(name)} there, "
                                     f"{now.get(name)} now); choose another folder with --out")
    elif any(p.name != ".lock" for p in folder.iterdir()):
        raise ScorelensError(f"the folder {folder} is not empty and holds no {what}; choose another with --out")
    else:
        write_json(path, now)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
