"""The process group: rank, world size, shards of the data, and collectives over them.

The only module that uses torch.distributed. Every process that torchrun starts runs the same program on the same noise;
the data are sharded, and sums over a shard become sums over all with one call. A single process is a world of size 1:
its shard is everything, and collectives return their argument.
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
START = timedelta(minutes=5)  # to wait for all processes to start
PATIENCE = timedelta(days=1)  # to wait for a busy process; the heartbeat detects dead ones
BEAT, SILENCE, GRACE = 2.0, 20.0, 5.0  # seconds: between heartbeats, until a process counts as lost, to shut down
HEARTBEAT = "scorelens-heartbeat"  # the name of the thread

ENDS = "The job ends without results; the same bench command resumes it"


class WorkerLost(BaseException):
    """Another process of the job died, so no result can be right. Ends this process, like an interrupt."""


@dataclass(frozen=True)
class World:
    """A group of processes, and the rank of this one in it."""

    rank: int = 0
    size: int = 1
    node: int = 0
    local_rank: int = 0  # on its node

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    def shard(self, count: int) -> range:
        """The contiguous part of `count` items that belongs to this process; shards differ by at most one item."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, part: Tensor) -> Tensor:
        """All-reduce: the sum over all processes. May overwrite its argument."""
        return self._run(dist.all_reduce, part, dist.ReduceOp.SUM)

    def min(self, part: Tensor) -> Tensor:
        """All-reduce: the elementwise minimum over all processes."""
        return self._run(dist.all_reduce, part.clone(), dist.ReduceOp.MIN)

    def gather(self, part: Tensor) -> list[Tensor]:
        """All-gather: the tensors of all processes, which have one shape, by rank."""
        every = part.new_zeros(self.size, *part.shape)
        every[self.rank] = part
        return list(self.sum(every))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor: for what every process computed, but must be bitwise equal."""
        return tensor if self.size == 1 else self._run(dist.broadcast, tensor.detach().clone(), 0)

    def _run(self, collective: Callable[..., Any], tensor: Tensor, argument: Any) -> Tensor:
        if self.size > 1:
            tensor = tensor.contiguous()
            with self._collective():
                collective(tensor, argument)
        return tensor

    def broadcast_tensors(self, make: Callable[[], Mapping[str, Tensor] | None]) -> Mapping[str, Tensor] | None:
        """Tensors, or None, that rank 0 makes and all receive."""
        if self.size == 1:
            return make()
        made = make() if self.is_main else None
        kinds = self.broadcast_object(
            lambda: None if made is None else {name: (t.shape, t.dtype) for name, t in made.items()})
        if kinds is None:
            return None
        made = made or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
        return {name: self.broadcast(tensor) for name, tensor in made.items()}

    def broadcast_object(self, make: Callable[[], T]) -> T:
        """Any small object that rank 0 makes and all receive."""
        made: list[Any] = [make() if self.is_main else None]
        if self.size > 1:
            with self._collective():
                dist.broadcast_object_list(made, 0)
        return made[0]

    def once_per_node(self, make: Callable[[], T]) -> dict[int, T]:
        """What one process on each node makes, by node; a ScorelensError on one node is raised on all."""
        made: T | ScorelensError | None = None
        if self.local_rank == 0:
            try:
                made = make()
            except ScorelensError as error:
                if self.size == 1:
                    raise
                made = error
        own = (self.node if self.local_rank == 0 else None, made)
        gathered: list[Any] = [own] * self.size
        if self.size > 1:
            with self._collective():
                dist.all_gather_object(gathered, own)
        for _, each in gathered:
            if isinstance(each, ScorelensError):
                raise each
        return {node: each for node, each in gathered if node is not None}

    @contextmanager
    def _collective(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            why = re.sub(r"^\[\S+] ", "", str(error)).splitlines()[0].split(". ")[0]  # without gloo's line of code
            raise WorkerLost(f"a worker was lost: {self} waited for it ({why}). {ENDS}") from error

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


ALONE = World()
_joined = ALONE
_store: dist.Store | None = None  # of the current `joined` block
_blocks = 0
_rendezvous: dist.Store | None = None  # shared by all blocks


def world() -> World:
    """All processes of the job within `joined`; elsewhere this process alone."""
    return _joined


def group(count: int) -> World:
    """The processes that share `count` items: all of them, or, if there are fewer items than processes, this one alone
    (every process then works on all items)."""
    return _joined if count >= _joined.size else ALONE


def launched() -> World:
    """The world that torchrun describes in the environment."""
    keys = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
    return World(*(int(os.environ[key]) for key in keys)) if all(key in os.environ for key in keys) else ALONE


@contextmanager
def joined() -> Iterator[World]:
    """Within this block the processes that torchrun started form one world; without torchrun nothing happens."""
    global _joined, _store, _rendezvous, _blocks
    if launched().size == 1 or _joined.size > 1:
        yield _joined
        return
    if dist.is_initialized():
        raise ScorelensError("this process already belongs to a torch.distributed group; destroy it before joined()")
    here = launched()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    with here._collective():
        _rendezvous = _rendezvous or next(dist.rendezvous("env://", here.rank, here.size, timeout=START))[0]
        _blocks += 1
        _store = dist.PrefixStore(f"scorelens {_blocks}", _rendezvous)
        dist.init_process_group(backend, store=_store, rank=here.rank, world_size=here.size, timeout=PATIENCE)
    with _heartbeat(here, _store):
        _joined = here
        try:
            yield here
            here.sum(torch.zeros(1))  # rank 0 may still be writing
            dist.destroy_process_group()
        finally:
            _joined = ALONE


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; auto is cuda, else mps, else cpu. Under torchrun each process has its own GPU."""
    alone = world().size == 1
    if name == "auto":
        mps = alone and torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    if not alone and name not in ("cuda", "cpu"):
        raise ScorelensError(f"several processes run on cuda or cpu, not on {name!r}")
    try:
        if name.partition(":")[0] not in ("cuda", "mps", "cpu"):
            raise RuntimeError("torch has other devices, such as meta, that cannot compute this")
        device = torch.device(name) if alone or name == "cpu" else own_gpu()
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ScorelensError(f"device {name!r} is not available here; use auto, cuda, mps or cpu") from error
    return device


