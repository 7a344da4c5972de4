"""The command line: derives flags from the signatures of the commands, parses them, and calls the commands."""

from __future__ import annotations

import argparse
import inspect
import math
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import TextIOBase, TextIOWrapper
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import torch

from scorelens import __version__, distributed, progress
from scorelens.analysis import comparison, examination, patch_sizes
from scorelens.analysis import report_card as card
from scorelens.cli.app import app
from scorelens.cli.attribute import attribute
from scorelens.cli.bench import bench_list, bench_report, bench_run
from scorelens.cli.cache import cache_clear, cache_list
from scorelens.cli.calibrate import calibrate
from scorelens.cli.compare import compare
from scorelens.cli.data import info, list_sources, spectra
from scorelens.cli.demo import demo
from scorelens.cli.explain import explain
from scorelens.cli.load_data import load_data
from scorelens.cli.load_networks import loading_flags
from scorelens.cli.manipulation import manipulation
from scorelens.cli.report_card import report_card
from scorelens.cli.sample import sample
from scorelens.cli.sensitivity import sensitivity
from scorelens.cli.train import train
from scorelens.cli.zoo import zoo_list, zoo_pull, zoo_push
from scorelens.denoisers import find_builder
from scorelens.denoisers.selection import CANDIDATES
from scorelens.files import read_file, release_folders
from scorelens.networks import training
from scorelens.types import CheckFailedError, ScorelensError
from scorelens.validation import nearest_name, printable, unknown


@dataclass(frozen=True)
class Command:
    """A function, and how the command line calls it; `data` says how the source of images is given."""

    function: Callable[..., Any]
    example: str
    data: Literal["flag", "optional", "positional", "none"] = "none"
    first: str = ""  # the parameter that is positional
    divided: bool = False  # torchrun can divide its work among several processes
    documented: Callable[..., Any] | None = None  # the library's function, whose docstring describes shared parameters


