"""`scorelens app`: the interactive page, served on this machine."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress

from scorelens.data import ImageSet, load_images
from scorelens.distributed import choose_device
from scorelens.types import ScorelensError

SHOWN = ("optimal", "wiener", "locality:threshold=0.05", "kernel", "ls")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHUTDOWN = 2  # seconds that open computations have to end in


def app(images: ImageSet | None = None, *, model: Sequence[str] = SHOWN, reference: Sequence[str] = (),
        host: str = "127.0.0.1", port: int = 8765, allow_remote: bool = False, device: str = "auto") -> None:
    """Serve the interactive page: trajectories, fields and sliders, of the digits unless other data are given.

    Args:
        model: denoisers, with options after a colon (locality:threshold=0.05).
        reference: networks to compare with, the first of them by default: zoo names, folders saved by diffusers, hub
            ids. Without any data given: digits-unet.
        host: the address to serve on; any but this machine's own needs --allow-remote.
        port: of that address; 0 takes a free one.
        allow_remote: let other machines in, if they have the token that is printed.
        device: auto, cuda, mps or cpu.
    """
    token = check_host(host, allow_remote)
    _require_fastapi()
    import uvicorn

    from scorelens.app.server import create_app
    from scorelens.app.session import Session

    if images is None:
        images, reference = load_images("digits", split="train"), reference or ("digits-unet",)
    with _listening(host, port) as listener:
        session = Session(images, model, reference, choose_device(device))
        print(f"{images.name}, {len(images):,} images: {address(host, listener.getsockname()[1], token)}")
        if token is not None:
            print("warning: other machines can reach this page; whoever has the address above can use this machine's "
                  "processor, and see the data")
        print("Ctrl+C ends it", flush=True)
        config = uvicorn.Config(create_app(session, token), log_level="warning", access_log=False, server_header=False,
                                timeout_graceful_shutdown=SHUTDOWN)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def check_host(host: str, allow_remote: bool) -> str | None:
    """The token that requests must carry where other machines are let in; none at home."""
    if host not in LOOPBACK and not allow_remote:
        raise ScorelensError(f"--host {host} would let other machines in; if that is meant, add --allow-remote")
    return secrets.token_urlsafe(16) if allow_remote else None


def address(host: str, port: int, token: str | None) -> str:
    """What to type into a browser."""
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
