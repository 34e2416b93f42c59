"""Descent at the edge of stability: the complementarity problem, which optimizers are known, and the flows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import (
    CentralFlow,
    Descent,
    dynamics,
    GradientFlow,
    MomentumFlow,
    nets,
    observe,
    Problem,
    RESULTS,
    RodFlow,
    solve,
    StochasticFlow,
)
from tests import cases
from tests.inside import complement, Cone, first_pairs, follow_pairs


WEIGHTS = observe.parameters()
RATE = 0.5


def sharpening(dtype=None):
    """The network of docs/edge-of-stability.md, which starts near the edge at rate 0.5."""
    return cases.sharpening(6, 16, 60, 0, dtype)


CONE = Cone.of(6)
SOLVE = jax.jit(lambda a, b: complement(CONE, a, b, jnp.zeros_like(a)))


@pytest.mark.parametrize(
    "share", [1.0, 1e-5 if cases.X64 else 1e-3, 0.0], ids=["independent", "nearly dependent", "dependent"]
)
@pytest.mark.parametrize("k", range(1, 7))
def test_complementarity(k, share, getkey):
    """X >= 0, A + B[X] >= 0 and <X, A + B[X]> = 0; for k = 1 in closed form; leaving B out fails.

    T_ij that depend on each other but for a small share; A is such that the answer is not 0 along all directions.
    """
    count, tolerance = k * (k + 1) // 2, cases.eps(1e4)
    third = jax.random.normal(getkey(), (count, 2)) @ jax.random.normal(getkey(), (2, 40))
    third = third + share * jax.random.normal(getkey(), (count, 40))
    held = jnp.arange(len(CONE.rows)) < count  # as in a step: those not held are far from the edge
    third = jnp.where(held[:, None], jnp.zeros((len(CONE.rows), 40)).at[:count].set(third), 0)
    b = third @ third.T / 2
    for push in (0.0, 0.3, 30.0 if cases.X64 else 3.0):
        slack = CONE.vector(jnp.diag(jnp.where(jnp.arange(6) < k, 0.1 * jnp.arange(6.0), 2.0)))
        a = slack - push * third @ jax.random.normal(getkey(), (40,))
        found = SOLVE(a, b)

        def check(slack, x=found.x, a=a):
            matrices = [np.asarray(CONE.matrix(v)) for v in (x, slack)]
            size = float(jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(b) @ jnp.abs(x)))
            assert np.linalg.eigvalsh(matrices[0])[0] >= -tolerance * np.abs(x).max()
            assert np.linalg.eigvalsh(matrices[1])[0] >= -tolerance * size
            assert abs(np.sum(matrices[0] * matrices[1])) <= tolerance * size * max(1, np.abs(x).max())

        check(a + b @ found.x)
        assert found.residual < tolerance
        if k == 1:
            np.testing.assert_allclose(found.x[0], np.maximum(0, -a[0] / b[0, 0]), rtol=tolerance)
        if np.abs(found.x).max() > 1e-3:
            cases.assert_fails(lambda a=a, check=check: check(a))


def matrices(params):
    """A mask of what is no bias."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) > 1, params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.adamw(0.1),
        optax.chain(optax.clip(1.0), optax.sgd(0.1)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(0.1)),
        optax.chain(optax.add_decayed_weights(1e-4), optax.rmsprop(0.1)),
        optax.chain(optax.add_decayed_weights(0.1, mask=matrices), optax.sgd(0.1)),
        optax.chain(optax.add_decayed_weights(0.1, mask=matrices), optax.rmsprop(0.1, initial_scale=1.0)),
        optax.chain(optax.masked(optax.clip(1.0), matrices), optax.sgd(0.1)),
    ],
    ids=[
        *("adam", "momentum", "adamw", "clipped", "clipped rmsprop", "decayed rmsprop"),
        *("decayed matrices", "decayed matrices rmsprop", "clipped matrices"),
    ],
)
def test_optimizers_without_a_central_flow_are_refused(optimizer):
    flow = CentralFlow(optimizer)
    with pytest.raises(ValueError, match=r"js\.Descent runs it"):
        _ = flow.preconditioner


@pytest.mark.parametrize(
    "make",
    [
        optax.adam,
        optax.adagrad,
        lambda rate: optax.sgd(rate, momentum=0.9),
        lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(rate)),
        lambda rate: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate)),
    ],
)
def test_they_are_refused_inside_a_trace_too(make):
    with pytest.raises(ValueError, match="the central flow is known for gradient descent"):
        jax.eval_shape(lambda rate: CentralFlow(make(rate)).preconditioner, jnp.asarray(0.1))


