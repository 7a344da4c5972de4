"""Bars are silent in the library, late on the command line, and move within a step."""

import threading

import pytest

from scorelens import progress


class Bar:
    """Stands for tqdm, and remembers."""

    def __init__(self, *args, **options):
        self.n, self.seen = 0, []

    def update(self, by):
        self.n += by
        self.seen.append(round(self.n, 3))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def test_the_library_alone_shows_nothing(capsys):
    assert list(progress.track(range(3), "counting")) == [0, 1, 2]
    assert list(progress.steps(range(3), "stepping", 3)) == [0, 1, 2]
    progress.fraction(0.5)
    assert capsys.readouterr().err == ""


def test_fractions_move_the_bar_within_its_step(monkeypatch):
    bar = Bar()
    monkeypatch.setattr(progress, "tqdm", lambda *args, **options: bar)

    def work():
        for k in range(2):
            progress.fraction(0.5)
            progress.fraction(1.0)
            yield k

    with progress.shown():
        assert list(progress.steps(work(), "stepping", 2)) == [0, 1]
    assert bar.seen == [0.5, 0.999, 1, 1.5, 1.999, 2]


@pytest.mark.parametrize(("terminal", "interval"), [(True, 0.1), (False, 15)])
def test_log_files_are_not_filled(monkeypatch, terminal, interval):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    assert progress._options()["mininterval"] == interval
    assert progress._options()["delay"] == 2


def test_work_that_cannot_report_follows_the_clock(monkeypatch):
    bars = []
    monkeypatch.setattr(progress, "tqdm", lambda *args, **options: bars.append(Bar()) or bars[-1])
    assert progress.estimated(lambda: 7, "working", lambda: 1.0) == 7 and not bars  # the library is silent
    done = threading.Event()
    monkeypatch.setattr(progress, "wait", lambda waiting, timeout: done.set())
    with progress.shown():
        assert progress.estimated(done.wait, "working", lambda: 1e-9)
    assert bars[0].seen[-1] == 0.99
