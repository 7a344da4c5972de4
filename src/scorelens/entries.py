"""Cache entries: files that carry their checksum in their name, verified when they are first used.

The file of entry `key.npy` is `key.<size>-<crc32>.npy`: data and checksum appear in one rename. CRC-32 finds every
error of up to 32 adjacent bits, and any other with a chance of 1 - 2^-32; it reads 2.5 GB/s on one core, four times as
much as BLAKE2, in zlib, which Python has. Each file is read once per process; memory-mapped files stay mapped.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from scorelens.files import atomic_file, cache_base, leftovers, remove, remove_leftovers

NAME = re.compile(r"(?P<key>.+)\.(?P<sum>\d+-[0-9a-f]{8})(?P<suffix>\.\w+)")
DAMAGED = ".damaged"  # the suffix of an entry that was set aside
SUFFIXES = (".npy", ".safetensors")  # of entries; the networks of the zoo are folders, with checksums of their own
BLOCK = 2**22

_verified: set[tuple[Path, int, int]] = set()  # files, their sizes and times of change


def find_entry(path: Path) -> Path | None:
    """The file of an entry, or None. A damaged file is set aside with a warning, and the caller computes it again."""
    for file in sorted(path.parent.glob(f"{path.stem}.*{path.suffix}")):
        match = NAME.fullmatch(file.name)
        if match and match["key"] == path.stem:
            try:
                if _is_whole(file, match["sum"]):
                    return file
                set_aside(file)
            except FileNotFoundError:  # removed by `scorelens cache clear`
                continue
            except OSError as error:  # no permission, a folder, a bad disk
                set_aside(file, str(error.strerror))
    return None


@contextmanager
def new_entry(path: Path) -> Iterator[Path]:
    """A temporary path to write; it becomes the file of the entry if the block succeeds."""
    def named(written: Path) -> Path:
        return path.with_name(f"{path.stem}.{_checksum(written)}{path.suffix}")

    remove_leftovers(path.parent)
    with atomic_file(path, named) as temporary:
        yield temporary


def _checksum(file: Path) -> str:
    """Size and CRC-32, in blocks: a large file is not held in memory."""
    size = crc = 0
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return f"{size}-{crc:08x}"


def _is_whole(file: Path, expected: str) -> bool:
    """Whether a file has the size and checksum of its name; known from the last time if it has not changed since."""
    status = file.stat()
    seen = (file, status.st_size, status.st_mtime_ns)
    if seen not in _verified:
        if status.st_size != int(expected.split("-")[0]) or _checksum(file) != expected:
            return False
        _verified.add(seen)
    return True


def set_aside(file: Path, why: str = "its checksum is wrong") -> None:
    """Rename a damaged entry, so that it is computed again and can still be looked at; with a warning."""
    with suppress(OSError):  # a read-only cache: the file is passed over each time
        file.replace(file.with_name(file.name + DAMAGED))
    warnings.warn(f"the cached file {file} is damaged ({why}); it was set aside and is computed again", stacklevel=4)


@dataclass(frozen=True)
class Entry:
    """A file of the cache, or the folder of a network."""

    kind: str  # its folder: images, gaussian, ...
    path: Path
    size: int  # bytes
    changed: float  # seconds since the epoch
    state: str  # "", "damaged", "unfinished" (its process was killed), or "unused" (of an earlier version)


def list_entries() -> list[Entry]:
    """All files of the cache, by kind and name."""
    base, found = cache_base(), []
    for folder in sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []:
        unfinished = set(leftovers(folder))
        for path in sorted(folder.iterdir()):
            with suppress(FileNotFoundError):  # removed by another process meanwhile
                if not path.name.startswith(".") or path in unfinished:
                    state = "unfinished" if path in unfinished else "damaged" if path.suffix == DAMAGED \
                        else "unused" if path.suffix in SUFFIXES and not NAME.fullmatch(path.name) else ""
                    size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
                    found.append(Entry(folder.name, path, size, path.stat().st_mtime, state))
    return found


def remove_entries(entries: list[Entry]) -> int:
    """Remove files of the cache, and return their bytes. A process that has one of them open keeps it until it ends."""
    for entry in entries:
        remove(entry.path)
    return sum(entry.size for entry in entries)