COMMANDS = {
    "demo": Command(demo, "scorelens demo"),
    "data list": Command(list_sources, "scorelens data list"),
    "data info": Command(info, "scorelens data info digits", data="positional"),
    "data spectra": Command(spectra, "scorelens data spectra --sources digits leaves --limit 200 --resolution 8"),
    "sample": Command(sample, "scorelens sample --data digits --denoiser locality --denoiser.threshold 0.05 --num 16",
                      data="flag", divided=True),
    "sensitivity": Command(sensitivity, "scorelens sensitivity --data digits --split train --model digits-unet wiener "
                           "--pixels centre 2,3 --num 8", data="flag"),
    "attribute": Command(attribute, "scorelens attribute --data digits --model locality:threshold=0.05 --num 2",
                         data="flag", divided=True),
    "report-card": Command(report_card, "scorelens report-card digits-unet --data digits", data="flag", first="model",
                           documented=card.report_card),
    "manipulation": Command(manipulation, "scorelens manipulation --data digits --model digits-unet --pattern I "
                            "--num 4", data="flag"),
    "compare": Command(compare, "scorelens compare --data digits --split train --reference digits-unet --num 32 "
                       "--model wiener locality:threshold=0.02/0.05", data="flag", divided=True,
                       documented=comparison.compare),
    "calibrate": Command(calibrate, "scorelens calibrate --data digits --split train --reference digits-unet "
                         "--denoiser ls --num 8", data="flag", documented=patch_sizes.prepare_fit),
    "explain": Command(explain, "scorelens explain digits-unet --data digits --minutes 0.2", data="flag",
                       first="checkpoint", documented=examination.explain),
    "bench run": Command(bench_run, "scorelens bench run softmax --only digits", first="names", divided=True),
    "bench list": Command(bench_list, "scorelens bench list"),
    "bench report": Command(bench_report, "scorelens bench report runs/bench-softmax", first="folder"),
    "cache list": Command(cache_list, "scorelens cache list"),
    "cache clear": Command(cache_clear, "scorelens cache clear --older-than 30"),
    "app": Command(app, "scorelens app", data="optional"),
    "train": Command(train, "scorelens train --data digits --network unet --epochs 2", data="flag",
                     documented=training.train),
    "zoo list": Command(zoo_list, "scorelens zoo list"),
    "zoo pull": Command(zoo_pull, "scorelens zoo pull digits-unet", first="names"),
    "zoo push": Command(zoo_push, "scorelens zoo push digits-unet --to my-zoo", first="network"),
}
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RENAMED = {"--models": "--model", "--denoisers": "--model", "--networks": "--model", "--references": "--reference"}
NOT_FLAGS = {"images", "test", "options", "stats", "operators", "loading"}  # parameters that are objects, not text
LARGEST_INT = 2**53  # beyond it, JSON and floats lose digits
TYPES = {int: "a whole number", float: "a finite number", str: "text"}


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors, and the nearest name for an unknown flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS,
                         formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ScorelensError(f"{message}; see {self.prog} --help")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """The flags that were given, by parameter."""
        known = self._option_string_actions
        for flag in (word.split("=")[0] for word in argv):
            if RENAMED.get(flag) in known:
                self.error(f"{flag} is now called {RENAMED[flag]}")
            if re.match(r"--[a-z]", flag) and flag not in known:
                self.error(f"unknown option {flag}{nearest_name(flag, known)}")
        return vars(self.parse_args(argv))


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit code: 2, after one line on stderr, for any mistake of the user."""
    try:
        with distributed.joined(), _output(), _short_warnings():
            return _dispatch(sys.argv[1:] if argv is None else argv)
    except ScorelensError as error:
        _report(f"error: {error}")
    except distributed.WorkerLost as error:
        _report(f"error: {error}")
        return 1
    except CheckFailedError as error:
        _report(str(error))
        return error.code
    except BrokenPipeError:  # the reader closed the pipe: scorelens ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python prints an error at exit
        return 0
    except OSError as error:
        _report(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
    except KeyboardInterrupt:
        _report("interrupted; no incomplete files are left, and the same train, calibrate or bench command resumes")
        return 130
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        _report("error: there is not enough memory for this; choose a smaller --resolution, --limit or --num")
    finally:
        release_folders()
    return 2


def _report(text: str) -> None:
    """One line on stderr, whatever the names in it contain."""
    distributed.report(f"scorelens: {printable(text)}")


@contextmanager
def _output() -> Iterator[None]:
    """Progress bars and output of rank 0 only; in characters that the terminal can show, without escape codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if distributed.world().is_main:
        with progress.shown(), redirect_stdout(_Plain(sys.stdout)):
            yield
    else:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            yield


