"""No test reads or writes the user's own caches and datasets, but for those that ask for real data."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REAL_DATA = os.environ.get("SCORELENS_DATA")


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCORELENS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SCORELENS_DATA", raising=False)
        yield


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
