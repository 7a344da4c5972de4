"""Who may ask: pages of this app alone, under this machine's own name, or whoever has the token."""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_NAMES = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
                               "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses strangers with one sentence, and tells the browser to load nothing from elsewhere.

    Without a token, only requests to this machine's own names are answered: another site whose name was made to point
    here (DNS rebinding) gets nothing.
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
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self.token is None and _name(host) not in OWN_NAMES:
            return _refused(request, 403, f"this app answers to {' and '.join(OWN_NAMES[:2])} alone, not to {host!r}")
        if origin is not None and origin.partition("://")[2] != host:
            return _refused(request, 403, "this app answers to its own page alone")
        given = request.query_params.get("token", "")
        if self.token is not None and _private(request) and not _same(given, self.token):
            return _refused(request, 401, "this address needs the token that `scorelens app` printed when it started")
        return None


def _name(host: str) -> str:
    """The host without its port; an address of IPv6 stands in brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _private(request: Request) -> bool:
    """The page and what it asks for; its script and style are the same everywhere."""
    return request.url.path == "/" or request.url.path.startswith("/api/")


def _refused(request: Request, status: int, sentence: str) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": sentence}, status)
    return PlainTextResponse(sentence, status)