@pytest.mark.parametrize(
    "make", [optax.sgd, lambda rate: dynamics.scalar_rmsprop(rate, initial_scale=1.0), optax.rmsprop]
)
def test_rates_that_are_traced_are_read(make):
    read = lambda rate: CentralFlow(make(rate)).preconditioner
    for found, expected in zip(*map(jax.tree.leaves, (jax.jit(read)(0.1), read(0.1))), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-20)  # rounding leaves less of an eps of 0


def test_rmsprop_that_starts_with_infinite_steps_is_refused():
    with pytest.raises(ValueError, match="nu = eps = 0, where its steps are infinite: give initial_scale= or eps="):
        solve(valley(1.0), CentralFlow(dynamics.scalar_rmsprop(0.1)), 1.0)


def test_a_scaling_for_adam_is_refused_as_by_descent():
    net = nets.MLP(
        in_size=2,
        out_size=1,
        width_size=16,
        depth=1,
        activation="tanh",
        scaling=nets.Scaling.mup(adam=True),
        key=jax.random.key(0),
    )
    problem = Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
    descent = (Descent(optax.sgd(0.1)), CentralFlow(rate=0.1), RodFlow(rate=0.1))
    flows = (GradientFlow(), MomentumFlow(tau=0.1), StochasticFlow(0.1, key=jax.random.key(1)))
    for run in (*descent, *flows):
        with pytest.raises(ValueError, match="scaling is mup for Adam, but the optimizer behaves like"):
            solve(problem, run, 1.0)


@pytest.mark.slow
def test_eigenvalues_that_are_not_followed_are_not_shown():
    """Against the whole Hessian, at a rate that has the third at .8 of the edge; those below it are unknown."""
    problem = sharpening()
    start, unravel = ravel_pytree(problem.params)
    values = np.linalg.eigvalsh(jax.hessian(lambda w: problem.objective(unravel(w)))(start))[::-1][:6]
    for rate in (1.9 / values[0], 0.1 / values[0]):
        found = solve(problem, CentralFlow(rate=float(rate)), [0.0], observe=observe.edge_eigenvalues())
        shown, true = found["edge_eigenvalues"][0], rate * values / 2
        near = (true > 0.8) | (np.arange(6) == 0)
        np.testing.assert_allclose(shown[near], true[near], rtol=5e-3)
        assert np.all(np.isnan(shown[~near]))
    assert np.sum(near) == 1


@pytest.mark.slow
def test_zeros_behind_a_padded_network_hide_no_error():
    def steps(width):
        net = nets.MLP(
            in_size=3,
            out_size=1,
            width_size=width,
            depth=1,
            activation="tanh",
            scaling=nets.Scaling.ntk(),
            key=jax.random.key(0),
        )
        x = jax.random.normal(jax.random.key(1), (5, 3))
        return solve(Problem(net, x, jnp.sin(x[:, :1])), CentralFlow(rate=0.1), 20.0).stats.steps

    assert steps(nets.Padded(4, size=64)) == steps(4)


def test_complementarity_of_many_at_the_edge(getkey):
    cone = type(CONE).of(20)
    third = jax.random.normal(getkey(), (210, 300))
    b = third @ third.T / 2
    a = cone.vector(jnp.diag(0.1 * jnp.arange(20.0))) - third @ jax.random.normal(getkey(), (300,))
    found = jax.jit(lambda a, b: complement(cone, a, b, jnp.zeros_like(a)))(a, b)
    x, slack = cone.matrix(found.x), cone.matrix(a + b @ found.x)
    assert found.residual < cases.eps(1e4)
    assert jnp.linalg.eigvalsh(slack)[0] >= -cases.eps(1e5) * jnp.max(jnp.abs(slack))
    assert jnp.sum(x * slack) <= cases.eps(1e5) * jnp.linalg.norm(x) * jnp.linalg.norm(slack)
    assert 1 < jnp.sum(jnp.linalg.eigvalsh(x) > 1e-3 * jnp.max(jnp.abs(x))) < 20


def test_complementarity_says_what_it_misses():
    """Beyond the edge, where nothing leads back: there is no answer."""
    a = CONE.vector(jnp.diag(jnp.array([-0.3, 0.1, 0.2, 0.3, 0.4, 0.5])))
    found = SOLVE(a, jnp.zeros((21, 21)))
    assert found.residual > 0.1
    assert jnp.all(jnp.isfinite(found.x))


