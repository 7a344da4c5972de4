"""Access control: requests must come from the app's own page, to a loopback host name or with the token."""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
                               "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the URL contains the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware that rejects requests of other sites and sets security headers on every response.

    Without a token, the Host header must be a loopback name, which stops DNS rebinding.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self.app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        path, host, origin = request.url.path, request.headers.get("host", ""), request.headers.get("origin")
        if self.token is None and _hostname(host) not in LOOPBACK:
            return _error(path, 403, f"this app only answers at {' or '.join(LOOPBACK[:2])}, not at {host!r}")
        if origin is not None and origin.partition("://")[2] != host:
            return _error(path, 403, "this app only answers its own page")
        is_private = path == "/" or path.startswith("/api/")  # scripts and styles are public
        given = request.query_params.get("token", "")
        if self.token is not None and is_private and not secrets.compare_digest(given.encode(), self.token.encode()):
            return _error(path, 401, "this address needs the token that `scorelens app` printed when it started")
        return None


def _hostname(host: str) -> str:
    """The host without its port; IPv6 addresses are in brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _error(path: str, status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status) if path.startswith("/api/") else PlainTextResponse(text, status)
