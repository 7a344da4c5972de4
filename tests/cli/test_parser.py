"""The command line: one clear line and exit code 2 for every mistake, and nothing half-written."""

import contextlib
import io
import json
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from scorelens import build_denoiser, load_images
from scorelens.cli.parser import main
from scorelens.cli.sample import phase_table
from scorelens.data.images import to_uint8
from scorelens.denoisers.locality import Locality
from scorelens.denoisers.wiener import Wiener
from scorelens.noise import seeded_noise
from scorelens.results import read_rows
from tests.arrays import read_arrays


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fails(capsys, *argv):
    """The one line on stderr of a call that must end with 2 and leave no file of its own behind."""
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("scorelens: error: ")
    assert out == ""
    return lines[0]


def png(path, size=(8, 8), seed=0):
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)).save(path)


@pytest.mark.parametrize(("argv", "says"), [
    (["sampel"], "did you mean 'sample'"),
    (["data"], "list or info or spectra"),
    (["sample"], "--data"),
    (["sample", "--data", "dgits"], "did you mean 'digits'"),
    (["sample", "--data", "digits", "--denoiser", "weiner"], "did you mean 'wiener'"),
    (["sample", "--data", "digits", "--denoiser=weiner"], "did you mean 'wiener'"),
    (["sample", "--data", "digits", "--denoiser.treshold", "0.1"], "did you mean '--denoiser.threshold'"),
    (["sample", "--data", "digits", "--denoiser", "wiener", "--denoiser.threshold", "0.1"], "--denoiser.threshold"),
    (["sample", "--data", "digits", "--lim", "3"], "did you mean '--limit'"),
    (["sample", "--data", "digits", "extra"], "extra"),
    (["sample", "--data", "digits", "--num", "many"], "'many' is not a whole number"),
    (["sample", "--data", "digits", "--num", "0"], "num must be at least 1"),
    (["sample", "--data", "digits", "--steps", "0"], "number of steps"),
    (["sample", "--data", "digits", "--sampler", "dim"], "one of ddim, euler, heun"),
    (["sample", "--data", "digits", "--device", "tpu"], "device 'tpu'"),
    (["sample", "--data", "digits", "--denoiser.temperature", "-1"], "temperature"),
    (["sample", "--data", "digits", "--denoiser.threshold", "2"], "threshold"),
    (["sample", "--data", "cifar10"], "SCORELENS_DATA"),
    (["sample", "--data", "cifar10", "--root", "nowhere"], "nowhere"),
    (["sample", "--data", "celeba-hq", "--root", "."], "get it"),
    (["sample", "--data", "folder:nowhere"], "nowhere"),
    (["sample", "--data", "npz:nowhere.npz"], "nowhere.npz"),
    (["sample", "--data", "digits", "--classes", "eleven"], "eleven"),
    (["sample", "--data", "digits", "--config", "nowhere.yaml"], "nowhere.yaml"),
    (["data", "info", "digits", "--limit", "1"], "at least 2 images"),
    (["data", "info"], "SOURCE"),
    (["sample", "--data", "digits", "--num", "100000000000000000000"], "is not a whole number"),
    (["sample", "--data", "digits", "--num", "1000000000000"], "GB of memory"),
    (["sample", "--data", "digits", "--resolution", "1000000"], "at most 8,192"),
    (["sample", "--data", "digits", "--denoiser.temperature", "nan"], "'nan' is not a finite number"),
    (["sample", "--data", "digits", "--device", "meta"], "device 'meta'"),
    (["sensitivity", "--data", "digits", "--model", "locality:threshold=x"], "threshold must be a finite number"),
    (["train", "--data", "digits", "--minutes", "inf"], "'inf' is not a finite number"),
    (["cache", "clear", "--older-than", "-1"], "older_than must be a number of days"),
    (["sample", "--data", "digits", "--out", "/dev/null/out"], "cannot write"),
    (["sample", "--data", "digits", "--out", "/proc/out"], "cannot write"),
])
def test_mistakes_are_one_line_and_nothing_else(capsys, tmp_path, argv, says):
    assert says in fails(capsys, *argv)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "runs"])
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.*"))


