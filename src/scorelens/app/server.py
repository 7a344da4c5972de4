"""The web server of a session: the bundled page and its four endpoints."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scorelens.app.catalog import Choice
from scorelens.app.guard import Guard
from scorelens.app.jobs import Busy, Job, Jobs
from scorelens.app.messages import Message, base64_text, internal_error
from scorelens.app.pictures import MAX_BYTES, MAX_PIXELS, read_picture
from scorelens.app.session import Session, Start
from scorelens.types import ScorelensError

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MAX_REQUEST = 2**21  # bytes of JSON; a colour picture of 512 x 512 fits
PROMPT = 1  # second in which a client reads what it is sent; then others may compute meanwhile
STALLED = 60  # seconds for a client to send its request, or to read a part of the answer
MAX_DRAINED = 2**27  # bytes of a rejected upload that are read and dropped, so that the browser receives the error


class TooLarge(ScorelensError):
    """The request body exceeds the limit."""


class ModelOptions(BaseModel):
    """A model and the values of its controls."""

    model_config = ConfigDict(extra="forbid")
    model: str
    options: dict[str, float | int | str] = {}


class CompareRequest(BaseModel):
    """Trajectories of these models, scored against the reference."""

    model_config = ConfigDict(extra="forbid")
    models: list[ModelOptions] = Field(max_length=64)
    reference: ModelOptions
    seed: int = 0
    steps: int = 10
    picture: str | None = None  # base64 of uint8 [C, H, W]

    def start(self) -> Start:
        try:
            picture = None if self.picture is None else base64.b64decode(self.picture, validate=True)
        except binascii.Error as error:
            raise ScorelensError("the picture in this URL is damaged; upload it again") from error
        return Start(self.seed, self.steps, picture)

    def choices(self, session: Session) -> tuple[list[Choice], Choice]:
        reference, *models = [session.choose(each.model, each.options) for each in (self.reference, *self.models)]
        return models, reference


class FieldsRequest(CompareRequest):
    """Sensitivity fields of these models at one pixel and one step of the reference's trajectory."""

    step: int
    pixel: tuple[int, int]


def create_app(session: Session, token: str | None = None, jobs: Jobs | None = None) -> FastAPI:
    """The application; with a token it answers under any host name, but every request must carry the token."""
    jobs = jobs or Jobs()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        jobs.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, token=token)
    _add_error_handlers(app)
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}

    @app.get("/api/session")
    async def describe() -> dict[str, Any]:
        limits = {"bytes": MAX_BYTES, "pixels": MAX_PIXELS}
        return {**session.describe(), "limits": limits, "version": version("scorelens")}

    @app.post("/api/trajectory")
    async def compare(request: Request) -> Response:
        query = CompareRequest.model_validate_json(await read_body(request, MAX_REQUEST))
        return MessageStream(jobs, session.compare(*query.choices(session), query.start()))

    @app.post("/api/fields")
    async def fields(request: Request) -> Response:
        query = FieldsRequest.model_validate_json(await read_body(request, MAX_REQUEST))
        return MessageStream(jobs, session.fields(*query.choices(session), query.start(), query.step, query.pixel))

    @app.post("/api/picture")
    async def picture(request: Request) -> dict[str, str]:
        data = await read_body(request, MAX_BYTES)
        with jobs.slot():
            pixels = await jobs.submit(read_picture, data, session.images.shape)
        return {"picture": base64_text(pixels.tobytes())}

    @app.get("/{name:path}")
    async def page(name: str) -> Response:
        path = files.get(name or "index.html")
        if path is None:
            raise HTTPException(404, f"there is nothing at /{name}")
        return Response(path.read_bytes(), media_type=TYPES[path.suffix])

    return app


class MessageStream(Response):
    """The messages of a computation, streamed as they arrive; refused if too many computations are open."""

    def __init__(self, jobs: Jobs, messages: Iterator[Message]) -> None:
        super().__init__()
        self._jobs, self._job = jobs, Job(messages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Any) -> None:
            sent = asyncio.ensure_future(send(message))
            if (await asyncio.wait({sent}, timeout=PROMPT))[0]:
                return sent.result()
            with self._jobs.waiting():
                try:
                    await asyncio.wait_for(sent, STALLED)
                except asyncio.TimeoutError as error:
                    raise OSError("the client does not read its answer") from error  # what a lost connection raises

        try:
            with self._jobs.slot(), suppress(ClientDisconnect):
                stream = StreamingResponse(self._jobs.lines(self._job), media_type="application/x-ndjson")
                await stream(scope, receive, patient)
        finally:
            self._job.cancel()


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request; never holds more than `limit` bytes, nor waits for ever."""
    try:
        return await asyncio.wait_for(_read_body(request, limit), STALLED)
    except asyncio.TimeoutError as error:
        raise HTTPException(408, f"the request took longer than {STALLED} seconds to arrive") from error


async def _read_body(request: Request, limit: int) -> bytes:
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_DRAINED:
            break
        if size <= limit:
            body += part
        else:
            body.clear()
    if size > limit:
        raise TooLarge(f"the request is too large; the limit is {limit / 2**20:.0f} MB")
    return bytes(body)


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with one line of text."""

    def answer(status: int, text: str, **headers: str) -> JSONResponse:
        return JSONResponse({"error": text}, status, headers=headers)

    app.add_exception_handler(Busy, lambda request, error: answer(
        503, "the app is busy with other computations; try again soon", **{"Retry-After": "1"}))
    app.add_exception_handler(TooLarge, lambda request, error: answer(413, str(error)))
    app.add_exception_handler(ScorelensError, lambda request, error: answer(400, str(error)))
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=400))
    app.add_exception_handler(HTTPException, lambda request, error: answer(error.status_code, str(error.detail)))
    app.add_exception_handler(ValidationError, lambda request, error: answer(422, _first_problem(error)))
    app.add_exception_handler(Exception, lambda request, error: answer(500, internal_error(error)))


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"invalid request{f' at {where}' if where else ''}: {first['msg']}"
