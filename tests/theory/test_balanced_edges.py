"""Where a lambda-balanced start is hard: weak directions beside strong ones, and saddles that it leaves by rounding."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.theory import Balanced
from tests.linear_cases import aligned, errors, whitened


CLOSED = Balanced()
TS = jnp.array([1.0, 5.0, 10.0, 15.0, 20.0, 30.0])
SADDLE = "starts at a saddle or falls towards one"
TIGHT = js.GradientFlow(diffrax.Dopri8(), rtol=1e-12, atol=1e-16, land_on_ts=True)


def turned(first, last, targets):
    """Two layers between random frames, on whitened inputs of second moment 1."""
    rng = np.random.default_rng(0)
    into, hidden, out = (np.linalg.qr(rng.normal(size=(len(m), len(m))))[0] for m in (targets.T, first, targets))
    weights = [jnp.asarray(hidden @ first @ into.T, float), jnp.asarray(out @ last @ hidden.T, float)]
    scaling = js.nets.Scaling(multiplier=[1.0] * 2, sigma=[1.0] * 2, eta=[1.0] * 2)
    net = js.nets.TwoLayerLinear(
        in_size=len(into),
        out_size=len(out),
        width_size=len(hidden),
        scaling=scaling,
        init=js.nets.Given(weights),
        key=jax.random.key(0),
    )
    x = whitened(0, len(into) + 2, len(into), len(into), size=1.0)
    return js.Problem(net, x, x @ jnp.asarray(out @ targets @ into.T, float).T)


@pytest.mark.slow
@pytest.mark.x64_only
def test_a_weak_mode_needs_no_balance_of_its_own():
    # Of 1e-7 and 2e-7: 4e-14 of all weights. It rises from t = 10 to 20. (With 1e-5 the check says no: 1e-10.)
    uneven = turned(np.diag([1.0, 1e-7]), np.diag([1.0, 2e-7]), np.diag([1.2, 1.0]))
    assert bool(CLOSED.check(uneven).exact)
    assert max(errors(uneven, CLOSED, TS, reference=TIGHT).values()) < 2e-9  # measured: 1.8e-10
    assert not bool(CLOSED.check(turned(np.diag([1.0, 1e-5]), np.diag([1.0, 2e-5]), np.diag([1.2, 1.0]))).exact)


@pytest.mark.x64_only
@pytest.mark.parametrize(("size", "measured"), [(1e-2, 6e-12), (1e-6, 4.3e-10)])
def test_weak_generic_directions(size, measured):
    block = np.eye(3)
    block[1:, 1:] = size * np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    problem = turned(np.diag([1.0, size, size]), block, np.diag([1.2, 1.0, 0.8]))
    assert max(errors(problem, CLOSED, TS, reference=TIGHT).values()) < 10 * measured


@pytest.mark.x64_only
def test_a_mode_that_opposes_its_target_leaves_the_saddle_as_integrations_do():
    """In 30 to 50 units of time, when rounding has grown; before and after that to the last digits."""
    problem = aligned(0, (3, 3, 3), strengths=[[1.3, 0.5, 0.7]], targets=[0.4, -2.0, 0.3], gamma=-0.7)
    assert bool(CLOSED.check(problem).exact)
    assert js.exact(problem) == CLOSED
    others = (js.theory.DeepBalanced(), js.theory.DecoupledModes())
    assert all(SADDLE in form.check(problem).missed() for form in others)
    ends = jnp.array([10.0, 25.0, 100.0])
    assert max(errors(problem, CLOSED, ends, reference=TIGHT).values()) < 4e-12  # measured: 4e-13
    loss = js.solve(problem, CLOSED, ends, observe=js.observe.loss())["loss"]
    assert loss[1] > 0.1 > 1e-20 > loss[2]


def single(first, last):
    problem = turned(np.array(first), np.array(last), np.diag([1.2, 1.0]))
    return jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, problem)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(([[0.6, 0], [0, 0.6]], [[0.6, 0], [0, -0.6]]), id="opposed"),
        pytest.param(([[0.6, 0.8], [0, 0]], [[0.6, 0], [0.8, 0]]), id="parallel"),
        pytest.param(([[1, 0], [0, 0]], [[1, 0], [0, 0]]), id="dead"),
    ],
)
def test_single_precision_refuses_saddles(start):
    assert SADDLE in CLOSED.check(single(*start)).missed()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(([[0.6, 0], [0, 0.03]], [[0.6, 0], [0, 0.03]]), id="weak"),
        pytest.param(([[0.6, 0.8]], [[0.6], [0.8]]), id="one hidden unit"),
        pytest.param(([[0, 0], [0, 0]], [[0, 0], [0, 0]]), id="zeros"),
    ],
)
def test_single_precision_takes_weak_narrow_and_zero_starts(start):
    assert bool(CLOSED.check(single(*start)).exact)


def test_zeros_stay():
    outputs = CLOSED.at(single(np.zeros((2, 2)), np.zeros((2, 2))), jnp.asarray(jnp.inf)).outputs
    assert float(jnp.max(jnp.abs(outputs))) == 0
