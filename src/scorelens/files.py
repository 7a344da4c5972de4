"""Durable file writes (a temporary name, fsync, then a rename), output folders, and the cache folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorelens import distributed
from scorelens.types import ScorelensError

if TYPE_CHECKING:
    from filelock import BaseFileLock

SPACE = Path("/proc/self/ns/pid")  # containers may share a folder and a host name, but not process numbers
HOST = hashlib.sha256(f"{platform.node()} {SPACE.readlink() if SPACE.is_symlink() else ''}".encode()).hexdigest()[:8]
TEMPORARY = re.compile(rf"\..+\.{HOST}-(\d+)\.\w+(\.\w+)?")  # .name.<host>-<process>.<random>
SHOWN = 60  # characters of a name in its temporary name: file names are at most 255 bytes long
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

class FolderTaken(ScorelensError):
    """An output folder that exists, or that another run is writing."""


_reserved: dict[Path, tuple[BaseFileLock, list[Path]]] = {}  # output folders: their locks, and parents created for them


def cache_base() -> Path:
    """$SCORELENS_CACHE, or the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "scorelens"
    return Path(os.environ.get("SCORELENS_CACHE") or default).expanduser()


def cache_folder(kind: str) -> Path:
    """The subfolder `kind` of the cache."""
    base = cache_base()
    try:
        (base / kind).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScorelensError(f"cannot use the cache folder {base}: {error.strerror}; "
                             "set SCORELENS_CACHE to a writable folder") from error
    return base / kind


@contextmanager
def write_errors(path: Path, way_out: str = "") -> Iterator[None]:
    """Turn a failure to write in this block into one line that names the path. Other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE and not _concerns(error, path):
            raise
        name = Path(str(error.filename or "")).name
        within = f"{name}: " if name and name not in path.parts and not name.startswith(".") else ""
        raise _write_error(path, f"{within}{error.strerror or error}", way_out) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError" or "os error" not in str(error):  # safetensors' own I/O errors
            raise
        raise _write_error(path, str(error).removeprefix("Error while serializing: "), way_out) from error


def _concerns(error: OSError, path: Path) -> bool:
    """Whether an error names no file, or `path`, a folder above or a file below it, or a temporary file."""
    if error.filename is None:
        return True
    own, named = path.absolute(), Path(os.fsdecode(error.filename)).absolute()
    return own.is_relative_to(named) or named.is_relative_to(own) or any(map(TEMPORARY.fullmatch, named.parts))


def _write_error(path: Path, why: str, way_out: str) -> ScorelensError:
    return ScorelensError(f"cannot write to {path}: {why}{way_out and '; '}{way_out}")


@contextmanager
def atomic_file(path: Path, named: Callable[[Path], Path] | None = None) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it if the block succeeds and removed if it raises.

    `named` gives the final path of the finished file, if that depends on its content.
    The content is on disk before the rename, so that a crash of the machine leaves the old file or the new one.
    Concurrent writers do not collide: each has its own temporary name, and the last rename wins.
    """
    with write_errors(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=temporary_prefix(path), suffix=path.suffix)
        os.close(handle)
        try:
            yield Path(name)
            Path(name).chmod(0o666 & ~_umask())  # mkstemp creates private files
            _sync(Path(name))
            Path(name).replace(named(Path(name)) if named else path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk, where the system can."""
    with suppress(PermissionError):  # folders on Windows
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def temporary_prefix(path: Path) -> str:
    """The start of a temporary name for `path`, which says who writes it."""
    return f".{path.name[:SHOWN]}.{HOST}-{os.getpid()}."


def leftovers(folder: Path) -> list[Path]:
    """Temporary files and folders of processes of this machine that were killed."""
    found = ((path, TEMPORARY.fullmatch(path.name)) for path in folder.iterdir() if path.name.startswith("."))
    return [path for path, match in found if match and not _alive(int(match[1]))]


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder."""
    with suppress(OSError):
        for path in leftovers(folder):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder; another process may have been faster."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_json(path: Path, content: Mapping[str, Any] | list[float]) -> None:
    """Write a JSON file atomically."""
    indent = 2 if isinstance(content, Mapping) else None
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, default=str) + "\n", encoding="utf-8")


