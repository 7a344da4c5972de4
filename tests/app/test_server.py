"""The app over real connections: nothing lost, strangers refused, errors as sentences, nobody's leaving does harm."""

import asyncio
import http.client
import io
import json
import os
import re
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="needs the extra app: pip install 'scorelens[app]'")

import uvicorn

import scorelens
from scorelens import ScorelensError
from scorelens.app import server
from scorelens.app.jobs import Jobs
from scorelens.app.messages import Stage
from scorelens.app.server import PAGE, MessageStream
from scorelens.app.session import Session
from scorelens.cli.app import address, app, check_host
from tests.app.serving import Slow, ask, lines, serving, until

pytestmark = pytest.mark.e2e
WALK = {"models": [{"model": "locality", "options": {"threshold": 0.1}}, {"model": "wiener"}],
        "reference": {"model": "optimal"}, "steps": 5}
STATM = Path("/proc/self/statm")


@pytest.fixture(scope="module")
def images():
    return scorelens.load_images("digits", split="train", limit=300)


@pytest.fixture(scope="module")
def session(images):
    return Session(images, ["optimal", "wiener", "locality:threshold=0.05"])


@pytest.fixture(scope="module")
def port(session):
    with serving(session) as port:
        yield port


def error_of(answer, status):
    """The sentence of a refusal."""
    assert answer[0] == status and b"Traceback" not in answer[1]
    return json.loads(answer[1])["error"]


def test_a_walk_comes_line_by_line(port):
    status, body, _ = ask(port, "POST", "/api/trajectory", WALK)
    kinds = [(line["kind"], line.get("model")) for line in lines(body) if line["kind"] != "stage"]
    assert status == 200
    assert kinds == [("prediction", "locality")] * 5 + [("nearest", "locality")] + [("prediction", "wiener")] * 5 + [
        ("nearest", "wiener")]


def test_fields_come_line_by_line(port):
    status, body, _ = ask(port, "POST", "/api/fields", {**WALK, "step": 3, "pixel": [4, 4]})
    assert status == 200
    assert [line["model"] for line in lines(body) if line["kind"] == "field"] == [None, "locality"]


def test_the_page_comes_from_here_alone(port):
    """It names no other address, and the browser is told to load from none."""
    assert ask(port, "GET", "/")[1] == (PAGE / "index.html").read_bytes()
    for path in PAGE.iterdir():
        status, body, headers = ask(port, "GET", f"/{path.name}")
        assert status == 200 and body == path.read_bytes()
        assert "default-src 'self';" in headers["content-security-policy"]
        assert headers["content-type"].split(";")[0] in ("text/html", "text/css", "text/javascript", "image/svg+xml")
        named = re.sub(rb'xmlns="http://www.w3.org/2000/svg"', b"", body)
        assert not re.search(rb"(https?:)?//[a-z]+[.][a-z]|@import|url\(", named), path


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/page", "/docs", "/openapi.json", "/api/x"])
def test_nothing_else_is_served(port, path):
    assert "nothing at" in error_of(ask(port, "GET", path), 404)


@pytest.mark.parametrize(("question", "status", "says"), [
    (b"no json", 422, "invalid request"),
    ({"models": []}, 422, "at reference"),
    ({**WALK, "seed": "many"}, 422, "at seed"),
    ({**WALK, "surprise": 1}, 422, "at surprise"),
    ({**WALK, "seed": 10**30}, 400, "seed"),
    ({**WALK, "steps": 10**9}, 400, "number of steps"),
    ({**WALK, "models": [{"model": "wiener"}] * 65}, 422, "at models"),
    ({**WALK, "reference": {"model": "/etc/passwd"}}, 400, "unknown model"),
    ({**WALK, "picture": "!"}, 400, "damaged"),
    (b" " * (2**21 + 1), 413, "too large"),
])
def test_a_bad_question_is_answered_in_a_sentence(port, question, status, says):
    assert says in error_of(ask(port, "POST", "/api/trajectory", question), status)


def test_what_goes_wrong_on_the_way_is_a_line(port):
    """The answer has begun by then: its status cannot tell any more."""
    (line,) = lines(ask(port, "POST", "/api/fields", {**WALK, "step": 9, "pixel": [0, 0]})[1])
    assert line["kind"] == "failure" and "no step 10" in line["error"]
    body = ask(port, "POST", "/api/trajectory", {**WALK, "picture": "AAAA"})[1]
    assert {line["error"] for line in lines(body) if line["kind"] == "failure"} == {
        "the picture has 3 bytes, but the images here have 64; upload it again"}


