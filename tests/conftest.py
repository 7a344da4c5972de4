"""No test uses the user's caches or datasets, except those that ask for real data; and each test uses one thread."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

REAL_DATA = os.environ.get("SCORELENS_DATA")


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCORELENS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SCORELENS_DATA", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")  # of subprocesses: on busy cores, threads wait for one another
        torch.set_num_threads(1)
        yield


class CallsLeft:
    """True once so many calls have been checked: jaxtyping asks at every call whether it is disabled."""

    def __init__(self, count: float):
        self.count = count

    def __bool__(self) -> bool:
        self.count -= 1
        return self.count < 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the shapes at every call of a fast test, and at the first thousand of others, which take too long else."""
    long = any(item.get_closest_marker(name) for name in ("slow", "e2e", "distributed", "browser"))
    jaxtyping.config.jaxtyping_disable = CallsLeft(1000 if long else math.inf)


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real datasets, given back to this test alone."""
    if not REAL_DATA:
        pytest.skip("needs real data: set SCORELENS_DATA to the folder that holds them")
    monkeypatch.setenv("SCORELENS_DATA", REAL_DATA)
    return Path(REAL_DATA).expanduser()


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that nothing has been written to."""
    monkeypatch.setenv("SCORELENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