class _Plain(TextIOBase):
    """A stream without escape codes: names of files and classes may contain any."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Warnings in one line each, without the line of code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *more: f"scorelens: warning: {printable(str(message))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"scorelens {__version__}")
        return 0
    name, rest = _command(argv)
    if {"-h", "--help"} & set(rest):
        print(_parser(name, rest).format_help())
        return 0
    if distributed.world().size > 1 and not COMMANDS[name].divided:
        divided = ", ".join(f"scorelens {each}" for each, command in COMMANDS.items() if command.divided)
        raise ScorelensError(f"scorelens {name} runs in one process; only {divided} work under torchrun")
    configs, rest = _values("--config", rest)
    _call(name, [*(word for path in configs for word in _config_words(_config_file(path))), *rest])
    return 0


def _command(argv: list[str]) -> tuple[str, list[str]]:
    """The name of the command, one word or two, and the remaining arguments."""
    for length in (2, 1):
        name = " ".join(argv[:length])
        if name in COMMANDS:
            return name, argv[length:]
    second = [name for name in COMMANDS if name.startswith(argv[0] + " ")]
    if second:
        raise ScorelensError(f"scorelens {argv[0]} must be followed by {' or '.join(n.split()[1] for n in second)}; "
                             f"example: {COMMANDS[second[-1]].example}")
    raise unknown("command", argv[0], {name.split()[0] for name in COMMANDS})


def _call(name: str, argv: list[str]) -> None:
    """Parse the flags, load the images, and call the command."""
    command, given = COMMANDS[name], _parser(name, argv).parse(argv)
    options = {key.removeprefix("denoiser."): given.pop(key) for key in list(given) if key.startswith("denoiser.")}
    if options:
        given["options"] = options
    root = given.get("root")
    if command.data != "none":
        data = {key: given.pop(key) for key in _flags(load_data) if key in given}
        source = given.pop("data", None)
        if source is None and data:
            raise ScorelensError(f"--{next(iter(data)).replace('_', '-')} is an option of --data; give both")
        if source is not None:
            if "test" in inspect.signature(command.function).parameters:
                data = {"split": "train", **data}
                given["test"] = load_data(source, **{**data, "split": "test", "limit": None})
            given["images"] = load_data(source, **data)
    if _names_networks(command):
        flags = {key: given.pop(key) for key in _flags(loading_flags) if key in given}
        given["loading"] = replace(loading_flags(**flags), root=root)
    command.function(**given)


def _names_networks(command: Command) -> bool:
    return "loading" in inspect.signature(command.function).parameters


def _parser(name: str, argv: list[str]) -> _Parser:
    """The parser of a command: flags of the data, of the command, and of the denoiser that argv names."""
    command = COMMANDS[name]
    data = {"flag": "--data SOURCE", "optional": "[--data SOURCE]", "positional": "SOURCE", "none": ""}[command.data]
    usage = " ".join(word for word in ("scorelens", name, data, command.first.upper(), "[options]") if word)
    parser = _Parser(prog=f"scorelens {name}", usage=usage, description=_summary(command.function),
                     epilog=_examples(command))
    if command.data != "none":
        group = parser.add_argument_group("data")
        source: dict[str, Any] = {"metavar": "SOURCE", "help": "the images to load: see scorelens data list"}
        if command.data == "positional":
            group.add_argument("data", **source)
        else:
            group.add_argument("--data", required=command.data == "flag", **source)
        _add_flags(group, load_data)
    if _names_networks(command):
        _add_flags(parser.add_argument_group("networks outside the zoo"), loading_flags)
    own = parser.add_argument_group("options")
    _add_flags(own, command.function, first=command.first, documented=command.documented)
    own.add_argument("--config", metavar="FILE.yaml", help="a YAML file with values for these flags, or one that ships "
                     "with Scorelens: cifar10, celeba-hq, afhqv2, mnist, fashion-mnist, train-cifar10, ...")
    own.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    if "denoiser" in _flags(command.function):
        denoiser = [str(_flags(command.function)["denoiser"].default), *_values("--denoiser", argv)[0]][-1]
        group = parser.add_argument_group(f"options of --denoiser {denoiser}")
        _add_flags(group, find_builder(denoiser), prefix="denoiser.")
    return parser


def _values(flag: str, argv: list[str]) -> tuple[list[str], list[str]]:
    """The values given to a flag, and the other arguments."""
    parser = _Parser(prog="scorelens")
    parser.add_argument(flag, action="append", dest="values", default=[])
    given, others = parser.parse_known_args(argv)
    return given.values, others


def _config_file(name: str) -> Path:
    """A file, or the name of a config that ships with Scorelens."""
    path, shipped = Path(name).expanduser(), {file.stem: file for file in sorted(CONFIGS.glob("*.yaml"))}
    if path.exists() or path.suffix:
        return path
    if name not in shipped:
        raise unknown("config", name, shipped)
    return shipped[name]


def _config_words(path: Path) -> Iterator[str]:
    import yaml

    try:
        config = yaml.safe_load(read_file(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ScorelensError(f"--config {path}: cannot be read as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(config, dict):
        raise ScorelensError(f"--config {path}: expected lines such as 'num: 16'")
    for key, value in config.items():
        yield from _words(f"--{str(key).replace('_', '-')}", value)


def _words(flag: str, value: Any) -> Iterator[str]:
    """`num: 16` is --num 16, `flips: true` is --flips, `denoiser: {name: locality, rank: 9}` are its dotted flags."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _words(flag if key == "name" else f"{flag}.{str(key).replace('_', '-')}", inner)
    elif value is True:
        yield flag
    elif value is not False and value is not None:
        yield flag
        yield from map(str, value if isinstance(value, list) else [value])


def _flags(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(function).parameters.items()
            if name not in NOT_FLAGS and p.kind is not p.POSITIONAL_ONLY}