def test_the_largest_eigenvalue_of_many_parameters_is_found():
    """To random vectors of a million parameters, this Hessian does less than the accuracy that is asked for."""
    dtype, size = jnp.result_type(float), 10**6
    hessian = lambda v: jnp.zeros_like(v).at[0].set(v[0])
    start = first_pairs(size, 2, dtype)
    image = jnp.linalg.norm(jax.vmap(hessian, 1, 1)(start.vectors), axis=0)
    assert jnp.max(image) < 5e-3
    found = jax.jit(lambda pairs: follow_pairs(hessian, jnp.ones(size, dtype), pairs, 1.8, 5e-3))(start)
    np.testing.assert_allclose(found.values[0], 1, rtol=1e-2)


@pytest.mark.parametrize("size", [200, 20_000])
def test_an_eigenvalue_that_rises_outside_of_those_followed_is_found(size):
    """The followed ones stand still and are exact, so that nothing leads out of their span, where one grows."""
    dtype = jnp.result_type(float)
    rest = 0.1 * jnp.abs(jax.random.normal(jax.random.key(0), (size,), dtype))
    rest = rest.at[:2].set(jnp.array([2.0, 1.8], dtype))
    look = jax.jit(lambda top, pairs: follow_pairs(lambda v: rest.at[7].set(top) * v, jnp.ones(size), pairs, 1.0, 0.02))
    pairs = first_pairs(size, 4, dtype)
    for _ in range(30):
        pairs = look(0.05, pairs)
    before = int(pairs.products)
    for top in np.linspace(0.05, 1.5, 30):
        pairs = look(top, pairs)
    np.testing.assert_allclose(pairs.values[2], 1.5, rtol=1e-2)
    np.testing.assert_allclose(pairs.values[:2], jnp.array([2.0, 1.8]), rtol=1e-2)
    assert int(pairs.products) - before < 30 * 8  # measured: 5 in a look until it is near, 9 afterwards


def test_rmsprop_shows_its_numbers():
    flow = CentralFlow(optax.rmsprop(0.02, decay=0.95, initial_scale=0.3))
    assert flow.name == "CentralFlow(rmsprop)"
    np.testing.assert_allclose(flow.preconditioner.rate, 0.02, rtol=1e-3)
    np.testing.assert_allclose(flow.preconditioner.lag, 0.05 / 0.95, rtol=1e-3)
    scalar = CentralFlow(dynamics.scalar_rmsprop(0.02, decay=0.95, initial_scale=0.3))
    assert scalar.name == "CentralFlow(scalar_rmsprop)"
    np.testing.assert_allclose(scalar.preconditioner.rate, 0.02, rtol=1e-3)
    assert CentralFlow(optax.sgd(0.1)).name == "CentralFlow(sgd)"
    with pytest.raises(ValueError, match="exactly one"):
        CentralFlow()


def test_a_rod_takes_a_rate_or_an_optimizer():
    assert RodFlow(optax.sgd(0.1)).rate == RodFlow(rate=0.1).rate
    np.testing.assert_array_equal(jax.jit(lambda rate: RodFlow(optax.sgd(rate)).rate)(0.1), RodFlow(rate=0.1).rate)
    ends = [solve(valley(1.9), flow, 1.0)["loss"] for flow in (RodFlow(optax.sgd(0.1)), RodFlow(rate=0.1))]
    np.testing.assert_allclose(*ends, rtol=cases.eps(500))
    assert RodFlow(optax.sgd(0.1)).name == "RodFlow"
    assert RodFlow(optax.adam(0.1)).name == "RodFlow(adam)"
    with pytest.raises(ValueError, match="give an optimizer"):
        RodFlow()
    with pytest.raises(ValueError, match="needs the loss at each step"):
        RodFlow(optax.polyak_sgd(), rate=0.1)
    for optimizer in (optax.rmsprop(0.1), optax.sgd(-0.1)):
        with pytest.raises(ValueError, match="give rate="):
            solve(valley(1.9), RodFlow(optimizer), 1.0)


def valley(a):
    """L = (a b - 1)^2/2 at b = 0.03: flow keeps a^2 - b^2, and ends at a^2 + b^2, the sharpness there."""
    net = nets.TwoLayerLinear(in_size=1, width_size=1, scaling=nets.Scaling.standard(), key=jax.random.key(0))
    params = [jnp.full((1, 1), 0.03), jnp.full((1, 1), a)]
    leaves, structure = jax.tree.flatten(nets.partition(net)[0])
    assert len(leaves) == 2
    problem = Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
    start = problem.network(jax.tree.unflatten(structure, params))
    return Problem(start, jnp.ones((1, 1)), jnp.ones((1, 1)))


@pytest.mark.slow
def test_a_start_beyond_the_edge_is_a_result():
    run = solve(valley(3.0), CentralFlow(rate=RATE, max_unstable=1), 1.0, throw=False)
    assert run.result == RESULTS.unstable


