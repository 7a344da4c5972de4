"""Where the zoo's networks are published, and how they are fetched: by name, checked, and resumed after interruption.

A source is a folder, a web address or a hub repository. It holds one folder for each network, and an index of their
files with sizes and checksums. The package carries the index of its own source: so names are known without a network
connection, and a download is the network that this version was tested with, or an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote

from scorelens import progress
from scorelens.files import atomic_file, cache_folder, write_json
from scorelens.networks.folders import CARD, one_line, open_folder
from scorelens.types import ScorelensError
from scorelens.validation import unknown

SOURCE = "scorelens/zoo"  # the one place that says where networks are published; $SCORELENS_ZOO_SOURCE overrides it
INDEX = "index.json"
PACKAGED = Path(__file__).resolve().parents[1] / "zoo" / INDEX
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
NAME = re.compile(r"\w[\w.-]*")
KINDS = (".json", ".md", ".png", ".safetensors")  # never a pickle
PARTS = (".", "scheduler", "unet", "transformer")  # of a network's folder; others are checkpoints of its training
RECORDS = ("training.json", "losses.json", "run.json", "checkpoint.safetensors")  # of the training, not of the network
TIMEOUT, CHUNK = 30, 1 << 20

Index = dict[str, dict[str, Any]]  # by network: files (bytes and sha256 by path), data, shape, parameters, r2


def zoo_source() -> str:
    """The source in use: a folder, a web address or a hub repository."""
    return os.environ.get("SCORELENS_ZOO_SOURCE") or SOURCE


def known_networks(source: str | None = None, *, refresh: bool = False) -> Index:
    """The index of a source: the package's for its own, else a copy of the source's, fetched if there is none."""
    source = source or zoo_source()
    if source == SOURCE:
        return _read_index(PACKAGED)
    copy = cache_folder("zoo") / f"{_digest(source)}.json"
    if refresh or Path(source).expanduser().is_dir() or not copy.exists():
        with _opened(source, INDEX) as (stream, _), atomic_file(copy) as temporary:
            temporary.write_bytes(stream.read())
    return _read_index(copy)


def fetched_folders() -> Iterator[Path]:
    """The folders that hold downloaded networks of the source in use, keyed by their content."""
    with suppress(ScorelensError):  # no cache, or no index yet
        if zoo_source() == SOURCE or (cache_folder("zoo") / f"{_digest(zoo_source())}.json").exists():
            index = known_networks()
            yield from (cache_folder("zoo") / _digest(index[name]) for name in index)


def pull(name: str, source: str | None = None, out: Path | None = None) -> Path:
    """Fetch a network, and return its folder. Files that are complete are kept, an incomplete one is resumed.

    Args:
        name: of a network in the source's index.
        source: a folder, a web address or a hub repository; by default $SCORELENS_ZOO_SOURCE or the zoo of Scorelens.
        out: the folder to put it in, under its name; by default Scorelens' cache, where load_network finds it.
    """
    from filelock import FileLock

    source = source or zoo_source()
    index = known_networks(source, refresh=True)
    if name not in index:
        raise unknown("network", name, index)
    parent = cache_folder("zoo") / _digest(index[name]) if out is None else Path(out).expanduser()
    final, partial = parent / name, parent / f".{name}.partial"
    parent.mkdir(parents=True, exist_ok=True)
    with FileLock(parent / f".{name}.lock"):
        if final.exists() and not complete(final, index[name]):
            raise ScorelensError(f"{final} holds other files than {name} of {source}; remove it, or choose another "
                                 "folder with --out")
        if not final.exists():
            for path, about in index[name]["files"].items():
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                _fetch(source, f"{name}/{path}", partial / path, about)
            partial.rename(final)
    return final


def push(network: str | Path, to: str, *, name: str | None = None) -> str:
    """Publish a trained folder with its card in a folder or a hub repository, and add it to the index there.

    Args:
        network: the folder of a trained network.
        to: a folder, which any web server can offer, or a hub repository such as me/my-zoo, to which you are logged in.
        name: its name there, by default that of its folder.
    """
    folder = Path(network).expanduser()
    open_folder(folder)
    if not (folder / CARD).exists():
        raise ScorelensError(f"{folder} has no {CARD}: publish a folder written by scorelens train")
    name, paths = name or folder.resolve().name, network_files(folder)
    entry = {name: describe(folder)}
    if HUB_ID.fullmatch(to) and not Path(to).is_dir():
        return _push_to_hub(folder, to, name, entry)
    target = Path(to).expanduser()
    for path in paths:
        (target / name / path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target / name / path) as temporary:
            shutil.copyfile(folder / path, temporary)
    index = _read_index(target / INDEX) if (target / INDEX).exists() else {}
    write_json(target / INDEX, dict(sorted({**index, **entry}.items())))
    return str(target / name)


def _push_to_hub(folder: Path, repository: str, name: str, entry: Index) -> str:
    """One commit with the network and the new index."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with one_line(f"cannot publish in the hub repository {repository} (log in with: hf auth login)"):
        api.create_repo(repository, exist_ok=True)
        index: Index = {}
        if api.file_exists(repository, INDEX):
            with _opened(repository, INDEX) as (stream, _):
                index = json.load(stream)
        text = json.dumps(dict(sorted({**index, **entry}.items())), indent=2).encode()
        api.create_commit(repository, [CommitOperationAdd(INDEX, text), *(
            CommitOperationAdd(f"{name}/{path}", str(folder / path)) for path in network_files(folder))],
            commit_message=f"Add {name}")
    return f"{repository}/{name}"