def read_file(path: Path, most: int = 2**28) -> bytes:
    """The bytes of a regular file: not of a pipe or device, which may never end, nor of a huge file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"larger than {most / 2**20:,.0f} MiB", str(path))
    return path.read_bytes()


def read_json(path: Path, way_out: str) -> dict[str, Any]:
    """The object in a JSON file, or an error in one line."""
    try:
        content = json.loads(read_file(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScorelensError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}; {way_out}") \
            from error
    if not isinstance(content, dict):
        raise ScorelensError(f"{path} is damaged: it holds no JSON object; {way_out}")
    return content


@contextmanager
def damaged(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Report errors of these kinds, from using the content of a file, in one line that names it."""
    try:
        yield
    except ScorelensError:
        raise
    except kinds as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ScorelensError(f"{path} is damaged ({detail}); restore it, or start again in another folder") from error


def reserve_folder(path: Path) -> Path:
    """Reserve the name of a new folder for this process, until `fresh_folder` creates it or `release_folders`.

    The operating system releases the reservation if the process is killed.
    """
    from filelock import FileLock, Timeout

    path = Path(path).expanduser()
    if path.exists() or path.is_symlink():
        raise FolderTaken(f"the output folder {path} exists; choose another with --out, or remove it")
    if path.absolute() in _reserved or not distributed.world().is_main:
        return path
    with _folder_errors(path):
        created = [parent for parent in path.absolute().parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        Path(tempfile.mkdtemp(dir=path.parent, prefix=temporary_prefix(path))).rmdir()  # FileLock hides why it cannot
        try:
            lock = FileLock(path.parent / f".{path.name[:SHOWN]}.lock")
            lock.acquire(timeout=0)
        except Timeout as error:
            raise FolderTaken(f"another run is writing the output folder {path}; choose another with --out") from error
    _reserved[path.absolute()] = lock, created
    return path


def release_folders() -> None:
    """Release all reservations of this process, and remove the parent folders created for them if they are empty."""
    for path in list(_reserved):
        _release(path)


def _release(path: Path) -> None:
    lock, created = _reserved.pop(path.absolute())
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
    for parent in created:
        with suppress(OSError):  # not empty
            parent.rmdir()


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, renamed to `path` if the block succeeds. Raises at the start if `path` exists."""
    path = reserve_folder(path)
    try:
        with _folder_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=temporary_prefix(path)))
        try:
            with _folder_errors(path):
                yield partial
                partial.chmod(0o777 & ~_umask())
                if path.exists():  # created by another program
                    raise ScorelensError(f"the output folder {path} appeared during this run; choose another with "
                                         "--out")
                partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        if path.absolute() in _reserved:
            _release(path)


@contextmanager
def resumable_folder(folder: Path, config: Mapping[str, Any], what: str) -> Iterator[None]:
    """Lock a folder for this block: a new one, or one with the same settings, which is resumed.

    The settings are stored in `<what>.json`. The operating system releases the lock even if the process is killed.
    """
    from filelock import FileLock, Timeout

    if not distributed.world().is_main:
        yield
        return
    with _folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
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
        recorded = read_json(path, f"restore it, or choose another folder with --out for a new {what}")
        for name in {**recorded, **settings}:
            if recorded.get(name) != settings.get(name):
                raise ScorelensError(f"{folder} contains a {what} with other settings ({name}: {recorded.get(name)} "
                                     f"there, {settings.get(name)} now); choose another folder with --out")
    elif any(p.name != ".lock" for p in folder.iterdir()):
        raise ScorelensError(f"the folder {folder} is not empty and holds no {what}; choose another with --out")
    else:
        write_json(path, settings)


def _folder_errors(path: Path) -> AbstractContextManager[None]:
    return write_errors(path, "choose another folder with --out")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
