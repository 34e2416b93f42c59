"""Where a lambda-balanced start ends: weak directions beside strong ones, and saddles that rounding makes it leave."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.theory import Balanced
from tests.linear_cases import aligned, errors, whitened


CLOSED = Balanced()
TS = jnp.array([0.0, 0.1, 1.0, 3.0, 10.0])


def turned(first, last, targets):
    """Two layers between random frames, on whitened inputs of second moment 1."""
    rng = np.random.default_rng(0)
    into, hidden, out = (np.linalg.qr(rng.normal(size=(len(m), len(m))))[0] for m in (targets.T, first, targets))
    weights = [jnp.asarray(hidden @ first @ into.T, float), jnp.asarray(out @ last @ hidden.T, float)]
    scaling = js.nets.Scaling(multiplier=[1.0] * 2, sigma=[1.0] * 2, eta=[1.0] * 2)
    net = js.nets.TwoLayerLinear(
        len(into), len(hidden), len(out), scaling=scaling, init=js.nets.Given(weights), key=jax.random.key(0)
    )
    x = whitened(0, len(into) + 2, len(into), len(into), size=1.0)
    return js.Problem(net, x, x @ jnp.asarray(out @ targets @ into.T, float).T)


TARGET = np.diag([1.2, 1.0])


@pytest.mark.x64_only
@pytest.mark.parametrize("weak", [1e-3, 1e-7])
def test_a_strong_direction_hides_no_weak_one(weak):
    # Relative to all weights the second direction is unbalanced by 4e-14 only, at 1e-7; it ends off by O(1) at t = 10.
    uneven = turned(np.diag([1.0, weak]), np.diag([1.0, 2 * weak]), TARGET)
    assert "layers are lambda-balanced (violation 0." in CLOSED.check(uneven).missed()


@pytest.mark.x64_only
def test_weak_generic_directions_are_solved():
    rng = np.random.default_rng(1)
    block = np.eye(3)
    block[1:, 1:] = 1e-2 * np.linalg.qr(rng.normal(size=(2, 2)))[0]
    problem = turned(np.diag([1.0, 1e-2, 1e-2]), block, np.diag([1.2, 1.0, 0.8]))
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 1e-8


@pytest.mark.parametrize("strength", [0.5, 0.0])
def test_a_saddle_that_rounding_leaves_is_refused(strength):
    # The second mode opposes its target, or is rounding only: when it leaves the saddle depends on the last digits.
    options = dict(targets=[0.4, -2.0, 0.3], gamma=-0.7)
    assert (
        "falls towards one" in CLOSED.check(aligned(0, (3, 3, 3), strengths=[[1.3, strength, 0.7]], **options)).missed()
    )
    started = aligned(0, (3, 3, 3), strengths=[[1.3, -0.5, 0.7]], targets=[-0.4, 2.0, -0.3], gamma=-0.7)
    assert bool(CLOSED.check(started).exact)


def test_parallel_starts_for_two_targets_are_refused_and_narrow_layers_are_not():
    one = np.array([[0.6, 0.8]])
    idle = np.zeros((1, 2))
    # Both modes start, but in one hidden direction: the other stays at zero, until rounding wakes it.
    parallel = turned(np.concatenate([one, idle]), np.concatenate([one, idle]).T, TARGET)
    assert "starts at a saddle" in CLOSED.check(parallel).missed()
    assert bool(CLOSED.check(turned(one, one.T, TARGET)).exact)


def test_zeros_stay():
    nothing = turned(np.zeros((2, 2)), np.zeros((2, 2)), TARGET)
    assert bool(CLOSED.check(nothing).exact)
    assert float(jnp.max(jnp.abs(CLOSED.at(nothing, jnp.asarray(jnp.inf)).outputs))) == 0