def test_uploads(port):
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), (255, 255, 255)).save(stream, "PNG")
    status, body, _ = ask(port, "POST", "/api/picture", stream.getvalue())
    assert status == 200
    picture = json.loads(body)["picture"]
    status, body, _ = ask(port, "POST", "/api/trajectory", {**WALK, "picture": picture})
    assert [line["picture_mse"] >= 0 for line in lines(body) if line["kind"] == "prediction"] == [True] * 10


@pytest.mark.parametrize(("data", "status", "says"), [
    (bytes(50 * 2**20), 413, "the limit is 5 MB"),
    (b"a text of some kind", 400, "not a PNG, JPEG or WebP picture"),
    (b"", 400, "not a PNG, JPEG or WebP picture"),
], ids=["50 MB", "text", "nothing"])
def test_uploads_that_are_refused(port, data, status, says):
    assert says in error_of(ask(port, "POST", "/api/picture", data), status)


def test_a_large_upload_is_not_held(port):
    """50 MB without a length, in pieces: what has been read so far is dropped as soon as it is too much."""
    before = _memory()
    piece = bytes(2**20)
    status, body, _ = ask(port, "POST", "/api/picture", iter([piece] * 50))
    assert status == 413 and _memory() - before < 30 * 2**20, body


@pytest.mark.parametrize(("headers", "says"), [
    ({"Host": "rebound.example:8765"}, "only answers at 127.0.0.1 or localhost"),
    ({"Host": "127.0.0.1.example"}, "only answers at 127.0.0.1 or localhost"),
    ({"Host": "[::1"}, None),
    ({"Origin": "http://elsewhere.example"}, "only answers its own page"),
    ({"Origin": "null"}, "only answers its own page"),
])
def test_other_sites_are_refused(port, headers, says):
    answer = ask(port, "GET", "/api/session", **headers)
    if says is None:
        assert answer[0] == 200  # a broken name of this machine is still this machine's
    else:
        assert says in error_of(answer, 403)


def test_its_own_page_is_let_in(port):
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost:9000", "[::1]:80"):
        assert ask(port, "GET", "/api/session", Host=host, Origin=f"http://{host}")[0] == 200


def test_a_token_lets_in_under_any_name_and_nobody_else(session):
    with serving(session, token="geheim") as port:
        for path in ("/", "/api/session", "/?token=", "/api/session?token=%C3%A9", "/api/session?token=geheim2"):
            status, body, _ = ask(port, "GET", path, Host="lab.example")
            assert status == 401 and b"needs the token" in body
        for path in ("/?token=geheim", "/app.js", "/api/session?token=geheim"):
            assert ask(port, "GET", path, Host="lab.example")[0] == 200
        assert ask(port, "POST", "/api/trajectory", WALK)[0] == 401


def test_fifty_parallel_requests(session, monkeypatch):
    """None is lost, no more of them compute at a time than there are workers, and memory stays."""
    slow = Slow(0.002)
    monkeypatch.setattr(session, "denoiser", lambda one: slow)
    jobs = Jobs(workers=2)
    with serving(session, jobs=jobs) as port, ThreadPoolExecutor(50) as clients:
        before = _memory()
        asked = [{**WALK, "models": WALK["models"][:1], "seed": 100 + k} for k in range(50)]
        answers = list(clients.map(lambda question: ask(port, "POST", "/api/trajectory", question), asked))
        assert _memory() - before < 100 * 2**20
    assert [status for status, _, _ in answers] == [200] * 50
    for _, body, _ in answers:
        assert [line["kind"] for line in lines(body) if line["kind"] != "stage"] == ["prediction"] * 5 + ["nearest"]
    assert len({body for _, body, _ in answers}) == 50  # to each his own noise
    assert slow.most == 2 and jobs._open == 0


def test_too_many_are_told_to_come_back(session, monkeypatch):
    slow = Slow(600.0)
    monkeypatch.setattr(session, "denoiser", lambda one: slow)
    with serving(session, jobs=Jobs(workers=1, limit=1)) as port:
        first = threading.Thread(target=ask, args=(port, "POST", "/api/trajectory", {**WALK, "seed": 200}))
        first.start()
        until(lambda: slow.active)
        answer = ask(port, "POST", "/api/trajectory", {**WALK, "seed": 201})
        assert "busy" in error_of(answer, 503) and answer[2]["retry-after"] == "1"
        assert "busy" in error_of(ask(port, "POST", "/api/picture", b"x"), 503)
        slow.seconds = 0
        first.join()
        assert ask(port, "POST", "/api/trajectory", {**WALK, "seed": 201})[0] == 200


