"""The app on a free port of this machine, in a thread; and questions to it, one connection each."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scorelens import progress
from scorelens.app.jobs import Jobs
from scorelens.app.session import Session


@contextmanager
def serving(session: Session, token: str | None = None, jobs: Jobs | None = None) -> Iterator[int]:
    """The port that the app of this session listens on, for as long as the block lasts."""
    import uvicorn

    from scorelens.app.server import create_app

    config = uvicorn.Config(create_app(session, token, jobs), port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(300)


def until(happens: Any, seconds: float = 300.0) -> None:
    """Wait for it; fail if it does not happen."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of the answer; what is no text or bytes goes as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    sent = body if isinstance(body, (bytes, Iterator, type(None))) else json.dumps(body).encode()
    try:
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), {key.lower(): value for key, value in answer.getheaders()}
    finally:
        connection.close()


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


class Slow:
    """A denoiser that takes its time, tells how far it is, and is counted."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.lock = seconds, threading.Lock()
        self.active = self.most = self.finished = 0

    def __call__(self, z: torch.Tensor, sigma: float) -> torch.Tensor:
        with self.lock:
            self.active += 1
            self.most = max(self.most, self.active)
        try:
            parts = max(20, int(self.seconds / 0.05))
            for k in range(parts):
                time.sleep(self.seconds / parts)
                progress.fraction(k / parts)
            self.finished += 1
            return z / (1 + sigma**2)
        finally:
            with self.lock:
                self.active -= 1
