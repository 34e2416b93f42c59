"""A config names no code, unless its reader allows it; and then only a function of a module of the reader's own."""

import sys

import pytest

from jaxsolve import plan
from jaxsolve.configs import ConfigError, read_config


CONFIG = """
problem = "a_problem_of_mine:make"
times = [0, 1]
dynamics = "FrozenKernel"

[axes]
rate = [1.0, 2.0]
"""
MODULE = """
import functools, os, pathlib
from os import getenv
from tests import cases

pathlib.Path(__file__).with_name("imported").touch()
NUMBER = 3


def make(rate):
    return cases.modes([1.0], rate[None])


@functools.wraps(make)
def wrapped(rate):
    return make(rate)


part = functools.partial(make)


class Maker:
    def __call__(self, rate):
        return make(rate)


maker = Maker()
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a config whose problem is the given text, beside a module of the reader's own."""
    (tmp_path / "a_problem_of_mine.py").write_text(MODULE)
    (tmp_path / "broken_by_me.py").write_text("1/0")
    monkeypatch.syspath_prepend(tmp_path)

    def read(problem="a_problem_of_mine:make", **options):
        path = tmp_path / "config.toml"
        path.write_text(CONFIG.replace("a_problem_of_mine:make", problem))
        return read_config(path, **options)

    yield read
    sys.modules.pop("a_problem_of_mine", None)


@pytest.mark.parametrize("name", ["make", "wrapped", "part", "maker"])
def test_a_function_of_the_readers_own(read, name):
    config = read(f"a_problem_of_mine:{name}", allow_code=True)
    assert plan(config.problem_fn, config.axes, config.dynamics, config.ts).lanes == 2


@pytest.mark.parametrize("problem", ["a_problem_of_mine:make", "os:system", "no_such_module:make", "anything"])
def test_nothing_is_imported_unless_allowed(read, tmp_path, problem):
    with pytest.raises(ConfigError, match="a config may run only if you allow it.*--allow-code.*allow_code=True"):
        read(problem)
    assert not (tmp_path / "imported").exists()
    assert "a_problem_of_mine" not in sys.modules


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("os:system", "'os:system' is not in a module of your own"),
        ("builtins:eval", "is not in a module of your own"),
        ("subprocess:getoutput", "is not in a module of your own"),
        ("importlib.util:find_spec", "is not in a module of your own"),
        ("jaxsolve.cli:main", "is not in a module of your own"),
        ("a_problem_of_mine:getenv", "is a function of os, not of your module 'a_problem_of_mine'"),
        ("a_problem_of_mine:mak", "has no attribute 'mak'"),
        ("a_problem_of_mine:os", "must be a function that returns a Problem, got module"),
        ("a_problem_of_mine:NUMBER", "must be a function that returns a Problem, got int 3"),
        ("a_problem_of_mine:os.system", "cannot be imported; give 'module:function'"),
        ("a_problem_of_mine", "cannot be imported; give 'module:function'"),
        (".a_problem_of_mine:make", "cannot be imported; give 'module:function'"),
        ("../a_problem_of_mine:make", "cannot be imported; give 'module:function'"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("broken_by_me:make", "cannot be imported .ZeroDivisionError division by zero"),
    ],
)
def test_what_is_no_function_of_the_readers_own(read, problem, message):
    with pytest.raises(ConfigError, match=message):
        read(problem, allow_code=True)
