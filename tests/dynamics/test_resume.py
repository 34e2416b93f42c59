"""A march does not depend, to the last bit, on how its steps are grouped, stored, or batched."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, GradientFlow, Problem, until
from tests import cases


TS = jnp.array([0.0, 0.05, 0.2, 0.21, 0.6, 1.0])
# No two alike, so that lanes end at different steps; the last ones fail or end early.
GAMMAS = jnp.array([0.3, 1.0, 2.5, 4.0, jnp.nan, 0.7, 1.4])
DYNAMICS = {
    "flow": GradientFlow(rtol=1e-5, atol=1e-8),
    "flow until": GradientFlow(rtol=1e-5, atol=1e-8, until=until.loss_fraction(0.3)),
    "sgd": Descent(optax.sgd(0.02)),
    "momentum": Descent(optax.sgd(0.002, momentum=0.9)),
    "adam in batches": Descent(optax.adam(0.02), batch_size=3, key=jr.key(8), until=until.loss_fraction(0.3)),
}


class Marches(NamedTuple):
    """The three parts of a march, compiled."""

    init: Any
    advance: Any
    finish: Any


@functools.cache
def _parts():
    return cases.mlp(jr.key(0), depth=1), cases.inputs(jr.key(1), 8), cases.inputs(jr.key(2), 8, 2)


def _problem(gamma):
    net, x, y = _parts()
    return Problem(eqx.tree_at(lambda net: net.scaling.gamma, net, jnp.asarray(gamma)), x, y, centered=True)


@pytest.fixture(scope="module", params=["flow until", "momentum", "adam in batches"])
def batched(request):
    """A batch of lanes."""
    dynamics, _ = DYNAMICS[request.param], _parts()
    return Marches(
        jax.jit(jax.vmap(lambda gamma: dynamics.init(_problem(gamma), TS))),
        jax.jit(jax.vmap(lambda gamma, state, n: dynamics.advance(_problem(gamma), state, n), in_axes=(0, 0, None))),
        jax.jit(jax.vmap(lambda gamma, state: dynamics.finish(_problem(gamma), state))),
    )


@pytest.fixture(scope="module", params=["flow", "sgd"])
def single(request):
    """One run."""
    dynamics, problem = DYNAMICS[request.param], _problem(1.3)
    return Marches(
        jax.jit(lambda _: dynamics.init(problem, TS)),
        jax.jit(lambda _, state, n: dynamics.advance(problem, state, n)),
        jax.jit(lambda _, state: dynamics.finish(problem, state)),
    )


def _stored(state):
    leaves, structure = jax.tree.flatten(state)
    assert all(eqx.is_array(leaf) for leaf in leaves)
    return jax.tree.unflatten(structure, [jnp.asarray(np.asarray(leaf).copy()) for leaf in leaves])


def _run(march, lanes, group, store=False):
    state = march.init(lanes)
    while not np.all(state.done):
        state = march.advance(lanes, _stored(state) if store else state, jnp.asarray(group))
    return state


def _assert_same_bits(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _check_groups(march, lanes):
    reference = _run(march, lanes, 1000)
    assert np.any(np.asarray(reference.steps) > 7)
    for group, store in ((1, False), (7, False), (7, True)):
        _assert_same_bits(_run(march, lanes, group, store), reference)
    _assert_same_bits(march.advance(lanes, reference, jnp.asarray(5)), reference)  # a finished state stays


def test_groups_of_steps_and_storage(single):
    _check_groups(single, None)


def test_groups_of_steps_and_storage_in_a_batch(batched):
    _check_groups(batched, GAMMAS)


def _rows(march, lanes):
    result = march.finish(lanes, _run(march, lanes, 16))
    row = lambda i: jax.tree.map(lambda leaf: leaf[i], result)
    return [row(i) for i in range(len(lanes))]


@pytest.mark.parametrize(
    "order",
    [[6, 5, 4, 3, 2, 1, 0], [1, 2, 3, 4, 5, 6, 0], [5] * 7, [2, 0, 2, 4, 4, 0, 6]],
    ids=["back", "on", "5", "mix"],
)
def test_lanes_do_not_depend_on_order_or_neighbors(batched, order):
    reference = _rows(batched, GAMMAS)
    for lane, row in zip(order, _rows(batched, GAMMAS[jnp.array(order)]), strict=True):
        _assert_same_bits(row, reference[lane])


def test_lanes_differ(batched):
    """The twin of the test above: its comparison tells lanes apart."""
    reference = _rows(batched, GAMMAS)
    cases.assert_fails(lambda: _assert_same_bits(reference[0], reference[1]))
