"""Several processes that torchrun started, on one machine or many: who takes which share, and how shares are merged.

The only module that knows torch.distributed. Every process runs the same program on the same noise; what is divided is
the data, and whoever adds something up over its share asks its `World` for the sum over all. A process alone is a world
of one, in which every share is the whole and nothing is sent anywhere.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from scorelens.types import ScorelensError

T = TypeVar("T")
START = timedelta(minutes=5)  # for all to meet
PATIENCE = timedelta(days=1)  # with one who is busy; who is dead is found out by the heartbeat
BEAT, SILENCE, GRACE = 2.0, 20.0, 5.0  # seconds: between signs of life, until one is missed, to end in good order

ENDS = "The job ends without results; bench goes on where it was with the same command"


class WorkerLost(BaseException):
    """Another process of the job is gone, and no result can be right any more. Like an interrupt, it ends this one."""


@dataclass(frozen=True)
class World:
    """The processes that share a piece of work, and which of them this one is."""

    rank: int = 0
    size: int = 1
    machine: int = 0
    seat: int = 0  # among the processes of its machine

    @property
    def first(self) -> bool:
        """The one that prints and writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of so many things are this process's: neighbours, and one more or less than the others have."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def total(self, part: Tensor) -> Tensor:
        """The sum over all processes; may overwrite its argument."""
        return self._reduced(part, dist.ReduceOp.SUM)

    def least(self, part: Tensor) -> Tensor:
        """The elementwise minimum over all processes."""
        return self._reduced(part.clone(), dist.ReduceOp.MIN)

    def _reduced(self, part: Tensor, how: Any) -> Tensor:
        if self.size > 1:
            part = part.contiguous()
            with self._together():
                dist.all_reduce(part, how)
        return part

    def agreed(self, mine: Tensor) -> Tensor:
        """The first process's: for what all have computed, but must not differ on by so much as a rounding."""
        if self.size > 1:
            mine = mine.detach().clone(memory_format=torch.contiguous_format)
            with self._together():
                dist.broadcast(mine, 0)
        return mine

    def of_first(self, make: Callable[[], Mapping[str, Tensor] | None]) -> Mapping[str, Tensor] | None:
        """Tensors, or none, that the first process makes and all receive."""
        if self.size == 1:
            return make()
        made = make() if self.first else None
        kinds = self.told(lambda: None if made is None else {name: (t.shape, t.dtype) for name, t in made.items()})
        if kinds is None:
            return None
        made = made or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
        return {name: self.agreed(tensor) for name, tensor in made.items()}

    def told(self, make: Callable[[], T]) -> T:
        """Anything small that the first process makes and all receive."""
        if self.size == 1:
            return make()
        words: list[Any] = [make() if self.first else None]
        with self._together():
            dist.broadcast_object_list(words, 0)
        return words[0]

    def by_machine(self, make: Callable[[], T]) -> dict[int, T]:
        """What one process on each machine makes, by machine; a mistake of the user's there is one everywhere."""
        made: T | ScorelensError | None = None
        if self.seat == 0:
            try:
                made = make()
            except ScorelensError as error:
                if self.size == 1:
                    raise
                made = error
        told: list[Any] = [(self.machine, made)] * self.size
        if self.size > 1:
            with self._together():
                dist.all_gather_object(told, (self.machine if self.seat == 0 else None, made))
        for _, each in told:
            if isinstance(each, ScorelensError):
                raise each
        return {machine: each for machine, each in told if machine is not None}

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            why = re.sub(r"^\[\S+] ", "", str(error)).splitlines()[0].split(". ")[0]  # without gloo's line of code
            raise WorkerLost(f"a worker was lost: {self} waited for it in vain ({why}). {ENDS}") from error

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


ALONE = World()
_joined = ALONE
_store: dist.Store | None = None  # of the latest block
_blocks = 0
_meeting: dist.Store | None = None  # of all blocks


def world() -> World:
    """All processes of the job; this one alone unless it is within `joined`."""
    return _joined


def team(count: int) -> World:
    """Those who share so many things: all, or, where there is not one for each, every process on its own with all."""
    return _joined if count >= _joined.size else ALONE


