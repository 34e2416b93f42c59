"""How many threads LAPACK takes while a run is computed, and afterwards."""

import threading

import jax.numpy as jnp
import pytest
from threadpoolctl import ThreadpoolController

from jaxsolve import GradientFlow, Problem, solve
from tests import cases
from tests.inside import one_thread


MODES = cases.modes(jnp.ones(2), jnp.ones(2))


def _threads():
    return {library["num_threads"] for library in ThreadpoolController().info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        yield


def test_a_run_has_one_and_leaves_as_many_as_there_were():
    found = []
    watched = lambda f, y: found.append(_threads()) or jnp.sum((f - y) ** 2) / 2
    solve(Problem(MODES.net, MODES.x, MODES.y, loss=watched), GradientFlow(), 1.0)
    assert {1} in found
    assert _threads() == {2}


def _fails():
    with one_thread():
        assert _threads() == {1}
        raise RuntimeError("on strike")


def test_an_exception_leaves_as_many_as_there_were():
    with pytest.raises(RuntimeError, match="on strike"):
        _fails()
    assert _threads() == {2}


def test_the_last_one_out_restores():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_thread():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        assert inside.wait(60)
    assert _threads() == {1}  # the other is still inside
    leave.set()
    thread.join()
    assert _threads() == {2}
