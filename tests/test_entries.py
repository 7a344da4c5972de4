"""Cache entries: a damaged one is set aside and computed again, and never changes a number."""

import os
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import scorelens
from scorelens import entries
from scorelens.cli.parser import main
from scorelens.data import leaves
from scorelens.data.leaves import dead_leaves
from scorelens.files import HOST
from scorelens.statistics.cache import cached
from tests.data.writers import write_image


def flip(content):
    """One bit, in the middle."""
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


DAMAGE = {"a flipped bit": flip, "truncated": lambda content: content[:-7], "empty": lambda content: b"",
          "longer": lambda content: content + b"x", "other bytes": lambda content: os.urandom(len(content))}


@pytest.fixture(params=list(DAMAGE))
def damage(request):
    """Damages every file of a cache, as a disk would: a process that verified them before has forgotten it."""
    def work(folder):
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:
            path.write_bytes(DAMAGE[request.param](path.read_bytes()))
        entries._verified.clear()
        return files

    return work


def test_statistics_are_fitted_again(fresh_cache, damage):
    expected = {"a": torch.arange(100.0), "b": torch.eye(3)}
    assert cached("kind", [1], lambda: expected) is expected
    damage(fresh_cache)
    with pytest.warns(UserWarning, match=r"kind.*is damaged .*computed again"):
        again = cached("kind", [1], lambda: {"a": torch.zeros(1)})
    assert set(again) == {"a"}
    assert torch.equal(cached("kind", [1], pytest.fail)["a"], torch.zeros(1))
    assert len(list(fresh_cache.rglob("*.damaged"))) == 1


def test_images_are_decoded_again(tmp_path, fresh_cache, damage):
    for k in range(4):
        write_image(tmp_path / "images" / f"{k}.png", np.full((5, 6), 10 * k, np.uint8))
    source = f"folder:{tmp_path / 'images'}"
    expected = scorelens.load_images(source, split="all").pixels.copy()
    damaged = damage(fresh_cache)
    with pytest.warns(UserWarning, match="is damaged"):
        np.testing.assert_array_equal(scorelens.load_images(source, split="all").pixels, expected)
    assert len(damaged) == 2 and len(list(fresh_cache.rglob("*.damaged"))) == 2  # pixels and notes


def test_leaves_are_rendered_again(fresh_cache, damage, monkeypatch):
    monkeypatch.setattr(leaves, "CACHED_FROM", 3)
    expected = dead_leaves(4, (8, 8)).copy()
    damage(fresh_cache)
    with pytest.warns(UserWarning, match="is damaged"):
        again = dead_leaves(4, (8, 8))
    np.testing.assert_array_equal(again, expected)
    assert isinstance(again, np.memmap)


def test_an_entry_is_read_once_per_process(fresh_cache, monkeypatch):
    cached("kind", [1], lambda: {"a": torch.zeros(3)})
    reads = []
    monkeypatch.setattr(entries, "_checksum", lambda file, plain=entries._checksum: reads.append(file) or plain(file))
    for _ in range(3):
        cached("kind", [1], pytest.fail)
    assert len(reads) == 1


def test_a_full_disk_costs_only_the_cache(fresh_cache, monkeypatch):
    """safetensors' own error and the operating system's."""
    from safetensors import SafetensorError

    for error in SafetensorError("I/O error: No space left on device (os error 28)"), OSError(28, "No space left"):
        monkeypatch.setattr("scorelens.statistics.cache.save_file", lambda *given, e=error: (_ for _ in ()).throw(e))
        with pytest.warns(UserWarning, match=r"cannot write .*kind.*No space left.*not cached"):
            assert cached("kind", [1], lambda: {"a": torch.ones(1)})["a"] == 1
        assert not list((fresh_cache / "kind").iterdir())


def test_names_carry_the_checksum(fresh_cache):
    cached("kind", [1], lambda: {"a": torch.ones(2)})
    (file,) = (fresh_cache / "kind").iterdir()
    content = file.read_bytes()
    assert file.name.split(".")[1] == f"{len(content)}-{zlib.crc32(content):08x}" and load_file(file)["a"].sum() == 2


def test_the_cache_is_listed_and_cleared(fresh_cache, capsys):
    cached("gaussian", [1], lambda: {"a": torch.ones(2)})
    (fresh_cache / "gaussian" / "old.safetensors").write_bytes(b"123")
    (fresh_cache / "gaussian" / f".x.{HOST}-999999999.abc.npy").write_bytes(b"1")
    (fresh_cache / "zoo" / "network").mkdir(parents=True)  # not an entry: kept, unless everything is cleared
    (fresh_cache / "zoo" / "network" / "weights").write_bytes(b"12345")
    assert main(["cache", "list"]) == 0
    assert [word.strip() for word in capsys.readouterr().out.splitlines()[-2].split("|")[1:3]] == ["gaussian", "3"]
    assert main(["cache", "clear", "--damaged"]) == 0
    assert "removed 2 files" in capsys.readouterr().out and len(list((fresh_cache / "gaussian").iterdir())) == 1
    assert main(["cache", "clear", "--older-than", "1"]) == 0 and "removed 0" in capsys.readouterr().out
    assert main(["cache", "clear", "--kind", "gausian"]) == 2 and "did you mean 'gaussian'" in capsys.readouterr().err
    assert main(["cache", "clear"]) == 0 and not (fresh_cache / "zoo" / "network").exists()
    assert "removed 2 files" in capsys.readouterr().out
    cached("gaussian", [1], lambda: {"a": torch.ones(2)})