def test_the_central_flow_says_that_it_has_no_derivatives():
    """They were NaN, in runs that ended well."""
    loss = lambda a, rate, t: solve(valley(a), CentralFlow(rate=rate, max_unstable=1), t, throw=False)["loss"]
    by = (lambda a: loss(a, RATE, 0.5), lambda rate: loss(1.0, rate, 0.5), lambda t: loss(1.0, RATE, t))
    for function in by:
        with pytest.raises(RuntimeError, match="CentralFlow cannot be differentiated"):
            jax.jvp(function, (jnp.asarray(0.5),), (jnp.ones(()),))
    with pytest.raises(RuntimeError, match="CentralFlow cannot be differentiated"):
        jax.grad(by[0])(0.5)


def test_variances_that_do_not_add_up_are_not_shown(monkeypatch):
    """As a GPU's were, which found zeros for a matrix whose trace is not 0: the run itself does not need them."""
    monkeypatch.setattr(jnp.linalg, "eigvalsh", lambda matrix: jnp.zeros(matrix.shape[:-1], matrix.dtype))
    watched = [observe.loss(), observe.averaged_loss(), observe.oscillation()]
    ts = jnp.linspace(0.0, 3.0, 13)  # so many as in no other test: programs are kept
    run = solve(valley(1.9), CentralFlow(rate=RATE, max_unstable=1), ts, observe=watched)
    swings = np.asarray(run["averaged_loss"] > run["loss"])
    assert 3 < swings.sum() < len(ts)
    np.testing.assert_array_equal(run["oscillation"][:, 0], np.where(swings, np.nan, 0.0))


@pytest.mark.slow
def test_central_flow_is_nearer_to_descent_than_gradient_flow():
    """A tanh network that sharpens: the flow stays at 2/rate, gradient flow does not."""
    problem, ts = sharpening(), jnp.array([0.0, 100.0, 200.0])
    central = solve(
        problem, CentralFlow(rate=RATE), ts, observe=[WEIGHTS, observe.sharpness(), observe.edge_eigenvalues()]
    )
    descent = solve(problem, Descent(optax.sgd(RATE)), ts, observe=WEIGHTS)
    rod = solve(problem, RodFlow(rate=RATE), ts, observe=WEIGHTS)
    flow = solve(problem, GradientFlow(), ts, observe=[WEIGHTS, observe.sharpness()])
    far = np.linalg.norm(descent["parameters"] - flow["parameters"], axis=1)[1:]
    for run, share in ((central, 0.35), (rod, 0.6)):
        assert np.all(np.linalg.norm(descent["parameters"] - run["parameters"], axis=1)[1:] < share * far)
    np.testing.assert_allclose(central["sharpness"][1:], 2 / RATE, rtol=0.02)
    np.testing.assert_allclose(central["edge_eigenvalues"][1:, 0], 1, rtol=0.02)
    cases.assert_fails(lambda: np.testing.assert_allclose(flow["sharpness"][1:], 2 / RATE, rtol=0.02))


@pytest.mark.slow
def test_a_rod_shorter_than_rounding_still_finds_the_edge():
    """Below the edge it shrinks below the unit of rounding of the weights, in float32 within a few steps."""
    problem, rate = sharpening(jnp.float32), 0.2
    ts = rate * jnp.array([0.0, 300.0], jnp.float32)  # where the edge has been passed, it is found late or never
    watched = observe.stability(optax.sgd(rate))
    flow, rod = (
        solve(problem, one, ts, observe=watched)["stability"][-1] for one in (GradientFlow(), RodFlow(rate=rate))
    )
    assert flow > 1.2  # it passes the edge, as the rod would without its rounding
    np.testing.assert_allclose(rod, 1.0, atol=0.1)  # as descent, 0.97


@pytest.mark.slow
@pytest.mark.x64_only
def test_a_network_of_single_precision_beside_a_rate_of_double():
    """The flow of one linear neuron, below the edge: gradient flow."""
    rule, init = nets.Scaling.standard(), nets.Given([[[0.8]], [[0.2]]])

    def loss(dynamics, t, dtype):
        net = nets.TwoLayerLinear(in_size=1, width_size=1, scaling=rule, init=init, key=jax.random.key(0), dtype=dtype)
        return solve(Problem(net, jnp.ones((1, 1), dtype), jnp.ones((1, 1), dtype)), dynamics, t)["loss"]

    found = loss(CentralFlow(rate=0.1), 1.0, jnp.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, loss(GradientFlow(), 1.0, jnp.float64), rtol=5e-3)  # measured: 1e-3
    assert abs(float(found) / loss(GradientFlow(), 1.1, jnp.float64) - 1) > 0.05
