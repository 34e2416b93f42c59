"""The flows of the edge where they are known: one eigenvalue there, which holds for good, and quadratics.

With one eigenvalue S at the edge the central flow is gradient flow without what would raise S, and the variance of the
oscillation is s = -2 <grad L, grad S>/|grad S|^2. On a quadratic both parts of a rod are exponentials.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import solve_ivp

from jaxsolve import CentralFlow, Descent, nets, observe, Problem, RESULTS, RodFlow, solve
from tests import cases


RATE = 0.5
CURVATURES = np.array([3.8, 4.2])  # of a quadratic, below and beyond the edge
KNOWN = ("oscillation", "averaged_loss", "averaged_squared_gradient")
WEIGHTS = observe.parameters()
WATCHED = [WEIGHTS, *(getattr(observe, name)() for name in KNOWN)]
TS = np.array([0.0, 0.3, 1.0, 1.5, 2.0, 3.0])  # the edge is reached at 0.60


def valleys(*starts):
    """L = sum_i (a_i b_i - 1)^2/2 from b = 0.03: flow keeps a^2 - b^2, and ends at curvatures a^2 + b^2."""
    n = len(starts)
    net = nets.Function(lambda p, x: (p[0] * p[1] @ x)[None], jnp.array([starts, (0.03,) * n], float))
    return Problem(net, n**0.5 * jnp.eye(n), n**0.5 * jnp.ones((n, 1)))


def look(w):
    """Gradient, largest eigenvalue of the Hessian, and its gradient, of one valley."""
    a, b = w
    hessian = np.array([[b * b, 2 * a * b - 1], [2 * a * b - 1, a * a]])
    values, vectors = np.linalg.eigh(hessian)
    u = vectors[:, 1]
    third = np.array([[[0, 2 * b], [2 * b, 2 * a]], [[2 * b, 2 * a], [2 * a, 0]]])
    return (a * b - 1) * np.array([b, a]), values[1], np.einsum("kij,i,j->k", third, u, u)


def variance(w):
    gradient, _, rise = look(w)
    return -2 * gradient @ rise / (rise @ rise)


@functools.cache
def exact(pushed=1.0, doubled=1.0):
    """By SciPy; `pushed` and `doubled` multiply what the oscillation does to the weights, and its variance."""
    at_edge = lambda t, w: look(w)[1] - 2 / RATE
    at_edge.terminal = True  # pyright: ignore
    free = lambda t, w: -look(w)[0]
    held = lambda t, w: free(t, w) - pushed * variance(w) / 2 * look(w)[2]
    run = functools.partial(solve_ivp, method="DOP853", rtol=1e-12, atol=1e-13, dense_output=True)
    before = run(free, (0, TS[-1]), np.array([1.9, 0.03]), events=at_edge)
    meets = before.t[-1]
    after = run(held, (meets, TS[-1]), before.y[:, -1])
    w = np.array([(before if t < meets else after).sol(t) for t in TS])
    s = np.array([doubled * variance(one) * (t > meets) for t, one in zip(TS, w, strict=True)])
    gradients, tops = (np.array([look(one)[i] for one in w]) for i in (0, 1))
    loss, square = (w[:, 0] * w[:, 1] - 1) ** 2 / 2, np.sum(gradients**2, axis=1)
    return {"parameters": w, "oscillation": s, "averaged_loss": loss + s * tops / 2,
            "averaged_squared_gradient": square + s * tops**2}  # fmt: skip


@functools.cache
def central(rtol=None):
    """The run at a rate that is traced."""
    make = lambda rate: CentralFlow(rate=rate, max_unstable=1, rtol=rtol)
    return jax.jit(lambda rate: solve(valleys(1.9), make(rate), TS, observe=WATCHED, throw=False))


@functools.cache
def rod():
    ts = RATE * np.array([0.0, 1.0, 3.0, 8.0])
    return jax.jit(
        lambda rate: solve(cases.modes([1.0, 1.0], CURVATURES), RodFlow(rate=rate), ts, observe=WATCHED, throw=False)
    )


def off(run, expected):
    found = {name: run[name] if run[name].ndim == expected[name].ndim else run[name][:, 0] for name in expected}
    return {name: float(np.abs(found[name] - expected[name])[1:].max()) for name in expected}


@pytest.mark.x64_only
def test_one_eigenvalue_at_the_edge_is_as_in_closed_form():
    """Right after the edge is reached the errors are largest: it is reached within a step of descent."""
    limits = {"parameters": 2e-3, "oscillation": 4e-3, "averaged_loss": 8e-3, "averaged_squared_gradient": 6e-2}
    run = central()(RATE)
    check = lambda expected: [np.testing.assert_array_less(off(run, expected)[name], limits[name]) for name in limits]
    check(exact())  # measured: 3.9e-4, 7.8e-4, 1.6e-3 and 1.3e-2
    for name, twin in (("parameters", exact(pushed=0.0)), *((name, exact(doubled=0.0)) for name in KNOWN)):
        assert off(run, twin)[name] > 2 * limits[name], name  # without the oscillation


@pytest.mark.slow
@pytest.mark.x64_only
def test_the_order_of_the_steps():
    runs = [central(rtol)(RATE) for rtol in (1e-3, 1e-4, 1e-5, 1e-6)]
    steps, errors = np.array([(run.stats.steps, off(run, exact())["parameters"]) for run in runs]).T
    order = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert 1.7 < order < 2.7  # measured: 2.2


@pytest.mark.slow
@pytest.mark.x64_only
def test_more_eigenvalues_at_the_edge_than_are_held_end_the_run():
    """Two come there. Room for both serves, and holds both."""
    problem = valleys(1.95, 1.9)
    run = lambda held: solve(
        problem, CentralFlow(rate=RATE, max_unstable=held), 3.0, observe=observe.edge_eigenvalues(), throw=False
    )
    assert run(1).result == RESULTS.unstable
    both = run(2)
    assert both.result == RESULTS.successful
    np.testing.assert_allclose(both["edge_eigenvalues"], 1, rtol=1e-3)


@pytest.mark.x64_only
def test_a_rod_on_a_quadratic_is_as_in_closed_form():
    """m = exp(-S t), d = -r S/2 exp((S - 2/r) t), which shrinks below the edge and grows beyond it. Twin: 1/r.

    Near the edge it is the oscillation of descent, a quarter of the second difference of its iterates.
    """
    run = rod()(RATE)

    def expected(edge):
        m = np.exp(-np.outer(run.ts, CURVATURES))
        d = -RATE * CURVATURES / 2 * np.exp(np.outer(run.ts, CURVATURES - edge))
        squares = m**2 + d**2
        return {"parameters": m, "oscillation": np.sum(d**2, 1), "averaged_loss": squares @ CURVATURES / 2,
                "averaged_squared_gradient": squares @ CURVATURES**2}  # fmt: skip

    def check(edge):
        known = expected(edge)
        for name, limit in {"parameters": 4e-3, **dict.fromkeys(KNOWN, 1e-3)}.items():
            assert off(run, known)[name] < limit * np.abs(known[name]).max(), name

    check(2 / RATE)  # measured: at most 4e-4 and 1.2e-4
    cases.assert_fails(lambda: check(1 / RATE))
    descent = solve(
        cases.modes([1.0, 1.0], CURVATURES), Descent(optax.sgd(RATE)), RATE * np.arange(10), observe=WEIGHTS
    )
    w = np.asarray(descent["parameters"])
    swings = np.sum(((w[2:] - 2 * w[1:-1] + w[:-2]) / 4) ** 2, axis=1)
    np.testing.assert_allclose(swings[[0, 2, 7]], run["oscillation"][1:, 0], rtol=0.3)  # measured: 0.03, 0.08, 0.15


@pytest.mark.x64_only
@pytest.mark.parametrize("make", [central, rod])
def test_a_rate_that_is_traced_and_bad_is_invalid(make):
    for rate in (-0.2, np.nan, np.inf, 0.0):
        assert make()(rate).result == RESULTS.invalid
    assert make()(RATE).result == RESULTS.successful


@pytest.mark.usefixtures("as_users")
def test_bad_numbers():
    with pytest.raises(ValueError, match="max_unstable must be an integer >= 1, got 0"):
        CentralFlow(rate=0.1, max_unstable=0)
    for make in (lambda rate: RodFlow(rate=rate), lambda rate: CentralFlow(rate=rate)):
        with pytest.raises(ValueError, match="rate must be one finite number > 0, got -0.1"):
            make(-0.1)
