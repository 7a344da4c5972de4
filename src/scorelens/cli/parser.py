"""The command line: reads flags off the signatures of the commands, and calls them. It computes nothing."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from scorelens import __version__, distributed, progress
from scorelens.analysis import comparison, examination, patch_sizes
from scorelens.analysis import report_card as card
from scorelens.cli.app import app
from scorelens.cli.bench import bench_list, bench_report, bench_run
from scorelens.cli.calibrate import calibrate
from scorelens.cli.compare import compare
from scorelens.cli.data import info, list_sources, spectra
from scorelens.cli.demo import demo
from scorelens.cli.explain import explain
from scorelens.cli.load_data import load_data
from scorelens.cli.manipulation import manipulation
from scorelens.cli.report_card import report_card
from scorelens.cli.sample import sample
from scorelens.cli.sensitivity import sensitivity
from scorelens.cli.train import train
from scorelens.denoisers import find_builder
from scorelens.networks import training
from scorelens.types import CheckFailedError, ScorelensError
from scorelens.validation import nearest_name, unknown


@dataclass(frozen=True)
class Command:
    """A plain function and how it is called: `data` as a flag that may be left out or not, in first place, or never."""

    function: Callable[..., Any]
    example: str
    data: Literal["flag", "optional", "positional", "none"] = "none"
    first: str = ""  # the parameter that needs no flag, and comes first
    divided: bool = False  # several processes, started by torchrun, may share its work
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
    "app": Command(app, "scorelens app", data="optional"),
    "train": Command(train, "scorelens train --data digits --network unet --epochs 2", data="flag",
                     documented=training.train),
}
DATA_FLAGS = {"seed": "data_seed"}  # --seed is the noise's everywhere
RENAMED = {"--models": "--model", "--denoisers": "--model", "--networks": "--model", "--references": "--reference"}
NOT_FLAGS = {"images", "test", "source", "options", "stats", "operators"}  # parameters that are objects, not text


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and the nearest real name for an unknown flag."""

    def error(self, message: str) -> NoReturn:
        raise ScorelensError(f"{message}; see {self.prog} --help")

    def refuse_unknown(self, argv: list[str], known: set[str]) -> None:
        for flag in (word.split("=")[0] for word in argv):
            if RENAMED.get(flag) in known:
                self.error(f"{flag} is called {RENAMED[flag]} now")
            if re.match(r"--[a-z]", flag) and flag not in known:
                self.error(f"unknown option {flag}{nearest_name(flag, known)}")


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code is 2, after one line on stderr, for any mistake of the user's."""
    try:
        with distributed.joined(), _voice():
            return _dispatch(sys.argv[1:] if argv is None else argv)
    except ScorelensError as error:
        distributed.report(f"scorelens: error: {error}")
    except distributed.WorkerLost as error:
        distributed.report(f"scorelens: error: {error}")
        return 1
    except CheckFailedError as error:
        print(f"scorelens: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough: scorelens ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its exit
        return 0
    except OSError as error:
        distributed.report(f"scorelens: error: {error.filename or ''}: {error.strerror or error}")
    except KeyboardInterrupt:
        distributed.report("scorelens: interrupted; nothing half-written is left, and the same train, calibrate or "
                           "bench command resumes")
        return 130
    return 2


@contextmanager
def _voice() -> Iterator[None]:
    """Of several processes only the first is heard."""
    if distributed.world().is_main:
        with progress.shown():
            yield
    else:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            yield


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"scorelens {__version__}")
        return 0
    name, rest = _command(argv)
    if {"-h", "--help"} & set(rest):
        print(_parser(name, rest)[0].format_help())
        return 0
    if distributed.world().size > 1 and not COMMANDS[name].divided:
        shared = [f"scorelens {each}" for each, command in COMMANDS.items() if command.divided]
        raise ScorelensError(f"scorelens {name} runs in one process, without torchrun; {', '.join(shared)} can share "
                             "their work")
    _call(name, list(_with_config(rest)))
    return 0


