"""The edge flow: its threshold, a toy in closed form, and pair means of descent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxsolve import Descent, EdgeFlow, GradientFlow, nets, observe, Problem, RESULTS, RodFlow, solve
from tests import cases


@pytest.mark.x64_only
def test_the_swing_grows_at_its_rate():
    """x = x_0 exp((S - 2/r) t) on a quadratic, along the larger curvature. It starts with the first step of descent."""
    watched, ts = [observe.oscillation(), observe.edge_eigenvalues()], np.array([100.0, 200.0])
    for share in (1 - 1e-3, 1 + 1e-3):
        top = 2 * share
        run = solve(cases.modes([1.0, 1.0], [top, 0.5]), EdgeFlow(rate=1.0), ts, observe=watched)
        before, after = np.asarray(run["oscillation"])[:, 0]
        assert (after > before) == (share > 1)
        np.testing.assert_allclose(np.log(after / before), 2 * (top - 2) * 100, rtol=1e-3)
        np.testing.assert_allclose(run["edge_eigenvalues"][:, 0], share, rtol=1e-6)


def quartic(a, b):
    """L = (a b)^2/2."""
    net = nets.Function(lambda params, x: params[0] * params[1] * x, (jnp.asarray(a), jnp.asarray(b)))
    return Problem(net, jnp.ones((1, 1)), jnp.zeros((1, 1)))


def test_on_a_quartic_toy_a_quantity_is_conserved():
    """The sharpness b^2 falls from beyond the edge to the b^2 of the same b^2/2 - (2/r) ln b. Twin: gradient flow."""
    rate, start = 0.5, 2.2
    kept = lambda b: b**2 / 2 - 2 / rate * np.log(b)
    low, high = 0.5, (2 / rate) ** 0.5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if kept(middle) < kept(start) else (middle, high)
    check = lambda run: np.testing.assert_allclose(run["parameters"][-1, 1], low, rtol=2e-3)
    run = lambda flow: solve(quartic(1e-3, start), flow, [40.0], observe=observe.parameters())
    check(run(EdgeFlow(rate=rate)))
    cases.assert_fails(lambda: check(run(GradientFlow())))


@pytest.mark.slow
@pytest.mark.x64_only
def test_pair_means_of_descent():
    """As near as the rod, and nearer than gradient flow by far."""
    problem, rate = cases.sharpening(4, 7, 30, 1), 0.4
    pairs = cases.pairs(problem, Descent(optax.sgd(rate)), np.array([50, 200, 499]))
    edge = pairs.off(EdgeFlow(rate=rate), problem)
    np.testing.assert_allclose(edge, [0.043, 0.079, 0.067], atol=0.01)
    np.testing.assert_allclose(edge, pairs.off(RodFlow(rate=rate), problem), atol=0.02)
    assert np.all(pairs.off(GradientFlow(), problem)[1:] > 3 * edge[1:])


def test_what_is_refused():
    with pytest.raises(ValueError, match="exactly one"):
        EdgeFlow()
    assert EdgeFlow(optax.sgd(0.1)).rate == EdgeFlow(rate=0.1).rate
    with pytest.raises(ValueError, match="edge flow is known for gradient descent"):
        solve(quartic(0.1, 1.0), EdgeFlow(optax.adam(0.1)), 1.0)
    result = jax.jit(lambda rate: solve(quartic(0.1, 1.0), EdgeFlow(rate=rate), 1.0, throw=False).result)(-1.0)
    assert result == RESULTS.invalid
