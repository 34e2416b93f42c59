"""The benchmark of plain loops: what stands for a loop by hand does the same as jaxsolve."""

import jax
import numpy as np
import optax
import pytest

from benchmarks import loops
from tests.cases import assert_fails


SMALL = loops.Descent((3, 4, 1), 10, optax.sgd, 0.1, 7)


@pytest.mark.parametrize("batch", [None, 4])
def test_a_loop_by_hand_ends_at_the_same_parameters(batch):
    """Seven steps are more than three epochs of two batches; the twin makes a step less."""
    case = SMALL._replace(batch=batch)
    ours, theirs, fewer = (
        run() for run in (loops._ours(case), loops._by_hand(case), loops._by_hand(case._replace(steps=6)))
    )
    close = lambda other: np.testing.assert_allclose(loops._gap(ours, other), 0, atol=1e-6)
    close(theirs)
    assert_fails(lambda: close(fewer))


def test_what_differs_is_no_comparison():
    with pytest.raises(ArithmeticError, match="differ by 0.5"):
        loops._require(0.5, 1e-3, "a case")
    with pytest.raises(ArithmeticError):
        loops._require(float("nan"), 1e-3, "a case")


def test_rows_say_what_they_are_of(monkeypatch):
    monkeypatch.setattr(loops, "REPEATS", 1)
    before = jax.config.jax_enable_x64
    row = loops._descent("a case", SMALL)
    assert (row.what, row.goal, row.peer) == ("a case: less 1 ms", 1.1, "jit(lax.scan)")
    assert "parameters differ by" in row.note
    assert jax.config.jax_enable_x64 == before  # descents have their own precision, and leave that of others
