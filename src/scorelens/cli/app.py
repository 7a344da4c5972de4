"""`scorelens app`: the interactive page, served on this machine."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from scorelens.analysis.guidance import choose_guidance
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_named
from scorelens.data import ImageSet, load_images
from scorelens.distributed import choose_device
from scorelens.types import ScorelensError

SHOWN = ("optimal", "wiener", "locality:threshold=0.05", "kernel", "ls")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHUTDOWN = 2  # seconds until open computations are stopped


def app(images: ImageSet | None = None, *, model: Sequence[str] = SHOWN, reference: Sequence[str] = (),
        labels: Sequence[str] = (), guidance: float | None = None, host: str = "127.0.0.1", port: int = 8765,
        allow_remote: bool = False, loading: Loading | None = None, device: str = "auto") -> None:
    """Serve the interactive page: trajectories, fields and sliders, on the digits unless other data are given.

    Args:
        model: denoisers, with options after a colon (locality:threshold=0.05).
        reference: networks to compare with (zoo names, folders saved by diffusers, hub ids, checkpoint files), the
            first by default. Without --data: digits-unet.
        labels: the class that all models are conditional on, by name or number.
        guidance: weight of classifier-free guidance towards this class; by default 1, the conditional models.
        host: the address to serve on; any address but this machine's own needs --allow-remote.
        port: the port to serve on; 0 chooses a free one.
        allow_remote: accept requests from other machines that have the printed token.
        device: auto, cuda, mps or cpu.
    """
    token = check_host(host, allow_remote)
    _require_fastapi()
    import uvicorn

    from scorelens.app.jobs import Jobs
    from scorelens.app.server import create_app
    from scorelens.app.session import Session

    if images is None:
        images, reference = load_images("digits", split="train"), reference or ("digits-unet",)
    with _listening(host, port) as listener:
        towards = choose_guidance(images, labels, guidance, 1)
        networks = [(name, load_named(name, images, loading)) for name in reference]
        session = Session(images, model, networks, choose_device(device), towards)
        about = f"{images.name}, {len(images):,} images{f', {towards}' if towards else ''}"
        print(f"{about}: {address(host, listener.getsockname()[1], token)}")
        if token is not None:
            print("warning: other machines can reach this page; anyone with the address above can see the data and run "
                  "computations here")
        print("Press Ctrl+C to stop", flush=True)
        jobs = Jobs()

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                jobs.stop()  # open streams end; uvicorn would cancel them, with a traceback
                super().handle_exit(sig, frame)

        config = uvicorn.Config(create_app(session, token, jobs), log_level="warning", access_log=False,
                                server_header=False, timeout_graceful_shutdown=SHUTDOWN)
        with suppress(KeyboardInterrupt):
            Server(config).run(sockets=[listener])


def check_host(host: str, allow_remote: bool) -> str | None:
    """The token that requests must carry if other machines are allowed, or None."""
    if host not in LOOPBACK and not allow_remote:
        raise ScorelensError(f"--host {host} accepts requests from other machines; to allow them, add --allow-remote")
    return secrets.token_urlsafe(16) if allow_remote else None


def address(host: str, port: int, token: str | None) -> str:
    """The URL of the page."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ScorelensError(f"cannot serve on {host}, port {port} ({why}); choose another --port") from error


def _require_fastapi() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ScorelensError("the app needs the packages fastapi and uvicorn: pip install 'scorelens[app]'") from error