def _command(argv: list[str]) -> tuple[str, list[str]]:
    """The command at the beginning, of one word or two, and what follows."""
    for length in (2, 1):
        name = " ".join(argv[:length])
        if name in COMMANDS:
            return name, argv[length:]
    second = [name for name in COMMANDS if name.startswith(argv[0] + " ")]
    if second:
        raise ScorelensError(f"scorelens {argv[0]} is followed by {' or '.join(n.split()[1] for n in second)}; "
                             f"example: {COMMANDS[second[-1]].example}")
    raise unknown("command", argv[0], {name.split()[0] for name in COMMANDS})


def _call(name: str, argv: list[str]) -> None:
    """Load the images the flags name, and call the command with them and the remaining flags."""
    command, (parser, known) = COMMANDS[name], _parser(name, argv)
    parser.refuse_unknown(argv, known)
    given = vars(parser.parse_args(argv))
    options = {key.removeprefix("denoiser."): given.pop(key) for key in list(given) if key.startswith("denoiser.")}
    if options:
        given["options"] = options
    if command.data != "none":
        chosen = {key: given.pop(flag) for key in _flags(load_data) if (flag := DATA_FLAGS.get(key, key)) in given}
        source = given.pop("data", None)
        if source is None:
            if chosen:
                raise ScorelensError(f"--{next(iter(chosen)).replace('_', '-')} is an option of --data; give both")
            return command.function(**given)
        if "test" in inspect.signature(command.function).parameters:
            chosen = {"split": "train", **chosen}
            given["test"] = load_data(source, **{**chosen, "split": "test", "limit": None})
        given["images"] = load_data(source, **chosen)
    command.function(**given)


def _parser(name: str, argv: list[str]) -> tuple[_Parser, set[str]]:
    """The parser of a command, and all its flags: of its data, its own, and those of the denoiser that argv names."""
    command, known = COMMANDS[name], {"--data", "--config", "--help"}
    parser = _Parser(prog=f"scorelens {name}", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS,
                     description=_summary(command.function), epilog=_examples(command),
                     formatter_class=argparse.RawDescriptionHelpFormatter, usage=_usage(name))
    if command.data != "none":
        group = parser.add_argument_group("data")
        where: dict[str, Any] = {"metavar": "SOURCE", "help": "what to load: see scorelens data list"}
        if command.data == "positional":
            group.add_argument("data", **where)
        else:
            group.add_argument("--data", required=command.data == "flag", **where)
        known |= _add_flags(group, load_data, rename=DATA_FLAGS)
    own = parser.add_argument_group("options")
    known |= _add_flags(own, command.function, first=command.first, documented=command.documented)
    own.add_argument("--config", metavar="FILE.yaml", help="a file of these flags, without their dashes")
    own.add_argument("-h", "--help", action="store_true", help="show this and exit")
    if "denoiser" in _flags(command.function):
        chosen = _chosen_denoiser(command.function, argv)
        group = parser.add_argument_group(f"options of --denoiser {chosen}")
        known |= _add_flags(group, find_builder(chosen), prefix="denoiser.")
    return parser, known


def _examples(command: Command) -> str:
    shared = f"torchrun --nproc-per-node 2 -m -- scorelens.cli {command.example.removeprefix('scorelens ')}"
    return f"example:\n  {command.example}" + (f"\nby two processes:\n  {shared}" if command.divided else "")


def _chosen_denoiser(function: Callable[..., Any], argv: list[str]) -> str:
    for k, word in enumerate(argv):
        if word.startswith("--denoiser="):
            return word.partition("=")[2]
        if word == "--denoiser" and k + 1 < len(argv):
            return argv[k + 1]
    return str(_flags(function)["denoiser"].default)


def _with_config(argv: list[str]) -> Iterator[str]:
    """argv, with the flags of --config FILE.yaml in front of those given beside it, which therefore win."""
    words, rest = list(argv), []
    while words:
        word = words.pop(0)
        if word == "--config" or word.startswith("--config="):
            value = word.partition("=")[2] or (words.pop(0) if words else "")
            yield from _config_words(Path(value).expanduser())
        else:
            rest.append(word)
    yield from rest


def _config_words(path: Path) -> Iterator[str]:
    import yaml

    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
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
    return {name: p for name, p in inspect.signature(function).parameters.items() if name not in NOT_FLAGS}