def launched() -> World:
    """What torchrun says in the environment."""
    keys = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
    return World(*(int(os.environ[key]) for key in keys)) if all(key in os.environ for key in keys) else ALONE


@contextmanager
def joined() -> Iterator[World]:
    """Within this block the processes that torchrun started work together; without torchrun nothing happens."""
    global _joined, _store, _meeting, _blocks
    if launched().size == 1 or _joined.size > 1:
        yield _joined
        return
    if dist.is_initialized():
        raise ScorelensError("this process is in a group of torch.distributed already; leave it before joined()")
    here = launched()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    with here._together():
        _meeting = _meeting or next(dist.rendezvous("env://", here.rank, here.size, timeout=START))[0]
        _blocks += 1
        _store = dist.PrefixStore(f"scorelens {_blocks}", _meeting)
        dist.init_process_group(backend, store=_store, rank=here.rank, world_size=here.size, timeout=PATIENCE)
    with _heartbeat(here, _store):
        _joined = here
        try:
            yield here
            here.total(torch.zeros(1))  # the first may still be writing
            dist.destroy_process_group()
        finally:
            _joined = ALONE


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; `auto` is cuda, else mps, else the CPU. Of several processes each has its own GPU."""
    alone = world().size == 1
    if name == "auto":
        mps = alone and torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    if not alone and name not in ("cuda", "cpu"):
        raise ScorelensError(f"several processes work together on cuda or cpu, not on {name!r}")
    try:
        device = torch.device(name) if alone or name == "cpu" else own_gpu()
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ScorelensError(f"device {name!r} is not to be had here; use auto, cuda, mps or cpu") from error
    return device


def own_gpu() -> torch.device:
    """The GPU of this process: one for each of a machine's."""
    here, count = world(), torch.cuda.device_count()
    if here.seat >= count:
        raise ScorelensError(f"there are more processes on this machine than its {count} GPUs; start fewer of them "
                             "(--nproc-per-node), or give --device cpu")
    torch.cuda.set_device(here.seat)
    return torch.device("cuda", here.seat)


def tell(message: str) -> None:
    """A line on stderr, of the process that is first to have something to tell; the others have the same, or less."""
    if _store is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # torchrun's, because another has told and ended
        with suppress(RuntimeError):  # the store is gone with its process
            if _store.add("told", 1) > 1:
                return
    print(message, file=sys.stderr, flush=True)


@contextmanager
def _heartbeat(here: World, store: dist.Store) -> Iterator[None]:
    """Signs of life within this block, and WorkerLost where those of others are missed, or torchrun ends the job."""
    def ended(*_: object) -> None:
        raise WorkerLost(f"a worker was lost, or the job was cancelled: {here} was told to end. {ENDS}")

    done, in_main = threading.Event(), threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, ended) if in_main else None
    threading.Thread(target=_watch, args=(here, store, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        if in_main:
            signal.signal(signal.SIGTERM, before)


def _watch(here: World, store: dist.Store, done: threading.Event) -> None:
    """The first process listens to all, the others to the first: when one falls silent, this one ends, too."""
    others = [k for k in range(here.size) if k != here.rank] if here.first else [0]
    last, heard, beats = dict.fromkeys(others, b""), dict.fromkeys(others, time.monotonic()), 0
    while not done.wait(BEAT):
        beats += 1
        try:
            store.set(f"alive {here.rank}", str(beats))
            for other in others:
                now = store.get(f"alive {other}") if store.check([f"alive {other}"]) else b""
                if now != last[other]:
                    last[other], heard[other] = now, time.monotonic()
        except RuntimeError:  # the store is gone with its process; whoever is still there is not heard any more
            pass
        silent = [other for other in others if time.monotonic() - heard[other] > SILENCE]
        if silent:
            os.kill(os.getpid(), signal.SIGTERM)
            if not done.wait(GRACE):  # stuck where no signal reaches it
                tell(f"scorelens: error: a worker was lost: {here} hears no sign of life of rank {silent[0]}. {ENDS}")
                os._exit(1)
            return
