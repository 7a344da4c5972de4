"""A headless Chromium, driven over its debugging pipe: what a page measures, looks like and complains about."""

import base64
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 300.0  # seconds for one answer; a cold start on a busy machine takes several
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"]
MEASURE = """({
    innerWidth, scrollWidth: document.documentElement.scrollWidth, images: document.images.length,
    missing: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.alt),
    distorted: [...document.images].filter(i => {
        const style = getComputedStyle(i), pad = k => parseFloat(style[k]);
        const w = i.clientWidth - 2 * pad("paddingLeft"), h = i.clientHeight - 2 * pad("paddingTop");
        return Math.abs(w / h - i.naturalWidth / i.naturalHeight) * h > 2 }).map(i => i.alt),
})"""


@functools.cache
def chromium() -> str | None:
    """The path of a Chromium that starts, or None; some systems have only a script that says how to install one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path and subprocess.run([path, "--version"], capture_output=True, timeout=PATIENCE).returncode == 0:
            return path
    return None


class Tab:
    """One tab: `send` a command of the DevTools protocol, `evaluate` JavaScript; `errors` is what the console got."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._unread, self._count, self._session = b"", 0, {}
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = next(found for found in self._messages() if found.get("id") == self._count)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def open(self, address: str, width: int, height: int, *, dark: bool = False) -> None:
        """Load an address in a window of this size, and wait until its pictures and scripts are there."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        failure = self.send("Page.navigate", url=address).get("errorText")
        assert not failure, f"{address}: {failure}"
        loaded = (event["method"] == "Page.loadEventFired" for event in self.events)
        if not any(loaded):
            next(found for found in self._messages() if found.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer.get("exceptionDetails")
        return answer["result"].get("value")

    @property
    def errors(self) -> list[str]:
        """What the page complained about since it was opened: console errors, exceptions, blocked or failed loads."""
        return [json.dumps(event["params"]) for event in self.events if _is_error(event)]

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Messages as they come; events are kept on the way."""
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self._unread:
                ready = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]
                data = os.read(self._answers, 1 << 20) if ready else b""
                assert data, f"Chromium {'ended' if ready else 'did not answer'}"
                self._unread += data
            text, _, self._unread = self._unread.partition(b"\0")
            message = json.loads(text)
            if "method" in message:
                self.events.append(message)
            yield message


def _is_error(event: dict[str, Any]) -> bool:
    method, params = event["method"], event["params"]
    return (method == "Runtime.exceptionThrown"
            or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"))
            or (method == "Log.entryAdded" and params["entry"]["level"] == "error"))


@contextmanager
def tab() -> Iterator[Tab]:
    """A tab of a fresh Chromium, which ends with the block."""
    path = chromium()
    assert path, "no chromium is installed"
    (their_in, commands), (answers, their_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and answers on 4; the shell puts them there
        script = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        process = subprocess.Popen(["bash", "-c", script, "bash", path, *FLAGS, f"--user-data-dir={profile}"],
                                   pass_fds=(their_in, their_out), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(their_in)
        os.close(their_out)
        try:
            yield Tab(commands, answers)
        finally:
            os.close(commands)  # Chromium ends when its pipe does
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def inspect(page: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """The widths of a page in a window this wide, its missing and distorted pictures, and its console's errors."""
    with tab() as chrome:
        chrome.open(page.resolve().as_uri(), width, 900, dark=dark)
        return chrome.evaluate(MEASURE) | {"errors": chrome.errors}


def screenshot(page: Path, png: Path, width: int, height: int, *, dark: bool = False) -> None:
    """The top of a page, as a person sees it."""
    with tab() as chrome:
        chrome.open(page.resolve().as_uri(), width, height, dark=dark)
        png.write_bytes(base64.b64decode(chrome.send("Page.captureScreenshot", format="png")["data"]))
