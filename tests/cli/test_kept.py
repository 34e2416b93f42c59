"""Programs that are kept between processes: in jaxsolve's folder or in the user's, which is the user's own affair."""

import os

import pytest

from tests.inside import kept_programs


FOLDER, MOST = "JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    for name in (FOLDER, MOST, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "JAX_ENABLE_COMPILATION_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_in_a_folder_of_its_own_up_to_a_limit(tmp_path):
    before = dict(os.environ)
    with kept_programs(True):
        assert os.environ[FOLDER] == str(tmp_path / "jaxsolve" / "programs")
        assert os.environ[MOST] == "1000000000"
    assert dict(os.environ) == before


def test_the_users_own_cache_is_left_as_it_is(monkeypatch, tmp_path):
    """With a limit of ours JAX would delete from it."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "mine"))
    before = dict(os.environ)
    with kept_programs(True):
        assert dict(os.environ) == before


def test_not_at_all():
    with kept_programs(False):
        assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"