def network_files(folder: Path) -> list[str]:
    """The files of a network, without the checkpoints of its training."""
    found = (path.relative_to(folder).as_posix() for part in PARTS for path in (folder / part).glob("*")
             if path.is_file() and path.suffix in KINDS and not path.name.startswith("."))
    return sorted(path for path in found if path not in RECORDS)


def describe(folder: Path) -> dict[str, Any]:
    """The entry of a network in an index."""
    card = json.loads((folder / CARD).read_text())
    data, agreement = card.get("data", {}), card.get("agreement", {}).get("curve", [])
    return {"data": data.get("name", ""), "shape": data.get("shape", []), "parameters": card.get("parameters", 0),
            **({"r2": round(agreement[-1]["r2"]["mean"], 3)} if agreement else {}),
            "files": {path: {"bytes": (folder / path).stat().st_size, "sha256": _sha256(folder / path)}
                      for path in network_files(folder)}}


def complete(folder: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a folder holds the files of an index entry, unaltered."""
    return all((folder / path).is_file() and _sha256(folder / path) == about["sha256"]
               for path, about in entry["files"].items())


def _fetch(source: str, path: str, target: Path, about: Mapping[str, Any]) -> None:
    """Download one file, from where an earlier download stopped; check its size and checksum."""
    done = target.stat().st_size if target.exists() else 0
    if done > about["bytes"]:
        target.unlink()
        done = 0
    if done < about["bytes"] or done == 0:
        with _opened(source, path, done) as (stream, first), target.open("ab" if first else "wb") as file:
            chunks = iter(lambda: stream.read(CHUNK), b"")
            for chunk in progress.track(chunks, path, -(-about["bytes"] // CHUNK), unit="MB", first=first // CHUNK):
                file.write(chunk)
                if file.tell() > about["bytes"]:
                    break
    size = target.stat().st_size
    if size < about["bytes"]:
        raise ScorelensError(f"the download of {path} stopped after {size:,} of {about['bytes']:,} bytes; the same "
                             "command resumes it")
    if _sha256(target) != about["sha256"]:
        target.unlink()
        raise ScorelensError(f"{path} from {source} is not the file that the index describes (its checksum differs); "
                             "run the command again, or choose another --source")


@contextmanager
def _opened(source: str, path: str, start: int = 0) -> Iterator[tuple[IO[bytes], int]]:
    """A file of a source as a stream, from byte `start` if the source can, else from its beginning; and which."""
    try:
        folder = Path(source).expanduser()
        if folder.is_dir():
            with (folder / path).open("rb") as file:
                yield file, file.seek(start)
        else:
            headers = {"Range": f"bytes={start}-"} if start else {}
            request = urllib.request.Request(_address(source, path), headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                yield answer, start if answer.status == 206 else 0
    except (OSError, HTTPException) as error:
        raise _unreachable(source, path, error) from error


def _address(source: str, path: str) -> str:
    if re.match(r"https?://", source):
        return f"{source.rstrip('/')}/{quote(path)}"
    if HUB_ID.fullmatch(source):
        return f"{os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'}/{source}/resolve/main/{quote(path)}"
    raise ScorelensError(f"{source} is neither a folder nor a web address nor a hub repository such as {SOURCE}")


def _unreachable(source: str, path: str, error: Exception) -> ScorelensError:
    reason = f"{error.code} {error.reason}" if isinstance(error, urllib.error.HTTPError) else \
        getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return ScorelensError(f"cannot fetch {path} from {source} ({reason}); without a connection, copy the network's "
                          "folder from zoo/ of a checkout and set SCORELENS_ZOO to the folder that holds it, or give "
                          "another --source (SCORELENS_ZOO_SOURCE)")


def _read_index(path: Path) -> Index:
    """An index, after checking that it names no file outside its networks' folders."""
    try:
        index: Index = json.loads(path.read_text())
        paths = [f"{name}/{file}" for name, entry in index.items() for file in entry["files"]]
        sane = all(NAME.fullmatch(name) for name in index) and all(
            isinstance(about["bytes"], int) and isinstance(about["sha256"], str)
            for entry in index.values() for about in entry["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ScorelensError(f"{path} is not an index of networks: {error}") from error
    for file in paths:
        pure = PurePosixPath(file)
        if not sane or ".." in pure.parts or "\\" in file or "//" in file or pure.suffix not in KINDS:
            raise ScorelensError(f"{path} is not an index of networks: it names {file}")
    return index


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else \
            hashlib.sha256(file.read()).hexdigest()
