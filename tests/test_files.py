"""Output folders: reserved at the start, complete or absent at the end; leftovers of killed processes are removed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scorelens.files import FolderTaken, atomic_file, fresh_folder, release_folders, remove_leftovers, reserve_folder
from scorelens.types import ScorelensError

HOLD = """
import sys
from pathlib import Path
from scorelens.files import atomic_file, fresh_folder
with fresh_folder(Path(sys.argv[1])) as partial, atomic_file(Path(sys.argv[1]).with_name("file.txt")) as file:
    (partial / "half").write_text("x")
    print("writing", flush=True)
    sys.stdin.read()
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def writer(tmp_path):
    """Another process that is writing the folder tmp_path / "out" and the file beside it."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_two_runs_cannot_choose_the_same_folder(tmp_path, writer):
    with pytest.raises(FolderTaken, match="another run is writing"):
        reserve_folder(tmp_path / "out")
    writer.communicate("")
    assert names(tmp_path) == ["file.txt", "out"]
    with pytest.raises(FolderTaken, match="exists"):
        reserve_folder(tmp_path / "out")


@pytest.mark.slow
def test_a_killed_run_gives_its_folder_back(tmp_path, writer):
    """What it left is removed by the next run there; what a living process writes is not."""
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert len(names(tmp_path)) == 3  # the unfinished folder and file, and the lock
    with fresh_folder(tmp_path / "out") as partial:
        assert names(tmp_path) == sorted([".out.lock", partial.name])
        remove_leftovers(tmp_path)
        assert partial.exists()
    assert names(tmp_path) == ["out"]


def test_a_reservation_leaves_nothing(tmp_path):
    reserve_folder(tmp_path / "a" / "b" / "out")
    reserve_folder(tmp_path / "a" / "b" / "out")  # by the same process: as commands do, then .save
    release_folders()
    assert names(tmp_path) == []


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(ScorelensError, match=r"cannot write .*x\.json: No space left"), \
            atomic_file(tmp_path / "x.json"):
        raise OSError(28, "No space left on device")
    with pytest.raises(ScorelensError, match=r"cannot write .*out: a.png: No space left.*--out"), \
            fresh_folder(tmp_path / "out") as partial:
        raise OSError(28, "No space left on device", str(partial / "a.png"))
    assert names(tmp_path) == []


def test_other_errors_pass(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "x.json"):
        Path("/nowhere/data.bin").read_bytes()


def test_long_names_can_be_written(tmp_path):
    name = "x" * 250 + ".txt"
    with atomic_file(tmp_path / name) as temporary:
        temporary.write_text("x")
    with fresh_folder(tmp_path / ("y" * 255)):
        pass
    assert names(tmp_path) == [name, "y" * 255]
