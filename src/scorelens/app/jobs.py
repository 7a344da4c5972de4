"""Cancellable computations that share a small thread pool, one step at a time."""

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
from scorelens.app.messages import Failure, Message, Prediction, Stage, encode, internal_error
from scorelens.types import ScorelensError

WORKERS = 2  # a slow step in one tab does not block another tab
LIMIT = 64  # open computations; a waiting one uses little memory
POLL_SECONDS = 0.1  # between progress lines during a long step
BATCH_SECONDS = 0.02  # steps shorter than this are sent together
T = TypeVar("T")
log = logging.getLogger("scorelens.app")


class Busy(Exception):
    """Too many computations are open; try again soon."""


class Cancelled(Exception):
    """The client has disconnected."""


class Job:
    """One computation; `advance` may be called from any thread."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages, self._cancelled = messages, threading.Event()
        self._stage = Stage("", 0, 1)
        self._fraction = 0.0  # of the current step

    def cancel(self) -> None:
        """Stop at the next progress report or step."""
        self._cancelled.set()

    def advance(self) -> bytes | None:
        """The lines of the next batch, or None at the end. An error is the last line."""
        lines, deadline = b"", time.monotonic() + BATCH_SECONDS
        while time.monotonic() < deadline:
            message = self._next()
            if message is None:
                return lines or None
            if isinstance(message, Stage):
                self._stage = message
            elif isinstance(message, Prediction):
                self._stage = replace(self._stage, done=message.step + 1, activity="trajectory")
            lines += encode(message)
        return lines

    def _next(self) -> Message | None:
        try:
            self._on_progress(0.0)
            with torch.no_grad(), progress.watched(self._on_progress):
                return next(self._messages, None)
        except Cancelled:
            return None
        except ScorelensError as error:
            return Failure(str(error))
        except Exception as error:
            log.exception("a computation failed")
            return Failure(internal_error(error))

    def _on_progress(self, fraction: float) -> None:
        self._fraction = fraction
        if self._cancelled.is_set():
            raise Cancelled

    @property
    def progress_line(self) -> bytes:
        """The current stage, with the fraction of the current step."""
        return encode(replace(self._stage, done=self._stage.done + self._fraction))


class Jobs:
    """The thread pool and the number of open computations."""

    def __init__(self, workers: int = WORKERS, limit: int = LIMIT) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="scorelens-app")
        self._limit, self._open, self.stopping = limit, 0, False

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count the block as an open computation; raise Busy at the limit."""
        if self._open >= self._limit:
            raise Busy
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count this block of an open computation: its client is slow, and nothing is computed for it."""
        self._open -= 1
        try:
            yield
        finally:
            self._open += 1

    def submit(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the function in the pool."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def lines(self, job: Job) -> AsyncIterator[bytes]:
        """The job's lines, with progress lines during long steps."""
        last = b""
        while not self.stopping:
            step = self.submit(job.advance)
            try:
                while not (await asyncio.wait({step}, timeout=POLL_SECONDS))[0]:
                    if self.stopping:
                        return
                    if job.progress_line != last:
                        last = job.progress_line
                        yield last
            finally:
                step.cancel()  # if it is still queued
            lines = step.result()
            if lines is None:
                return
            yield lines

    def stop(self) -> None:
        """End all streams at their next message or poll. Takes no locks: it may be called by a signal handler."""
        self.stopping = True

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
