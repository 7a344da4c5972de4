"""Checkpoint files: .safetensors, .pt, .pth, .ckpt and .bin as tensors only; whole modules from trusted pickles."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scorelens.networks.folders import one_line
from scorelens.types import ScorelensError

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".th", ".tar", ".model")
CODE = re.compile(r"(?:GLOBAL|class|function) [`']?([\w.]+)")  # in the messages of torch.load
Module = type[nn.Module] | nn.Module | Callable[[], nn.Module] | str


def read_checkpoint(path: Path, trust_pickle: bool) -> Any:
    """The content of a file, on the CPU: nested dictionaries and lists of tensors, and of modules if it is trusted."""
    damaged = f"{path} is damaged or not a checkpoint"
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        with one_line(damaged):
            return load_file(path)
    if trust_pickle:
        return _read_trusted(path, damaged)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        names = _code_in(path, str(error))
        if names or path.suffix == ".pkl":
            raise ScorelensError(f"{path} is a pickle with more than tensors{names}, and can run code when it is "
                                 "loaded; if you trust its author, give trust_pickle=True (--trust-pickle)") from error
        raise ScorelensError(f"{damaged}: {' '.join(str(error).split())[:160]}") from error


def _read_trusted(path: Path, damaged: str) -> Any:
    try:
        with path.open("rb") as file:
            zipped = file.read(4).startswith((b"PK", b"\x80\x02\x8a\x0a"))  # torch's formats, new and old
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=False) if zipped else pickle.load(file)
    except ImportError as error:
        raise ScorelensError(f"{path} needs the code that it was saved with ({error}); add the folder of that "
                             "repository to PYTHONPATH") from error
    except Exception as error:  # whatever the code in the file raises
        raise ScorelensError(f"{damaged}: {' '.join(str(error).split())[:160] or type(error).__name__}") from error


def _code_in(path: Path, message: str) -> str:
    """The names of classes and functions in a pickle that are not tensors, in brackets; empty if there are none."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip: torch's old format, or damaged
        names = CODE.findall(message)
    return f" ({', '.join(sorted(set(names))[:3])})" if names else ""


def build_module(module: Module) -> nn.Module:
    """The network of a module, a class or factory without arguments, or a text "package.module:Class"."""
    if isinstance(module, nn.Module):
        return module
    name, build = (module, _import(module)) if isinstance(module, str) else (_name(module), module)
    if isinstance(build, nn.Module):
        return build
    try:
        built = build()
    except TypeError as error:
        raise ScorelensError(f"{name} cannot be built without arguments ({' '.join(str(error).split())[:160]}); give a "
                             "function that builds it: module=lambda: Net(width=64), or --module "
                             "package.module:function") from error
    if not isinstance(built, nn.Module):
        raise ScorelensError(f"{name} returned {type(built).__name__}, not a torch module")
    return built


def _import(text: str) -> Any:
    """The class or function of "package.module:Class" (also in the current folder) or "path/to/file.py:Class"."""
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ScorelensError(f"module {text!r} must be package.module:Class or path/to/file.py:Class")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with one_line(f"module {text!r} cannot be imported"):
            if place.endswith(".py"):
                spec = importlib.util.spec_from_file_location(Path(place).stem, Path(place).expanduser())
                if spec is None or spec.loader is None:
                    raise ScorelensError(f"{place} is not a Python file")
                imported = importlib.util.module_from_spec(spec)
                sys.modules.setdefault(spec.name, imported)
                spec.loader.exec_module(imported)
            else:
                imported = importlib.import_module(place)
    finally:
        sys.path.remove(str(Path.cwd()))
    if not hasattr(imported, name):
        classes = {key: value for key, value in vars(imported).items() if isinstance(value, type)}
        known = [key for key, value in classes.items() if issubclass(value, nn.Module)]
        raise ScorelensError(f"{place} has no {name}; its networks: {', '.join(known) or 'none'}")
    return getattr(imported, name)


def _name(module: Any) -> str:
    return str(getattr(module, "__name__", type(module).__name__))
