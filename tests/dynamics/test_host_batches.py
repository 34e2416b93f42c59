"""Descent on batches that a loader on the host makes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, losses, nets, observe, Problem, solve, sweep
from tests import cases


N, BATCH, RATE, KEY = 12, 4, 0.02, jr.key(3)


@functools.cache
def _problem(centered=False):
    return cases.problem(cases.mlp(jr.key(0)), jr.key(1), n=N, centered=centered)


def _pairs(problem, epochs):
    """The batches that `batch_size=4, key=KEY` draws, made on the host."""
    x, y = np.asarray(problem.x), np.asarray(problem.y)
    for epoch in range(epochs):
        order = np.asarray(jr.permutation(jr.fold_in(KEY, epoch), N)).reshape(-1, BATCH)
        yield from ((x[rows], y[rows]) for rows in order)


@pytest.mark.parametrize("centered", [False, True])
def test_the_same_batches_lead_to_the_same_parameters(centered):
    problem, ts = _problem(centered), RATE * jnp.array([3.0, 8.0])
    watched = [observe.loss(), observe.parameters()]
    ours = solve(problem, Descent(optax.adam(RATE), batch_size=BATCH, key=KEY), ts, observe=watched)
    host = solve(problem, Descent(optax.adam(RATE), batches=_pairs(problem, 3)), ts, observe=watched)
    np.testing.assert_allclose(host["parameters"], ours["parameters"], rtol=cases.eps(100), atol=cases.eps(10))
    full = solve(problem, Descent(optax.adam(RATE)), ts, observe=watched)
    assert np.abs(full["parameters"] - ours["parameters"]).max() > 1e-4


def test_a_list_begins_anew_and_a_run_goes_on():
    problem = _problem()
    pairs = list(_pairs(problem, 1))
    seen: list[int] = []

    class Loader:
        """Counts what is taken from it."""

        def __iter__(self):
            for index, pair in enumerate(pairs):
                seen.append(index)
                yield pair

    descent = Descent(optax.sgd(RATE), batches=Loader())
    solve(problem, descent, [4 * RATE])
    assert seen == [0, 1, 2, 0]
    solve(problem, descent, [2 * RATE])
    assert seen == [0, 1, 2, 0, 1, 2]


def test_labels_and_inputs_of_other_dtypes():
    x = np.arange(12, dtype=np.uint8).reshape(6, 2)
    labels = np.array([0, 1, 1, 0, 1, 0])
    net = nets.MLP(
        in_size=2, out_size=2, width_size=4, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    problem = Problem(net, x, labels, loss=losses.CrossEntropy())
    run = solve(problem, Descent(optax.sgd(0.1), batches=[(x, labels)]), [0.5], observe=observe.parameters())
    full = solve(problem, Descent(optax.sgd(0.1)), [0.5], observe=observe.parameters())
    np.testing.assert_allclose(run["parameters"], full["parameters"], rtol=cases.eps(100), atol=cases.eps(10))


@pytest.mark.usefixtures("as_users")
def test_bad_input():
    problem, pairs = _problem(), list(_pairs(_problem(), 1))
    bad: Any = 3
    with pytest.raises(TypeError, match=r"batches must be an iterable of pairs \(x, y\), got int 3"):
        Descent(optax.sgd(0.1), batches=bad)
    with pytest.raises(ValueError, match="give either batches=, or batch_size= with key="):
        Descent(optax.sgd(0.1), batches=pairs, batch_size=2, key=KEY)
    for bad in ([jnp.ones(3)], [3], [pairs[0][:1]]):
        with pytest.raises(TypeError, match=r"each of the batches must be a pair \(x, y\) of arrays"):
            solve(problem, Descent(optax.sgd(0.1), batches=bad), [1.0])
    with pytest.raises(ValueError, match="has used all of its batches"):
        solve(problem, Descent(optax.sgd(0.1), batches=[]), [1.0])
    # Within a program JAX has an error of its own, which ends in ours.
    for batches, said in (
        (iter(pairs), "has used all of its batches"),
        ([pairs[0], (pairs[0][0][:2], pairs[0][1][:2])], "one shape"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=said):
            solve(problem, Descent(optax.sgd(0.1), batches=batches), [1.0])
    with pytest.raises(ValueError, match="the lanes of a sweep would share them"):
        sweep(lambda seed: problem, {"seed": [0, 1]}, Descent(optax.sgd(0.1), batches=pairs), [1.0])