def own_gpu() -> torch.device:
    """The GPU of this process: one for each local rank."""
    here, count = world(), torch.cuda.device_count()
    if here.local_rank >= count:
        raise ScorelensError(f"more processes than GPUs ({count}) on this node; start fewer "
                             "(--nproc-per-node), or give --device cpu")
    torch.cuda.set_device(here.local_rank)
    return torch.device("cuda", here.local_rank)


def report(message: str) -> None:
    """Print one line on stderr, from the first process that reports; the others would say the same, or less."""
    if _store is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # sent by torchrun once another process has ended
        with suppress(RuntimeError):  # the store is gone with its process
            if _store.add("reported", 1) > 1:
                return
    print(message, file=sys.stderr, flush=True)


@contextmanager
def _heartbeat(here: World, store: dist.Store) -> Iterator[None]:
    """Send heartbeats within this block; raise WorkerLost when those of others stop, or torchrun ends the job."""
    def ended(*_: object) -> None:
        raise WorkerLost(f"a worker was lost, or the job was cancelled: {here} received SIGTERM. {ENDS}")

    done, in_main = threading.Event(), threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, ended) if in_main else None
    threading.Thread(target=_watch, args=(here, store, done), daemon=True, name=HEARTBEAT).start()
    try:
        yield
    finally:
        done.set()
        if in_main:
            signal.signal(signal.SIGTERM, before)


def _watch(here: World, store: dist.Store, done: threading.Event) -> None:
    """Rank 0 watches all processes, the others watch rank 0; when one stops sending, this process ends too."""
    others = [k for k in range(here.size) if k != here.rank] if here.is_main else [0]
    last, heard, beats = dict.fromkeys(others, b""), dict.fromkeys(others, time.monotonic()), 0
    while not done.wait(BEAT):
        beats += 1
        try:
            store.set(f"alive {here.rank}", str(beats))
            for other in others:
                now = store.get(f"alive {other}") if store.check([f"alive {other}"]) else b""
                if now != last[other]:
                    last[other], heard[other] = now, time.monotonic()
        except RuntimeError:  # the store died with its process
            pass
        silent = [other for other in others if time.monotonic() - heard[other] > SILENCE]
        if silent:
            os.kill(os.getpid(), signal.SIGTERM)
            if not done.wait(GRACE):  # blocked in code that no signal interrupts
                report(f"scorelens: error: a worker was lost: no heartbeat from rank {silent[0]} at {here}. {ENDS}")
                os._exit(1)
            return
