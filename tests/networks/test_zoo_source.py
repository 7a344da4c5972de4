"""Networks by name from a folder, a web server and a mirror of the hub; damaged, cut and hostile sources."""

import base64
import functools
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler
from tools.zoo import zoo_index

from scorelens import load_network, seeded_noise, zoo_names
from scorelens.cli.parser import main
from scorelens.networks import zoo, zoo_source
from scorelens.networks.zoo_source import INDEX, PACKAGED, complete, known_networks, pull, push
from scorelens.types import ScorelensError
from tests.networks.makers import save_pipeline, tiny_unet

WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
pytestmark = pytest.mark.usefixtures("fresh_cache")


class Server(ThreadingHTTPServer):
    """Serves a folder, and speaks the part of the hub's protocol that a commit of small files needs."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.folder, self.asked = folder, []  # (path, range) of every GET
        self.ranges, self.cut = True, None  # whether it honours Range; bytes of a file after which it hangs up
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def _file(self) -> Path:
        return self.server.folder / self.path.lstrip("/").replace("/resolve/main/", "/")

    def do_HEAD(self) -> None:
        found = self._file().is_file()
        self.send_response(200 if found else 404)
        self.send_header("X-Repo-Commit", "0" * 40)
        if found:
            self.send_header("ETag", '"tag"')
            self.send_header("Content-Length", str(self._file().stat().st_size))
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()

    def do_GET(self) -> None:
        first = int((self.headers["Range"] or "bytes=0-").split("=")[1].rstrip("-")) if self.server.ranges else 0
        self.server.asked.append((self.path.lstrip("/"), self.headers["Range"]))
        if not self._file().is_file():
            self.send_error(404)
            return
        content = self._file().read_bytes()
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first:first + self.server.cut] if self.server.cut else content[first:])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/preupload/main"):
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for file in json.loads(body)["files"]]
            self._answer({"files": files})
            return
        if "/commit/" in self.path:
            repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    path = self.server.folder / repository / line["value"]["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(base64.b64decode(line["value"]["content"]))
        url = f"{self.server.address}/me/my-zoo"
        self._answer({"url": url, "commitUrl": f"{url}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True})

    def _answer(self, content: dict) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    with Server(tmp_path / "served") as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder as a training leaves it, with files that are nobody else's."""
    folder = save_pipeline(tmp_path / "tiny-unet", tiny_unet(), DDPMScheduler())
    (folder / "card.json").write_text(json.dumps({"data": {"name": "dots", "shape": [1, 8, 8]}, "parameters": 9}))
    (folder / "README.md").write_text("# tiny-unet")
    (folder / "training.json").write_text("{}")
    (folder / "checkpoint.safetensors.tmp").write_text("")
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / "x.safetensors").write_text("")
    return folder


def same_network(folder: Path, trained: Path) -> None:
    z = seeded_noise((1, 8, 8), [0])
    assert torch.equal(load_network(folder)(z, 1.0), load_network(trained)(z, 1.0))


def test_a_network_is_published_in_a_folder_and_fetched_from_a_server(server, trained, monkeypatch):
    """By name alone, once the source is set; and without the server from then on."""
    push(trained, str(server.folder))
    assert not (server.folder / "tiny-unet" / "snapshots").exists()
    assert not (server.folder / "tiny-unet" / "training.json").exists()
    monkeypatch.setenv("SCORELENS_ZOO_SOURCE", server.address)
    assert "tiny-unet" not in zoo_names()
    z = seeded_noise((1, 8, 8), [0])
    assert torch.equal(load_network("tiny-unet")(z, 1.0), load_network(trained)(z, 1.0))
    server.asked.clear()
    assert "tiny-unet" in zoo_names()
    load_network("tiny-unet")
    assert server.asked == []


@pytest.mark.parametrize("ranges", [True, False], ids=["with ranges", "without"])
def test_a_cut_download_is_resumed(server, trained, ranges):
    """The second try asks for the missing bytes only, and for no file that is complete."""
    push(trained, str(server.folder))
    size = (trained / WEIGHTS).stat().st_size
    server.cut, server.ranges = size // 2, ranges
    with pytest.raises(ScorelensError, match="the same command resumes it"):
        pull("tiny-unet", server.address)
    server.cut = None
    server.asked.clear()
    folder = pull("tiny-unet", server.address)
    assert [path for path, _ in server.asked] == [INDEX, f"tiny-unet/{WEIGHTS}"]
    assert server.asked[-1][1] == f"bytes={size // 2}-"
    same_network(folder, trained)