def _add_flags(group: Any, function: Callable[..., Any], prefix: str = "",
               rename: Mapping[str, str] = types.MappingProxyType({}), first: str = "",
               documented: Callable[..., Any] | None = None) -> set[str]:
    """One flag for each parameter: its name, type and default from the signature, its help from the docstring."""
    added = set()
    hints = get_type_hints(function if inspect.isfunction(function) else function.__init__)
    helps = {**_helps(documented), **_helps(function)}
    for name, parameter in _flags(function).items():
        hint, default, flag = hints[name], parameter.default, rename.get(name, name)
        told = " ".join(default) if isinstance(default, tuple) else default
        shown = "" if told in (None, False, "", inspect.Parameter.empty) else f" (default: {told})"
        how: dict[str, Any] = {"dest": prefix + flag, "help": (helps.get(name, "") + shown).replace("%", "%%")}
        if hint is bool:
            how["action"] = "store_true"
        else:
            how["required"] = default is inspect.Parameter.empty
            item = _list_item(hint)
            how |= {"type": lambda text, h=item or hint: _convert(text, h), "nargs": "+" if item else None,
                    "metavar": _metavar(item or hint, flag)}
        if name == first:
            group.add_argument(name, **{key: value for key, value in how.items() if key not in ("dest", "required")})
        else:
            added.add(f"--{prefix}{flag.replace('_', '-')}")
            group.add_argument(f"--{prefix}{flag.replace('_', '-')}", **how)
    return added


def _members(hint: Any) -> list[Any]:
    """The types a value may have as text: None, functions and objects aside."""
    union = get_origin(hint) in (Union, types.UnionType)
    members = [member for member in (get_args(hint) if union else [hint]) if member is not type(None)]
    return [m for m in members if get_origin(m) is not Callable and not getattr(m, "_is_protocol", False)]


def _list_item(hint: Any) -> Any:
    """The type of the items, where a value is a list and nothing else."""
    (member, *others) = _members(hint)
    return get_args(member)[0] if get_origin(member) not in (None, Literal) and not others else None


def _metavar(hint: Any, name: str) -> str:
    choices = [str(choice) for m in _members(hint) if get_origin(m) is Literal for choice in get_args(m)]
    return "{" + ",".join(choices) + "}" if choices else name.upper().replace("_", "-")


def _convert(text: str, hint: Any) -> Any:
    """`text` as the first of the hint's types that it fits."""
    for member in _members(hint):
        if get_origin(member) is Literal:
            if text in map(str, get_args(member)):
                return next(choice for choice in get_args(member) if str(choice) == text)
        elif get_origin(member) is not None:  # a sequence beside a plain number: a size
            if re.fullmatch(r"\d+x\d+", text):
                return tuple(int(part) for part in text.split("x"))
        else:
            try:
                return member(text)
            except ValueError:
                continue
    raise argparse.ArgumentTypeError(f"{text!r} is not {_expected(hint)}")


def _expected(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text"}
    parts = [f"one of {', '.join(map(str, get_args(m)))}" if get_origin(m) is Literal
             else "HEIGHTxWIDTH" if get_origin(m) else names.get(m, str(m)) for m in _members(hint)]
    return " or ".join(parts)


def _summary(function: Callable[..., Any]) -> str:
    text = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ").partition(";")[0]
    return text if text.endswith("?") else text.rstrip(".") + "."


def _helps(function: Callable[..., Any] | None) -> dict[str, str]:
    """The lines `name: text` below "Args:" of a docstring."""
    _, _, args = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", args, re.MULTILINE)
    return {name: " ".join(text.split()).rstrip(".") for name, text in entries}


def _usage(name: str) -> str:
    kinds = {"flag": " --data SOURCE", "optional": " [--data SOURCE]", "positional": " SOURCE", "none": ""}
    where = kinds[COMMANDS[name].data]
    first = f" {COMMANDS[name].first.upper()}" if COMMANDS[name].first else ""
    return f"scorelens {name}{where}{first} [options]"


def _overview() -> str:
    lines = [f"  scorelens {name:<12} {_summary(command.function)}" for name, command in COMMANDS.items()]
    return "\n".join(["Scorelens explains image diffusion models by the statistics of their training data.", "",
                      "commands:", *lines, "", "Each has --help with an example. First steps: scorelens demo"])


if __name__ == "__main__":
    sys.exit(main())
