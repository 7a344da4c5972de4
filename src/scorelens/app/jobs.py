"""Computations in a few threads, step by step: as many as are open take turns, and stop soon when nobody waits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from scorelens import progress
from scorelens.app.messages import Failure, Message, Moment, Stage, encode
from scorelens.types import ScorelensError

WORKERS = 2  # a slow step of one tab leaves the other one free
MOST = 64  # computations open at a time; one that waits for its turn holds little
TICK = 0.1  # seconds between looks at a long step
MOMENT = 0.02  # seconds of short steps that are told together
T = TypeVar("T")
log = logging.getLogger("scorelens.app")


class Busy(Exception):
    """Too many computations are open; try again soon."""


class Cancelled(Exception):
    """Nobody waits for this any more."""


class Job:
    """One computation: each `advance`, in whatever thread, makes the next lines."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages, self._cancelled = messages, threading.Event()
        self._stage = Stage("", 0, 1)
        self._fraction = 0.0  # of the step that is being computed

    def cancel(self) -> None:
        """It stops at the next chunk of data, or step."""
        self._cancelled.set()

    def advance(self) -> bytes | None:
        """The next lines, as many as come in a moment; None at the end. A mistake is the last line."""
        lines, enough = b"", time.monotonic() + MOMENT
        while time.monotonic() < enough:
            message = self._next()
            if message is None:
                return lines or None
            self._follow(message)
            lines += encode(message)
        return lines

    def _next(self) -> Message | None:
        try:
            self._watch(0.0)
            with torch.no_grad(), progress.watched(self._watch):
                return next(self._messages, None)
        except Cancelled:
            return None
        except ScorelensError as error:
            return Failure(str(error))
        except Exception as error:
            log.exception("a computation failed")
            return Failure(f"the app made a mistake ({type(error).__name__}); the terminal it runs in tells more")

    @property
    def line(self) -> bytes:
        """How far it has come, as a line of its own."""
        return encode(replace(self._stage, done=self._stage.done + self._fraction))

    def _follow(self, message: Message) -> None:
        if isinstance(message, Stage):
            self._stage = message
        elif isinstance(message, Moment):
            self._stage = replace(self._stage, done=message.step + 1, doing="walking")

    def _watch(self, done: float) -> None:
        self._fraction = done
        if self._cancelled.is_set():
            raise Cancelled


class Jobs:
    """The threads, and how many computations are open."""

    def __init__(self, workers: int = WORKERS, most: int = MOST) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="scorelens-app")
        self._most, self._open = most, 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the open computations, for as long as the block lasts."""
        if self._open >= self._most:
            raise Busy
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """The function's value, computed in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def lines(self, job: Job) -> AsyncIterator[bytes]:
        """What the job says, and now and then how far it has come."""
        loop, told = asyncio.get_running_loop(), b""
        while True:
            step = loop.run_in_executor(self._pool, job.advance)
            try:
                while not (await asyncio.wait({step}, timeout=TICK))[0]:
                    if job.line != told:
                        told = job.line
                        yield told
            finally:
                step.cancel()  # if it still waits for a thread
            line = step.result()
            if line is None:
                return
            yield line

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