def test_a_damaged_file_is_refused_and_fetched_again(server, trained):
    push(trained, str(server.folder))
    served = server.folder / "tiny-unet" / WEIGHTS
    good = served.read_bytes()
    served.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ScorelensError, match="checksum differs"):
        pull("tiny-unet", server.address)
    served.write_bytes(good)
    same_network(pull("tiny-unet", server.address), trained)


def test_offline_a_folder_is_a_source_and_the_error_says_so(trained, tmp_path):
    with pytest.raises(ScorelensError, match=r"cannot fetch index.json .*without a connection, copy .*SCORELENS_ZOO"):
        pull("tiny-unet", "http://127.0.0.1:9")
    push(trained, str(tmp_path / "stick"))
    same_network(pull("tiny-unet", str(tmp_path / "stick")), trained)
    carried = pull("tiny-unet", str(tmp_path / "stick"), tmp_path / "carried")
    assert carried == tmp_path / "carried" / "tiny-unet" and pull(
        "tiny-unet", str(tmp_path / "stick"), tmp_path / "carried") == carried
    (carried / "README.md").write_text("edited")
    with pytest.raises(ScorelensError, match="holds other files"):
        pull("tiny-unet", str(tmp_path / "stick"), tmp_path / "carried")


def test_push_and_pull_through_a_mirror_of_the_hub(server, trained, tmp_path, monkeypatch, capsys):
    """With huggingface_hub's own client: two pushes, one index."""
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_test")
    monkeypatch.chdir(tmp_path)
    for name in ("tiny-unet", "second"):
        assert main(["zoo", "push", str(trained), "--to", "me/my-zoo", "--name", name]) == 0
    assert set(known_networks("me/my-zoo", refresh=True)) == {"tiny-unet", "second"}
    assert main(["zoo", "pull", "second", "--source", "me/my-zoo", "--out", "fetched"]) == 0
    same_network(tmp_path / "fetched" / "second", trained)
    assert main(["zoo", "list", "--source", "me/my-zoo"]) == 0
    assert "dots 1 x 8 x 8" in capsys.readouterr().out


def test_names_are_known_without_a_connection(monkeypatch):
    """An installed package has no zoo/ beside it: its index answers misspelt names, its source real ones."""
    monkeypatch.setattr(zoo, "PACKAGE", Path("/nowhere/src/scorelens"))
    with pytest.raises(ScorelensError, match="did you mean 'mnist-unet'"):
        load_network("mnist-unett")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ScorelensError, match="cannot fetch mnist-unet/README.md from scorelens/zoo"):
        load_network("mnist-unet")
    assert main(["zoo", "list"]) == 0


@pytest.mark.parametrize("path", ["../../evil.json", "/etc/evil.json", "unet\\evil.json", "evil.bin"])
def test_a_source_cannot_write_outside_its_folder(tmp_path, path):
    source = tmp_path / "source"
    source.mkdir()
    entry = {"data": "", "shape": [], "parameters": 0, "files": {path: {"bytes": 1, "sha256": ""}}}
    (source / INDEX).write_text(json.dumps({"evil": entry}))
    with pytest.raises(ScorelensError, match="not an index of networks: it names"):
        pull("evil", str(source))


@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1}', '{"a": {"files": {"x.json": {}}}}'])
def test_a_damaged_index_is_one_line(tmp_path, content):
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(ScorelensError, match="not an index of networks"):
        pull("a", str(tmp_path))


def test_only_trained_networks_are_published(tmp_path, trained):
    (trained / "card.json").unlink()
    with pytest.raises(ScorelensError, match="has no card.json"):
        push(trained, str(tmp_path / "there"))
    with pytest.raises(ScorelensError, match="not a network saved by diffusers"):
        push(tmp_path / "nothing", str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


@pytest.mark.docs
def test_the_packaged_index_describes_the_zoo():
    assert json.loads(PACKAGED.read_text()) == zoo_index(), "run python -m tools.pages"
    for name, entry in known_networks(zoo_source.SOURCE).items():
        assert complete(zoo.PACKAGE.parents[1] / "zoo" / name, entry)