def _add_flags(group: Any, function: Callable[..., Any], prefix: str = "", first: str = "",
               documented: Callable[..., Any] | None = None) -> None:
    """One flag for each parameter: name, type and default from the signature, help from the docstring."""
    hints = get_type_hints(function if inspect.isfunction(function) else function.__init__)
    hints |= {name: Union[hints[name], Literal["auto"]] for name in CANDIDATES if prefix and name in hints}  # noqa: UP007
    helps = {**_helps(documented), **_helps(function)}
    for name, parameter in _flags(function).items():
        default = " ".join(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        shown = "" if default in (None, False, "", inspect.Parameter.empty) else f" (default: {default})"
        options: dict[str, Any] = {"help": (helps.get(name, "") + shown).replace("%", "%%")}
        if hints[name] is bool:
            options["action"] = "store_true"
        else:
            item = _list_item(hints[name])
            options |= {"type": partial(_convert, hint=item or hints[name]), "nargs": "+" if item else None,
                        "metavar": _metavar(item or hints[name], name)}
        if name == first:
            group.add_argument(name, **options)
        else:
            required = {"required": True} if parameter.default is inspect.Parameter.empty else {}
            group.add_argument(f"--{prefix}{name.replace('_', '-')}", dest=prefix + name, **required, **options)


def _members(hint: Any) -> list[Any]:
    """The types of a union that can be given as text: not None, functions or protocols."""
    union = get_origin(hint) in (Union, types.UnionType)
    members = [member for member in (get_args(hint) if union else [hint]) if member is not type(None)]
    return [m for m in members if get_origin(m) is not Callable and not getattr(m, "_is_protocol", False)]


def _list_item(hint: Any) -> Any:
    """The type of the items, if the value must be a list."""
    (member, *others) = _members(hint)
    return get_args(member)[0] if get_origin(member) not in (None, Literal) and not others else None


def _metavar(hint: Any, name: str) -> str:
    choices = [str(choice) for m in _members(hint) if get_origin(m) is Literal for choice in get_args(m)]
    plain = name.upper().replace("_", "-")
    others = [plain] if any(get_origin(m) is not Literal for m in _members(hint)) else []
    return "{" + ",".join(others + choices) + "}" if choices else plain


def _convert(text: str, hint: Any) -> Any:
    """`text` as the first of the hint's types that fits."""
    expected = []
    for member in _members(hint):
        if get_origin(member) is Literal:
            choices = {str(choice): choice for choice in get_args(member)}
            if text in choices:
                return choices[text]
            expected.append(f"one of {', '.join(choices)}")
        elif get_origin(member) is not None:  # a sequence as an alternative to a number: a size
            if re.fullmatch(r"\d+x\d+", text):
                return tuple(int(part) for part in text.split("x"))
            expected.append("HEIGHTxWIDTH")
        else:
            try:
                value = member(text)
                if isinstance(value, int) and abs(value) > LARGEST_INT:
                    raise ValueError
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError
                return value
            except ValueError:
                expected.append(TYPES.get(member, str(member)))
    raise argparse.ArgumentTypeError(f"{text!r} is not {' or '.join(expected)}")


def _summary(function: Callable[..., Any]) -> str:
    text = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ").partition(";")[0]
    return text if text.endswith("?") else text.rstrip(".") + "."


def _helps(function: Callable[..., Any] | None) -> dict[str, str]:
    """The lines `name: text` below "Args:" of a docstring."""
    _, _, args = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", args, re.MULTILINE)
    return {name: " ".join(text.split()).rstrip(".") for name, text in entries}


def _examples(command: Command) -> str:
    divided = f"torchrun --nproc-per-node 2 -m -- scorelens.cli {command.example.removeprefix('scorelens ')}"
    return f"example:\n  {command.example}" + (f"\nwith two processes:\n  {divided}" if command.divided else "")


def _overview() -> str:
    lines = [f"  scorelens {name:<12} {_summary(command.function)}" for name, command in COMMANDS.items()]
    return "\n".join(["Scorelens explains image diffusion models by the statistics of their training data.", "",
                      "commands:", *lines, "", "Each command has --help with an example. To start: scorelens demo"])