def test_an_existing_output_folder_is_refused_and_untouched(capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("done")
    assert "exists" in fails(capsys, "sample", "--data", "digits", "--out", "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("name", ["$\\frac{$", "a\nb", "\x1b[31mred", "日本"])
def test_any_name_on_any_terminal(tmp_path, monkeypatch, encoding, name):
    """Figures take dollars as they are, and no escape code reaches the terminal."""
    for k in range(3):
        png(tmp_path / name / f"{k}.png", seed=k)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        assert main(["data", "info", f"folder:{tmp_path / name}", "--split", "all"]) == 0
    for stream in (out, err):
        stream.seek(0)
    assert "\x1b" not in out.read() + err.read()


def test_times_of_methods_without_plans_are_measured(capsys, monkeypatch):
    """By a clock that every call moves by a second, and the first of a noise level by ten more: 3 images, 2 steps."""
    now, plain, levels = [0.0], Wiener.__call__, set()

    def call(model, z, sigma):
        now[0] += 1 if sigma in levels else 11
        levels.add(sigma)
        return plain(model, z, sigma)

    monkeypatch.setattr("scorelens.cli.sample.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(Wiener, "__call__", call)
    assert main(["sample", "--data", "digits", "--denoiser", "wiener", "--num", "3", "--steps", "2", "--dry-run"]) == 0
    assert "3 images, 2 steps: about 16.0 s" in capsys.readouterr().out  # the first level was fitted before
    monkeypatch.setattr(Wiener, "__call__", plain)
    assert main(["sample", "--data", "digits", "--denoiser", "wiener", "--num", "3", "--steps", "2", "--dry-run"]) == 0
    assert "3 images, 2 steps: less than 0.1 s" in capsys.readouterr().out


def test_a_dry_run_counts_the_rows_that_are_averaged():
    """All 64 translations of each image."""
    digits, z = load_images("digits", limit=20), torch.zeros(1, 1, 8, 8)
    rows = {name: build_denoiser(name, digits).choice(z, 1.0).rows for name in ("locality", "locality-equivariant")}
    assert rows == {"locality": 20, "locality-equivariant": 20 * 64}


def test_a_dry_run_counts_the_time_that_masks_take(capsys, monkeypatch):
    """By a clock that moves by seven seconds while the plans of two noise levels are chosen."""
    now, plain = [0.0], Locality.choice

    def choose(model, z, sigma):
        now[0] += 3.5
        return replace(plain(model, z, sigma), rows=0)

    monkeypatch.setattr("scorelens.cli.sample.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(Locality, "choice", choose)
    assert main(["sample", "--data", "digits", "--limit", "20", "--num", "1", "--steps", "2", "--dry-run"]) == 0
    assert "1 images, 2 steps: about 7.0 s" in capsys.readouterr().out


def test_images_too_large_for_masks_are_refused_with_a_way_out(capsys, tmp_path, monkeypatch):
    """Also in a dry run; wiener with components, which the message names, works."""
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 1, "SC_PAGE_SIZE": 192 * 192 - 1}[name])
    for k in range(6):
        png(tmp_path / "images" / f"{k}.png", seed=k)
    data = ["--data", "folder:images", "--split", "all", "--num", "1", "--steps", "2"]
    assert "smaller resolution, or a method without masks" in fails(capsys, "sample", *data, "--dry-run")
    assert main(["sample", *data, "--denoiser", "wiener", "--denoiser.components", "3", "--dry-run"]) == 0
    assert main(["data", "info", "folder:images", "--split", "all", "--components", "3"]) == 0


def test_a_folder_without_write_permission_is_named(capsys, monkeypatch):
    """Root may write anywhere, so the refusal is the system call's."""
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "locked")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    message = fails(capsys, "sample", "--data", "digits", "--out", "locked/out")
    assert "cannot write to locked/out: Permission denied" in message


def test_a_run_that_fails_leaves_nothing_behind(capsys, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", "grid.png")

    monkeypatch.setattr("scorelens.report.samples.grid_figure", full)
    assert "grid.png: No space left" in fails(capsys, "sample", "--data", "digits", "--num", "1", "--out", "out")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty" in fails(capsys, "data", "info", "folder:empty")


def test_mixed_sizes_need_a_resolution(capsys, tmp_path):
    png(tmp_path / "mixed" / "a.png", (8, 8))
    png(tmp_path / "mixed" / "b.png", (8, 9))
    assert "resolution" in fails(capsys, "data", "info", "folder:mixed")
    assert main(["data", "info", "folder:mixed", "--resolution", "4"]) == 0


def test_corrupted_files_are_all_listed_and_can_be_skipped(capsys, tmp_path):
    for k in range(6):
        png(tmp_path / "pictures" / f"{k}.png", seed=k)
    for k in (1, 4):
        path = tmp_path / "pictures" / f"{k}.png"
        path.write_bytes(path.read_bytes()[:60])
    message = fails(capsys, "sample", "--data", "folder:pictures", "--denoiser", "wiener")
    assert "1.png" in message
    assert "4.png" in message
    assert "skip" in message
    assert main(["sample", "--data", "folder:pictures", "--skip-bad", "--denoiser", "wiener", "--num", "1",
                 "--out", "out"]) == 0
    skipped = json.loads((tmp_path / "out" / "run.json").read_text())["data"]["skipped"]
    assert [name[-5:] for name in skipped] == ["1.png", "4.png"]


def test_sample_writes_images_trajectory_pictures_and_record(tmp_path):
    argv = ["sample", "--data", "digits", "--limit", "300", "--denoiser", "locality", "--denoiser.threshold", "0.05",
            "--num", "3", "--steps", "4", "--seed", "7", "--out", "out"]
    assert main(argv) == 0
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir()) == ["grid.png", "images", "images.npz", "run.json", "trajectory.npz",
                                                     "trajectory.png"]
    record = json.loads((out / "run.json").read_text())
    assert record["denoiser"]["name"] == "locality"
    assert record["denoiser"]["threshold"] == 0.05
    assert record["denoiser"]["mask_rule"] == "paper"
    assert record["data"]["count"] == 300
    assert len(record["data"]["fingerprint"]) == 32
    assert record["noise"]["seeds"] == [7, 9]
    assert len(record["sigmas"]) == len(record["step_seconds"]) == 4
    assert record["environment"]["versions"]["torch"]
    trajectory = read_arrays(out / "trajectory.npz")
    noise = seeded_noise((1, 8, 8), range(7, 10))
    torch.testing.assert_close(torch.from_numpy(trajectory["z"][0]), noise * (1 + trajectory["sigmas"][0] ** 2) ** 0.5)
    images = read_arrays(out / "images.npz")
    assert images["images"].shape == (3, 8, 8, 1)
    with Image.open(out / "images" / "00001.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), images["images"][1, :, :, 0])
    np.testing.assert_array_equal(to_uint8(torch.from_numpy(images["floats"]))[:, 0], images["images"][..., 0])


def test_samples_can_be_loaded_as_data(tmp_path):
    assert main(["sample", "--data", "digits", "--denoiser", "wiener", "--num", "3", "--out", "out"]) == 0
    assert main(["data", "info", "npz:out/images.npz"]) == 0


def test_config_files_stand_for_flags_and_flags_win(tmp_path):
    (tmp_path / "run.yaml").write_text("data: digits\nlimit: 100\nclasses: [3, 5]\nflips: true\nnum: 5\n"
                                       "denoiser: {name: locality, threshold: 0.3, mask_rule: published}\n")
    assert main(["sample", "--config", "run.yaml", "--num", "2", "--out", "out"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["noise"]["seeds"] == [0, 1]
    assert record["data"]["count"] == 200
    assert record["denoiser"]["threshold"] == 0.3
    assert record["denoiser"]["mask_rule"] == "published"


@pytest.mark.parametrize(("text", "says"), [("treshold: 3", "unknown option --treshold"), ("- a", "expected lines"),
                                            ("a: [", "cannot be read as YAML")])
def test_mistakes_in_config_files(capsys, tmp_path, text, says):
    (tmp_path / "run.yaml").write_text(text)
    assert says in fails(capsys, "sample", "--data", "digits", "--config", "run.yaml")


def test_default_folders_are_numbered(tmp_path):
    for _ in range(2):
        assert main(["sample", "--data", "digits", "--denoiser", "wiener", "--num", "1"]) == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["sample-digits-wiener", "sample-digits-wiener-2"]


def test_data_info_tells_and_draws(capsys, tmp_path):
    assert main(["data", "info", "leaves", "--limit", "120", "--resolution", "6x8", "--out", "out"]) == 0
    text = capsys.readouterr().out
    assert "120" in text
    assert "3 x 6 x 8" in text
    assert "first 100" in text
    with Image.open(tmp_path / "out" / "spectrum.png") as picture:
        assert picture.size[0] > 1000
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    values = record["eigenvalues"]
    assert len(values) == 144
    assert record["energy_shares"]["100"] == pytest.approx(sum(values[:100]) / sum(values))


def test_help_version_and_overview(capsys):
    assert main([]) == main(["--help"]) == main(["--version"]) == 0
    assert "scorelens demo" in capsys.readouterr().out
    assert main(["sample", "--denoiser", "smoothed", "--help"]) == 0
    assert "--denoiser.draws" in capsys.readouterr().out


@pytest.mark.e2e
def test_demo_shows_that_optimal_memorizes_and_locality_does_not(tmp_path):
    assert main(["demo", "--num", "16", "--out", "out"]) == 0
    rows = {row.label: row for row in read_rows(tmp_path / "out" / "rows.jsonl")}
    assert rows["optimal"].metrics["novelty_rms"]["mean"] < 1e-3
    assert rows["optimal"].metrics["memorized"]["mean"] == 1
    assert rows["locality"].metrics["memorized"]["mean"] < 0.5
    assert rows["optimal"].r2["mean"] < rows["locality"].r2["mean"] < rows["digits-unet-seed1"].r2["mean"]
    assert rows["locality"].noise["seeds"] == [16, 31]
    assert (tmp_path / "out" / "table.md").read_text().count("\n") == 14
    assert "data:image/png" in (tmp_path / "out" / "report.html").read_text()


def test_a_dry_run_tells_and_writes_nothing(capsys, tmp_path):
    argv = ["sample", "--data", "leaves", "--limit", "50", "--resolution", "12", "--num", "4", "--steps", "3"]
    assert main([*argv, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n|") == 4
    assert re.search(r"4 images, 3 steps: (about|less than) [\d.]+ s, [\d.]+ GB", text)
    assert list(tmp_path.iterdir()) == []


def test_plans_are_recorded_and_the_profile_accounts_for_the_time(capsys, tmp_path):
    argv = ["sample", "--data", "leaves", "--limit", "50", "--resolution", "12", "--num", "2", "--steps", "3",
            "--denoiser.plan", "sparse", "--profile", "--out", "out"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    for phase in ("distances", "softmax and response", "masks", "reading the data", "everything else"):
        assert phase in text
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [plan["plan"] for plan in record["plans"]] == ["sparse"] * 3
    assert [plan["sigma"] for plan in record["plans"]] == record["sigmas"]
    within = ("distances", "softmax and response", "reading the data", "choosing a plan", "masks")
    assert sum(record["phase_seconds"][phase] for phase in within) <= sum(record["step_seconds"])


def test_what_no_phase_claims_is_everything_else():
    """Steps of 4 s and statistics of 1 s, of which the phases explain 4."""
    assert "| everything else | 1.00 |   20% |" in phase_table({"distances": 3.0, "statistics": 1.0}, 4.0)


@pytest.mark.e2e
def test_a_reader_that_has_seen_enough_is_no_error():
    """scorelens data list | head -1"""
    done = subprocess.run(f"{sys.executable} -u -m scorelens.cli compare --help | head -1", shell=True,
                          capture_output=True, text=True)
    assert done.stdout.startswith("usage: scorelens compare") and done.stderr == ""


@pytest.mark.parametrize(("flag", "value", "message"), [
    ("--denoiser.bandwidth", "wide", "'wide' is not a finite number or one of auto"),
    ("--denoiser.bandwidth", "2", "bandwidth must be between 0 (optimal) and 1 (Wiener)")])
def test_options_that_may_be_functions_are_told_as_text(flag, value, message, capsys):
    assert message in fails(capsys, "sample", "--data", "digits", "--limit", "50", "--denoiser", "kernel", flag, value)


@pytest.mark.e2e
def test_a_network_is_an_option_by_its_name(tmp_path):
    arguments = ["sample", "--data", "digits", "--limit", "50", "--denoiser", "measured", "--num", "2", "--steps", "2"]
    assert main([*arguments, "--denoiser.network", "digits-unet", "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["denoiser"]["network"] == "digits-unet"


@pytest.mark.e2e
@pytest.mark.parametrize(("flags", "key"), [(["locality", "--denoiser.threshold", "auto"], "threshold"),
                                            (["els", "--denoiser.patch-size", "auto"], "patch_size"),
                                            (["kernel-locality", "--denoiser.threshold", "auto"], "bandwidth"),
                                            (["multiscale"], "weights")])
def test_what_was_chosen_on_held_out_images_is_shown_and_recorded(flags, key, tmp_path, capsys):
    command = ["sample", "--data", "digits", "--limit", "60", "--num", "2", "--steps", "3", "--denoiser", *flags]
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "chosen on held-out training images" in shown and not list(tmp_path.iterdir())
    assert main([*command, "--out", "out"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [row["sigma"] for row in record["chosen"]] == record["sigmas"]
    assert all(key in row for row in record["chosen"])
    assert (tmp_path / "out" / "chosen.png").exists()