def test_a_closed_tab_ends_its_computation_in_mid_step(session, monkeypatch):
    slow, jobs = Slow(600.0), Jobs()
    monkeypatch.setattr(session, "denoiser", lambda one: slow)
    with serving(session, jobs=jobs) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", "/api/trajectory", json.dumps({**WALK, "seed": 300}))
        answer = connection.getresponse()
        done = 0.0
        while not 0 < done < 1:  # it tells how far the first step is
            done = json.loads(answer.readline())["done"]
        answer.close()
        connection.close()
        until(lambda: not slow.active and jobs._open == 0)
        assert slow.finished == 0
        slow.seconds = 0
        assert ask(port, "POST", "/api/trajectory", {**WALK, "seed": 301})[0] == 200  # the others are not harmed


def test_an_upload_that_never_ends_blocks_nobody(session):
    with serving(session, jobs=Jobs(limit=1)) as port, socket.create_connection(("127.0.0.1", port)) as upload:
        upload.sendall(b"POST /api/picture HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n123")
        assert ask(port, "POST", "/api/trajectory", {**WALK, "seed": 400})[0] == 200


def test_a_reader_that_never_reads_blocks_nobody(monkeypatch):
    """Another is let in meanwhile; in the end the stream is given up."""
    monkeypatch.setattr(server, "PROMPT", 0.01)
    monkeypatch.setattr(server, "STALLED", 0.5)
    jobs = Jobs(limit=1)

    async def stalled():
        asked, never = asyncio.Event(), asyncio.Event()

        async def send(message):
            asked.set()
            await never.wait()

        stream = MessageStream(jobs, iter([Stage("", 0, 1)]))
        first = asyncio.ensure_future(stream({"type": "http", "asgi": {"spec_version": "2.4"}}, never.wait, send))
        await asked.wait()
        assert jobs._open == 1
        while jobs._open:
            await asyncio.sleep(0.001)
        assert not first.done()
        with jobs.slot():
            await first

    asyncio.run(stalled())
    assert jobs._open == 0


def test_streams_end_when_the_app_stops(session, monkeypatch):
    """Without waiting for the step that is being computed."""
    slow, jobs, answers = Slow(600.0), Jobs(), []
    monkeypatch.setattr(session, "denoiser", lambda one: slow)
    with serving(session, jobs=jobs) as port:
        asked = {**WALK, "seed": 500}
        client = threading.Thread(target=lambda: answers.append(ask(port, "POST", "/api/trajectory", asked)))
        client.start()
        until(lambda: slow.active)
        jobs.stop()
        client.join()
    assert answers[0][0] == 200 and slow.finished == 0


def test_only_this_machine_unless_asked():
    assert check_host("127.0.0.1", False) is None and check_host("localhost", False) is None
    with pytest.raises(ScorelensError, match="--allow-remote"):
        check_host("0.0.0.0", False)
    tokens = {check_host("0.0.0.0", True), check_host("0.0.0.0", True)}
    assert len(tokens) == 2 and min(map(len, tokens)) >= 20
    assert address("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert address("::1", 80, "x") == "http://[::1]:80/?token=x"


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ScorelensError, match="choose another --port"):
        app(port=taken.getsockname()[1])


def test_the_command_serves_until_it_is_interrupted(images, capsys, tmp_path, monkeypatch):
    def run(server, sockets):
        """What uvicorn does, in a thread: ask once, and then press Ctrl+C."""
        thread = threading.Thread(target=lambda: uvicorn_run(server, sockets))
        thread.start()
        until(lambda: server.started)
        port, token = re.search(r":(\d+)/\?token=(.+)\n", printed := capsys.readouterr().out).groups()
        answers.append(ask(int(port), "GET", f"/api/session?token={token}", Host="lab.example"))
        said.append(printed)
        server.should_exit = True
        thread.join()
        raise KeyboardInterrupt

    answers, said, uvicorn_run = [], [], uvicorn.Server.run
    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.chdir(tmp_path)
    app(images, model=["wiener"], host="0.0.0.0", port=0, allow_remote=True)
    assert said[0].startswith("digits, 300 images: http://") and "warning: other machines" in said[0]
    assert json.loads(answers[0][1])["data"]["count"] == 300
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_without_its_packages_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(ScorelensError, match=r"pip install 'scorelens\[app\]'"):
        app()


def _memory() -> int:
    """Bytes of memory in use, where the system tells."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATM.exists() else 0
