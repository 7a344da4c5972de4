"""Several processes, started by torchrun or by hand as two machines would start theirs, give what one alone gives."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed as dist

import scorelens
from scorelens import distributed
from scorelens.cli.parser import main
from scorelens.data.array_cache import shared
from scorelens.distributed import WorkerLost, World, choose_device
from scorelens.posterior.costs import Rates, measured_rates
from scorelens.posterior.softmax import State, merge_processes
from scorelens.posterior.sources import Translations, shard_of
from tests import sharing
from tests.arrays import read_arrays
from tests.once import made_once

pytestmark = pytest.mark.distributed
ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
LONG = ["sample", "--data", "digits", "--denoiser", "locality", "--num", "200", "--steps", "1000", "--out", "out"]
DIFFERENT = {"seconds", "started", "seconds_per_image", "step_seconds", "phase_seconds", "plans", "environment",
             "peak_memory_bytes"}  # from run to run


def environment(**more):
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **more}


def machines(argv, *folders):
    """A process on each of several machines, which share neither folder nor cache."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(len(folders)), "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    return [subprocess.Popen([sys.executable, *argv], cwd=folder, stderr=subprocess.PIPE, text=True, env=environment(
        RANK=str(k), GROUP_RANK=str(k), SCORELENS_CACHE=str(folder / "cache"), **common))
        for k, folder in enumerate(folders)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The folders of 1, 2 (by torchrun) and 3 processes (as three machines)."""
    return folders_in(made_once(tmp_path_factory, "sharing", make))


def folders_in(base):
    return {size: base / str(size) for size in (1, 2, 3)}


def make(base):
    folders = folders_in(base)
    pixels = np.random.default_rng(0).integers(0, 256, sharing.MANY, dtype=np.uint8)
    for folder in folders.values():
        folder.mkdir(parents=True)
        np.savez(folder / "many.npz", images=pixels)
    two = subprocess.Popen([*TORCHRUN, "2", "-m", "tests.sharing", str(folders[2]), "commands"], text=True,
                           cwd=folders[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env=environment(SCORELENS_CACHE=str(folders[2] / "cache")))
    three = machines(["-m", "tests.sharing", str(folders[3])], *(folders[3] / name for name in "abc"))
    sharing.together(folders[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folders[1])
        assert sharing.by_commands(folders[1]) == [0, 0, 0, 0]
    for process in three:
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
    out, err = two.communicate(timeout=900)
    (folders[2] / "out.txt").write_text(out)
    (folders[2] / "err.txt").write_text(err)


@pytest.mark.parametrize("size", [2, 3])
def test_every_number_is_that_of_one_process(jobs, size):
    """All denoisers, plans, gradients and statistics, of 101 images, which neither 2 nor 3 processes share evenly."""
    alone = read_arrays(jobs[1] / "numbers-0.npz")
    assert set(scorelens.DENOISERS) <= set(alone)
    for rank in range(size):
        found = read_arrays(jobs[size] / f"numbers-{rank}.npz")
        for name in alone:
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-5, atol=1e-5, err_msg=f"{name}, rank {rank}")
        for name in ("mean", "variances", "nearest image", "centre"):  # sums of integers, and the data themselves
            np.testing.assert_array_equal(found[name], alone[name], err_msg=f"{name}, rank {rank}")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell what is in memory")
@pytest.mark.parametrize("size", [2, 3])
def test_a_process_holds_its_share_of_the_images(jobs, size):
    """Of a file that is mapped into memory, after everything was fitted to all of it and averaged over all of it."""
    facts = [json.loads((jobs[size] / f"facts-{rank}.json").read_text()) for rank in range(size)]
    alone = json.loads((jobs[1] / "facts-0.json").read_text())
    image, edges = int(np.prod(sharing.MANY[1:])), 2 * 2 * 2**20  # the system reads ahead, up to 2 MB at either end
    assert sum(each["own"] for each in facts) == sharing.MANY[0] == alone["own"]
    for each in facts:
        assert each["size"] == size and each["mapped"] and each["sliced"] and each["centre"] == alone["centre"]
        assert 0 < each["held"] < each["own"] * image + edges < sharing.MANY[0] * image
    assert [each["loaded"] for each in facts] == {2: [1, 0], 3: [1, 1, 1]}[size]  # one process of each machine


def test_the_group_is_left_in_good_order(jobs):
    for size in (2, 3):
        assert all(json.loads((jobs[size] / f"facts-{k}.json").read_text())["destroyed"] for k in range(size))


def test_commands_write_what_one_process_writes_and_write_it_once(jobs):
    for command in sharing.COMMANDS:
        one, two = jobs[1] / command, jobs[2] / command
        assert files(one) == files(two), command
        for name in ("rows.jsonl", "run.json"):
            if (one / name).exists():
                compare_lines(one / name, two / name)
    one, two = (read_arrays(jobs[size] / "sample" / "images.npz") for size in (1, 2))
    np.testing.assert_allclose(two["floats"], one["floats"], rtol=0, atol=1e-5)
    assert json.loads((jobs[2] / "sample" / "run.json").read_text())["environment"]["processes"] == 2
    assert not [path for path in jobs[2].iterdir() if path.name.startswith(".")]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock")


def compare_lines(one, two):
    """JSON for JSON: the same keys, words and numbers, but for times and places."""
    read = [[json.loads(line) for line in (path.read_text().splitlines() if path.suffix == ".jsonl"
                                           else [path.read_text()])] for path in (one, two)]
    assert len(read[0]) == len(read[1])
    for a, b in zip(*read, strict=True):
        left, right = dict(leaves(a)), dict(leaves(b))
        assert list(left) == list(right)
        for key, value in left.items():
            assert right[key] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), key


def leaves(value, name=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in DIFFERENT:
                yield from leaves(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{k}]")
    else:
        yield name, value


def test_only_the_first_process_is_heard(jobs):
    out, err = ((jobs[2] / name).read_text() for name in ("out.txt", "err.txt"))
    assert out.count("3 images in") == 1 and out.count("| phase ") == 1 and out.count("compare/report.html") == 1
    assert out.count("1 cells measured, 1 failed") == out.count("failed: heldout cifar10") == 2  # run, and taken up
    assert err.count("scorelens: error: scorelens train runs in one process") == 1
    assert err.count("scorelens: error") == 1 and not (jobs[2] / "train").exists()


def test_a_killed_worker_ends_the_job_of_torchrun(tmp_path):
    job = subprocess.Popen([*TORCHRUN, "2", "-m", "--", "scorelens.cli", *LONG], cwd=tmp_path, text=True,
                           stderr=subprocess.PIPE, env=environment(SCORELENS_CACHE=str(tmp_path / "cache")))
    at_work(tmp_path, job)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    if not children.exists():
        job.terminate()
        pytest.skip("the system does not tell the children of a process")
    os.kill(int(children.read_text().split()[-1]), signal.SIGKILL)
    _, err = job.communicate(timeout=900)
    assert job.returncode not in (0, None)
    assert err.count("scorelens: error: a worker was lost") == 1
    assert not (tmp_path / "out").exists()


def test_a_killed_worker_ends_those_on_other_machines(tmp_path):
    """Where no torchrun watches it. Even if it was the first, at whose place all met."""
    first, second = machines(["-m", "scorelens.cli", *LONG], tmp_path / "a", tmp_path / "b")
    at_work(tmp_path / "a", first, second)
    first.kill()
    _, err = second.communicate(timeout=900)
    first.communicate()
    told = [line for line in err.splitlines() if line.startswith("scorelens: error")]  # torch has its own to say
    assert second.returncode == 1 and len(told) == 1 and "a worker was lost: rank 1 of 2" in told[0]


def at_work(folder, *job):
    """Wait until the statistics are fitted and the run has begun."""
    while not list((folder / "cache").rglob("*.safetensors")):
        assert all(process.poll() is None for process in job), [process.communicate() for process in job]
        time.sleep(0.05)
    time.sleep(1)


def test_machines_with_other_images_are_refused(monkeypatch, fresh_cache):
    class Machines(World):
        def once_per_node(self, make):
            return {0: make(), 1: make()}

    sets = [scorelens.ImageSet(np.full((9, 1, 4, 4), k, np.uint8), "mine") for k in range(2)]
    monkeypatch.setattr(distributed, "world", lambda: Machines(0, 2))
    with pytest.raises(scorelens.ScorelensError, match="mine: the machines hold different images"):
        shared(sets.pop)
    again = shared(lambda: scorelens.ImageSet(np.full((9, 1, 4, 4), 7, np.uint8), "mine", labels=np.arange(9)))
    assert isinstance(again.pixels, np.memmap) and again.pixels.max() == 7 and again.labels[8] == 8


def test_mapped_images_are_not_written_again(monkeypatch, fresh_cache, tmp_path):
    """The part of a file that a folder's test images are is found in it."""
    class Machine(World):
        def once_per_node(self, make):
            return {0: make()}

    np.save(tmp_path / "all.npy", np.arange(20 * 16, dtype=np.uint8).reshape(20, 1, 4, 4))
    images = scorelens.ImageSet(np.load(tmp_path / "all.npy", mmap_mode="c")[5:][2:9], "some")
    monkeypatch.setattr(distributed, "world", lambda: Machine(0, 2))
    again = shared(lambda: images)
    np.testing.assert_array_equal(again.pixels, images.pixels)
    assert Path(again.pixels.filename) == tmp_path / "all.npy" and not fresh_cache.exists()
    assert again.fingerprint == images.fingerprint == scorelens.ImageSet(again.pixels, "some").fingerprint


def test_a_process_alone_forms_no_group(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("a group was formed"))
    assert main(["sample", "--data", "digits", "--limit", "20", "--num", "1", "--steps", "2", "--out", "out"]) == 0
    monkeypatch.setenv("RANK", "0")  # of some other program
    assert distributed.launched() == World() and distributed.world() == World()


def test_shares_are_neighbours_and_nearly_equal():
    for count in (3, 4, 10, 101):
        for size in (1, 2, 3):
            shares = [World(rank, size).shard(count) for rank in range(size)]
            assert [k for share in shares for k in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


class Pair(World):
    """A world of two, whose other half is known."""

    def __init__(self, *others):
        super().__init__(0, 2)
        self.__dict__["others"] = list(others)

    def min(self, part):
        return torch.minimum(part, self.others.pop(0))

    def sum(self, part):
        return part + self.others.pop(0)


def test_states_merge_across_processes_as_across_chunks():
    """Distances up to 1000 apart at a scale of 1: the farther process has no weight, and nothing overflows."""
    mine = State(torch.tensor([[5.0]]), torch.tensor([[2.0]]), torch.tensor([[[6.0]]]))
    for gap in (-1000.0, -0.5, 0.0, 0.5, 1000.0):
        own, other = np.exp(min(gap, 0)), np.exp(-max(gap, 0))  # weights relative to the nearer of both
        team = Pair(torch.tensor([[5.0 + gap]]), torch.tensor([[other]]), torch.tensor([[[other]]]))
        state = merge_processes(mine, 1.0, team)
        assert state.mean.item() == pytest.approx((6 * own + other) / (2 * own + other))
        assert state.best.item() == 5 + min(gap, 0)


class Led(World):
    """A world in which the first process has its own idea of every number."""

    def __init__(self, number):
        super().__init__(1, 2)
        self.__dict__["number"] = number

    def broadcast(self, mine):
        return torch.full_like(mine, self.number)

    def sum(self, part):
        return part

    min = sum


def test_all_denoise_what_the_first_process_has(monkeypatch):
    """Noisy images that differ by a rounding, as a GPU may have them, must not be mixed in one softmax."""
    images = scorelens.load_images("digits", limit=20)
    stats = scorelens.fit_gaussian(images)
    monkeypatch.setattr(distributed, "group", lambda count: Led(0.25))
    for options in ({}, {"softmax": "batch-mean", "softmax_batch": 5}):
        model = scorelens.build_denoiser("locality", images.part(range(10, 20)), threshold=0.1, stats=stats, **options)
        z = torch.zeros(1, 1, 8, 8)
        torch.testing.assert_close(model(z, 1.0), model(z + 1, 1.0), rtol=0, atol=0)


def test_all_choose_their_plans_by_the_rates_of_the_first(monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: Led(3.0))
    device = torch.device("cpu")
    assert measured_rates.__wrapped__(device, torch.float32) == Rates(3.0, 3.0, 3.0, 3.0, 3.0)


def test_translations_are_divided_by_images(monkeypatch):
    """All translations of some images, not some translations of all."""
    images = scorelens.load_images("digits", limit=9)
    monkeypatch.setattr(distributed, "group", lambda count: Led(0.0))
    share = shard_of(Translations(images))
    assert len(share.source.images) == 5 and share.rows == range(5 * 64) and share.group.size == 2
    assert np.shares_memory(share.source.images.pixels, images.pixels)


def test_the_program_of_the_page_runs(capsys):
    page = (ROOT / "docs" / "distributed.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert "torch.Size([8, 1, 8, 8])" in capsys.readouterr().out


def test_silence_is_noticed(monkeypatch):
    """The first process hears nothing of the second: SIGTERM reaches it, and becomes the error."""
    monkeypatch.setattr(distributed, "BEAT", 0.02)
    monkeypatch.setattr(distributed, "SILENCE", 0.3)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(WorkerLost, match="a worker was lost"), distributed._heartbeat(World(0, 2), dist.HashStore()):
        time.sleep(600)
    assert signal.getsignal(signal.SIGTERM) == before


def test_signs_of_life_are_heard(monkeypatch):
    """By a clock that moves less than SILENCE between two signs, and far more in all."""
    now, store = [0.0], dist.HashStore()
    monkeypatch.setattr(distributed, "BEAT", 0.001)
    monkeypatch.setattr(distributed, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def beats():
        return int(store.get("alive 0")) if store.check(["alive 0"]) else 0

    def listened():
        before = beats()
        while beats() < before + 2:
            time.sleep(0.001)

    with distributed._heartbeat(World(0, 2), store):
        for sign in range(5):
            store.set("alive 1", str(sign))
            listened()
            now[0] += 0.8 * distributed.SILENCE
            listened()
    for thread in (each for each in threading.enumerate() if each.name == distributed.HEARTBEAT):
        thread.join()  # it must not read the real clock and find that much time has passed


def test_a_failed_collective_is_a_lost_worker():
    says = re.escape("a worker was lost: rank 1 of 3 waited for it (Connection closed)")
    with pytest.raises(WorkerLost, match=says), World(1, 3)._collective():
        raise RuntimeError("[/gloo/pair.cc:553] Connection closed. GLHF!\nand a long trace")


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for rank, seat in ((1, 1), (5, 1)):
        monkeypatch.setattr(distributed, "_joined", World(rank, 6, local_rank=seat))
        assert distributed.own_gpu() == torch.device("cuda", seat) and choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(distributed, "_joined", World(2, 3, local_rank=2))
    for name in ("auto", "cuda"):
        with pytest.raises(scorelens.ScorelensError, match=r"more processes than GPUs \(2\) on this node"):
            choose_device(name)
    with pytest.raises(scorelens.ScorelensError, match="not on 'mps'"):
        choose_device("mps")
