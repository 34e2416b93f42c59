"""The rod flow of any optimizer: where it grows, its pair map, and pair means of descent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import Descent, dynamics, nets, observe, Problem, RodFlow, solve, until
from tests import cases


B = 0.9
# Adam's first moment would be counted more at the start, and its squares change: neither does here.
FLAT = optax.adam(lambda count: 1e6 * (1 - B ** (count + 1.0)), b1=B, b2=0.99, eps=1e6)
EDGES = {
    "descent": (optax.sgd(1.0), 1.0, 2.0),
    "heavy ball": (optax.sgd(1.0, momentum=B), 1 / (1 - B), 2 * (1 + B)),
    "nesterov": (optax.sgd(1.0, momentum=B, nesterov=True), 1 / (1 - B), 2 * (1 + B) / (1 + 2 * B)),
    "decayed": (optax.chain(optax.add_decayed_weights(0.25), optax.sgd(1.0)), 1.0, 1.75),
    "rmsprop": (optax.rmsprop(1e6, eps=1e12, initial_scale=0.0), 1.0, 2.0),
    "adam": (FLAT, 1.0, 2 * (1 + B) / (1 - B)),
}


@pytest.mark.x64_only
@pytest.mark.parametrize("name", EDGES)
def test_the_rod_grows_exactly_where_the_optimizer_is_unstable(name):
    optimizer, rate, edge = EDGES[name]
    watched = [observe.oscillation(), observe.parameters()]

    def grows(share):
        run = solve(
            cases.modes([1.0], [share * edge]),
            RodFlow(optimizer, rate=rate),
            rate * np.array([150.0, 300.0]),
            observe=watched,
        )
        before, after = np.asarray(run["oscillation"])[:, 0]
        return after > before

    assert not grows(1 - 1e-3)
    assert grows(1 + 1e-3)


OPTIMIZERS = {
    "momentum": (optax.sgd(0.1, momentum=0.9), None),
    "nesterov": (optax.sgd(0.1, momentum=0.9, nesterov=True), None),
    "scalar rmsprop": (dynamics.scalar_rmsprop(0.1, initial_scale=1.0), 0.1),
    "rmsprop": (optax.rmsprop(0.01, initial_scale=0.1), 0.01),
    "adam": (optax.adam(0.01), None),
    "nadam": (optax.nadam(0.01), 0.01),
    "adamw": (optax.adamw(0.01, weight_decay=0.1), None),
}


def small():
    """A network whose sharpness comes to the edge."""
    return cases.sharpening(4, 7, 30, 1)


@pytest.mark.x64_only
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_midpoints_and_halves_of_iterates_move_as_the_rod_does(name):
    """Step by step, and exactly: of three iterates in a row, two pairs. Twin: without the half."""
    optimizer, rate = OPTIMIZERS[name]
    problem, flow = small(), RodFlow(optimizer, rate=rate)
    params, state = problem.params, optimizer.init(problem.params)
    eta, rows = problem.eta, []
    for _ in range(7):
        memory = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), state)
        rows.append(jnp.concatenate([ravel_pytree(params)[0], ravel_pytree(memory)[0]]))
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(jax.grad(problem.objective)(params), state, params)
        params = jax.tree.map(lambda p, rate, u: p + rate * u, params, eta, updates)
    system = flow.system(problem)
    for n in (3, 4):
        pair = lambda i: ((rows[i] + rows[i + 1]) / 2, (-1) ** i * (rows[i + 1] - rows[i]) / 2)
        (m, d), (after, turned) = pair(n), pair(n + 1)
        at = type(system.start)(m, d)
        moved = system.terms.vf(0.0, at, None)
        np.testing.assert_allclose(flow.rate * moved.middle, after - m, atol=1e-12)
        np.testing.assert_allclose(flow.rate * moved.half, turned - d, atol=1e-12)
        still = system.terms.vf(0.0, at._replace(half=0 * d), None)
        assert np.abs(flow.rate * still.middle - (after - m)).max() > 1e-6


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("name", "optimizer", "rate", "limit"),
    [
        ("scalar rmsprop", dynamics.scalar_rmsprop(0.1, decay=0.99, initial_scale=1.0), 0.1, 0.035),  # 0.030
        ("rmsprop", optax.rmsprop(0.005, decay=0.99, initial_scale=0.01), 0.005, 0.025),  # 0.017
        ("adam", optax.adam(0.005, b1=0.5), None, 0.05),  # 0.040
    ],
)
def test_pair_means_of_descent(name, optimizer, rate, limit):
    """At the edge, where the rod oscillates: their distance over the way that they have gone. Twin: half the rate."""
    problem, descent = small(), Descent(optimizer, rate=rate)
    pairs, flow = cases.pairs(problem, descent, np.array([50, 200, 499])), RodFlow(optimizer, rate=rate)
    check = lambda off: np.testing.assert_array_less(off, limit)
    check(pairs.off(flow, problem))
    assert solve(problem, flow, pairs.ts[-1:], observe=observe.oscillation())["oscillation"][-1, 0] > 1e-4, name
    cases.assert_fails(lambda: check(pairs._replace(ts=pairs.ts / 2).off(flow, problem)))


@pytest.mark.slow
def test_in_float32_in_batches_and_up_to_a_condition():
    """Adam's squares are 0 at the start, and stay 0 where a gradient does: the ends tell what no derivative does."""
    x = jnp.concatenate([jnp.eye(3), jnp.zeros((3, 1))], axis=1)  # the last input is always 0
    net = nets.MLP(
        in_size=4,
        out_size=1,
        width_size=7,
        depth=2,
        activation="tanh",
        scaling=nets.Scaling.xavier(),
        key=jax.random.key(0),
    )
    problem = Problem(net, x, jnp.array([[1.0], [-1.0], [1.0]]))
    loss = lambda rate: solve(problem, RodFlow(optax.adam(rate), rate=rate), 20 * rate)["loss"]
    together = jax.jit(jax.vmap(loss))(jnp.array([1e-3, 2e-3]))
    alone = [solve(problem, Descent(optax.adam(rate)), 20 * rate)["loss"] for rate in (1e-3, 2e-3)]
    np.testing.assert_allclose(together, alone, rtol=0.06)  # measured: 0.011 and 0.029
    run = solve(problem, RodFlow(optax.adam(1e-3), until=until.loss_below(0.3)), [jnp.inf])
    np.testing.assert_allclose(run["loss"], 0.3, rtol=1e-3)
