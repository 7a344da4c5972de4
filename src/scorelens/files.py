"""Atomic file writes (a temporary name, then a rename), output folders, and the cache folder."""

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
    """The subfolder `kind` of $SCORELENS_CACHE, or of the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scorelens"
    base = Path(os.environ.get("SCORELENS_CACHE") or default).expanduser()
    try:
        (base / kind).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScorelensError(f"cannot use the cache folder {base}: {error.strerror}; "
                             "set SCORELENS_CACHE to a writable folder") from error
    return base / kind


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it if the block succeeds and removed if it raises.

    Concurrent writers do not collide: each has its own temporary name, and the last rename wins.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    try:
        yield Path(name)
        Path(name).chmod(0o666 & ~_umask())  # mkstemp creates private files
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any] | list[float]) -> None:
    """Write a JSON file atomically."""
    indent = 2 if isinstance(content, Mapping) else None
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, default=str) + "\n")


def check_fresh(path: Path) -> Path:
    """The path, after checking that a new folder can be created there; nothing is left behind."""
    path = Path(path).expanduser()
    if path.exists():
        raise ScorelensError(f"the output folder {path} exists; choose another with --out, or remove it")
    with _write_errors(path):
        Path(tempfile.mkdtemp(dir=next(p for p in path.absolute().parents if p.exists()))).rmdir()
    return path


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, renamed to `path` if the block succeeds. Raises at the start if `path` exists."""
    path = check_fresh(path)
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if path.exists():  # another run finished first
            raise ScorelensError(f"the output folder {path} appeared during this run; choose another with --out")
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def resumable_folder(folder: Path, config: Mapping[str, Any], what: str) -> Iterator[None]:
    """Lock a folder for this block: a new one, or one with the same settings, which is resumed.

    The settings are stored in `<what>.json`. The operating system releases the lock even if the process is killed.
    """
    from filelock import FileLock, Timeout

    if not distributed.world().is_main:
        yield
        return
    with _write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout as error:
        raise ScorelensError(f"another {what} is running in {folder}; wait for it, or choose another with --out") \
            from error
    with lock:
        _check_settings(folder, config, what)
        yield


def _check_settings(folder: Path, config: Mapping[str, Any], what: str) -> None:
    """Record the settings in a new folder; in a resumed one, check that they are the same."""
    path = folder / f"{what}.json"
    settings = json.loads(json.dumps(config, default=str))
    if path.exists():
        recorded = json.loads(path.read_text())
        for name in {**recorded, **settings}:
            if recorded.get(name) != settings.get(name):
                raise ScorelensError(f"{folder} contains a {what} with other settings ({name}: {recorded.get(name)} "
                                     f"there, {settings.get(name)} now); choose another folder with --out")
    elif any(p.name != ".lock" for p in folder.iterdir()):
        raise ScorelensError(f"the folder {folder} is not empty and holds no {what}; choose another with --out")
    else:
        write_json(path, settings)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Report an OSError within the block in one line."""
    try:
        yield
    except OSError as error:
        raise ScorelensError(f"cannot write to {path}: {error.strerror}; choose another folder with --out") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
