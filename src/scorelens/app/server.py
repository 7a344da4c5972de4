"""The web side of a session: the bundled page, and four addresses that it asks."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scorelens.app.guard import Guard
from scorelens.app.jobs import Busy, Job, Jobs
from scorelens.app.messages import Message, base64_text
from scorelens.app.offers import Chosen
from scorelens.app.pictures import MOST_BYTES, MOST_PIXELS, read_picture
from scorelens.app.session import Session, Start
from scorelens.types import ScorelensError

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MOST_TEXT = 2**21  # bytes of a question; a picture of 512 x 512 in colour fits
DRAINED = 2**27  # bytes of a refused upload that are read and dropped, so that the browser hears why


class TooLarge(ScorelensError):
    """More bytes than are taken."""


class Pick(BaseModel):
    """A model and its controls."""

    model_config = ConfigDict(extra="forbid")
    model: str
    options: dict[str, float | int | str] = {}


class Walk(BaseModel):
    """What these models do beside the reference."""

    model_config = ConfigDict(extra="forbid")
    models: list[Pick] = Field(max_length=64)
    reference: Pick
    seed: int = 0
    steps: int = 10
    picture: str | None = None  # base64 of uint8 [C, H, W]

    def start(self) -> Start:
        return Start(self.seed, self.steps, None if self.picture is None else _bytes_of(self.picture))

    def chosen(self, session: Session) -> tuple[list[Chosen], Chosen]:
        first, *others = [session.choose(pick.model, pick.options) for pick in (self.reference, *self.models)]
        return others, first


class Point(Walk):
    """Where these models look, at one pixel and noise level of the reference's path."""

    step: int
    pixel: tuple[int, int]


def create_app(session: Session, token: str | None = None, jobs: Jobs | None = None) -> FastAPI:
    """The application; with a token it answers to any host name, but only to who has it."""
    jobs = jobs or Jobs()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        jobs.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, token=token)
    _explain_errors(app)
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}

    @app.get("/api/session")
    async def describe() -> dict[str, Any]:
        limits = {"bytes": MOST_BYTES, "pixels": MOST_PIXELS}
        return {**session.describe(), "limits": limits, "version": version("scorelens")}

    @app.post("/api/walk")
    async def walk(request: Request) -> Response:
        asked = Walk.model_validate_json(await body_of(request, MOST_TEXT))
        return Lines(jobs, session.compared(*asked.chosen(session), asked.start()))

    @app.post("/api/fields")
    async def fields(request: Request) -> Response:
        asked = Point.model_validate_json(await body_of(request, MOST_TEXT))
        return Lines(jobs, session.fields(*asked.chosen(session), asked.start(), asked.step, asked.pixel))

    @app.post("/api/picture")
    async def picture(request: Request) -> dict[str, str]:
        with jobs.place():
            data = await body_of(request, MOST_BYTES)
            pixels = await jobs.run(read_picture, data, session.images.shape)
        return {"picture": base64_text(pixels.tobytes())}

    @app.get("/{name:path}")
    async def page(name: str) -> Response:
        path = files.get(name or "index.html")
        if path is None:
            raise HTTPException(404, f"there is nothing at /{name}")
        return Response(path.read_bytes(), media_type=TYPES[path.suffix])

    return app


class Lines(Response):
    """The lines of a computation as they come; refused if too many are open."""

    def __init__(self, jobs: Jobs, messages: Iterator[Message]) -> None:
        super().__init__()
        self._jobs, self._job = jobs, Job(messages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._jobs.place():
                lines = StreamingResponse(self._jobs.lines(self._job), media_type="application/x-ndjson")
                await lines(scope, receive, send)
        except Busy:
            await _busy()(scope, receive, send)
        finally:
            self._job.cancel()


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request, of which no more than `most` bytes are ever held."""
    kept, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size > DRAINED:
            break
        if size <= most:
            kept += part
        else:
            kept.clear()
    if size > most:
        raise TooLarge(f"this is too large: more than {most / 2**20:.0f} MB are not taken")
    return bytes(kept)


def _explain_errors(app: FastAPI) -> None:
    """Every error is a sentence."""

    def say(status: int, sentence: str) -> JSONResponse:
        return JSONResponse({"error": sentence}, status)

    app.add_exception_handler(Busy, lambda request, error: _busy())
    app.add_exception_handler(TooLarge, lambda request, error: say(413, str(error)))
    app.add_exception_handler(ScorelensError, lambda request, error: say(400, str(error)))
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=400))
    app.add_exception_handler(HTTPException, lambda request, error: say(error.status_code, str(error.detail)))
    app.add_exception_handler(ValidationError, lambda request, error: say(422, _told(error)))
    app.add_exception_handler(Exception, lambda request, error: say(
        500, f"the app made a mistake ({type(error).__name__}); the terminal it runs in tells more"))


def _told(error: ValidationError) -> str:
    """The first thing that is wrong with a question."""
    (first, *_) = error.errors()
    where = ".".join(map(str, first["loc"]))
    return f"the question cannot be read{f' at {where}' if where else ''}: {first['msg']}"


def _busy() -> JSONResponse:
    return JSONResponse({"error": "the app is busy with other computations; it will be free again soon"}, 503,
                        headers={"Retry-After": "1"})


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ScorelensError("the picture in this address is damaged") from error
