"""The conditions by themselves; tests/dynamics shows that runs stop at them."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, GradientFlow, losses, nets, Problem, RESULTS, solve, until, View
from tests import cases


def _view(weight, problem=None):
    problem = cases.modes([3.0], [2.0]) if problem is None else problem
    params = eqx.tree_at(lambda p: p.w, problem.params, jnp.full((1, 1), weight))
    return View(problem, jnp.zeros(()), params)


def test_loss_below_is_what_is_left_to_lose():
    """L = w^2 for the rate 2."""
    np.testing.assert_allclose(until.loss_below(0.3).value(_view(2.0)), 4.0 - 0.3, rtol=cases.eps(4))
    np.testing.assert_allclose(until.loss_below(0.3).value(_view(0.5)), 0.25 - 0.3, rtol=cases.eps(20))


def test_loss_fraction_is_of_the_start():
    np.testing.assert_allclose(until.loss_fraction(0.1).value(_view(2.0)), 4.0 - 0.1 * 9.0, rtol=cases.eps(4))
    np.testing.assert_allclose(until.loss_fraction(0.1).value(_view(0.5)), 0.25 - 0.1 * 9.0, rtol=cases.eps(20))


@pytest.mark.parametrize("condition", [until.loss_below, until.loss_fraction])
def test_thresholds_are_traced(condition):
    value = lambda threshold: condition(threshold).value(_view(2.0))
    thresholds = jnp.array([0.1, 0.2, 3.0])
    batched = jax.jit(jax.vmap(value))(thresholds)
    np.testing.assert_allclose(batched, [value(float(t)) for t in thresholds], rtol=cases.eps(4))
    np.testing.assert_allclose(jax.grad(value)(0.2), -1.0 if condition is until.loss_below else -9.0, rtol=cases.eps(4))


@pytest.mark.parametrize("condition", [until.loss_below, until.loss_fraction])
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), [0.1, 0.2]])
@pytest.mark.usefixtures("as_users")
def test_bad_thresholds(condition, bad):
    with pytest.raises(ValueError, match=r"(threshold|fraction) must be one finite number > 0, got"):
        condition(bad)


@pytest.mark.usefixtures("as_users")
def test_several_thresholds_are_refused_inside_a_trace_too():
    with pytest.raises(ValueError, match="threshold must be one finite number > 0, got an array"):
        jax.eval_shape(until.loss_below, jnp.ones(2))


# Margins


def _margins(y, *, loss=None):
    """Two outputs of two samples, f = 3 x 1 and 3 x (-2)."""
    net = cases.Linear(jnp.full((2, 1), 3.0))
    return Problem(net, jnp.array([[1.0], [-2.0]]), jnp.asarray(y), loss=losses.Hinge() if loss is None else loss)


def test_margin_above_is_of_the_worst_output():
    view = lambda y: View(_margins(y), jnp.zeros(()), _margins(y).params)
    np.testing.assert_allclose(until.margin_above().value(view([[1.0, 1.0], [-1.0, -1.0]])), 1 - 3, rtol=cases.eps(4))
    np.testing.assert_allclose(until.margin_above(2.5).value(view([[1.0, 1.0], [-1.0, 1.0]])), 8.5, rtol=cases.eps(4))
    np.testing.assert_allclose(until.margin_above(-1.0).value(view([[-1.0, 1.0], [-1.0, -1.0]])), 2, rtol=cases.eps(4))


def test_margin_thresholds_are_traced():
    view = View(_margins([[1.0, 1.0], [-1.0, -1.0]]), jnp.zeros(()), _margins([[1.0, 1.0], [-1.0, -1.0]]).params)
    value = lambda threshold: until.margin_above(threshold).value(view)
    np.testing.assert_allclose(jax.jit(jax.vmap(value))(jnp.array([0.5, 1.0])), [-2.5, -2.0], rtol=cases.eps(4))
    np.testing.assert_allclose(jax.grad(value)(0.5), 1.0)


@pytest.mark.usefixtures("as_users")
def test_margins_of_what():
    bad_ones: list[Any] = [float("nan"), float("inf"), [0.5, 1.0]]
    for bad in bad_ones:
        with pytest.raises(ValueError, match="threshold must be one finite number, got"):
            until.margin_above(bad)
    problem = _margins([[0.5, 1.0], [-1.0, -1.0]], loss=losses.MSE())
    message = r"margin_above needs targets -1 or \+1, got values \[-1.0, 0.5, 1.0\]"
    flow = GradientFlow(until=until.margin_above(10.0))
    with pytest.raises(ValueError, match=message):
        solve(problem, flow, 1.0)
    result = jax.jit(lambda p: solve(p, flow, 1.0).result)  # in a trace nothing raises
    assert result(problem) == RESULTS.invalid
    assert result(_margins([[1.0, 1.0], [-1.0, -1.0]], loss=losses.MSE())) == RESULTS.max_time


@pytest.mark.usefixtures("as_users")
def test_thresholds_that_are_no_numbers():
    bad: Any = "1"
    for condition in (until.loss_below, until.loss_fraction, until.margin_above):
        with pytest.raises(TypeError, match="(threshold|fraction) must be one .*number.*, got str '1'"):
            condition(bad)


def _two_samples():
    """Two samples at an angle of cosine c < 0 in a linear model, hinge, and the times of Geiger et al. 2020.

    Both margins grow at (1 + c)/2 until the first is 1. It would then be pushed below 1 by the second, so it slides
    along: its weight in the gradient is -c, between 0 and 1, and the second margin grows at (1 - c^2)/2.
    """
    c, margins = -0.6, np.array([0.4, -1.5])
    x = np.array([[1.0, 0.0], [c, np.sqrt(1 - c**2)]])
    problem = Problem(
        cases.Linear(jnp.asarray(np.linalg.solve(x, margins))[None]),
        jnp.asarray(x),
        jnp.ones((2, 1)),
        loss=losses.Hinge(),
    )
    slides = 2 * (1 - margins[0]) / (1 + c)
    late = 1 - (margins[1] + 1 - margins[0])  # what the second has still to go
    half = slides + (late - np.mean(1 - margins)) * 2 / (1 - c**2)
    return problem, half, slides + 2 * late / (1 - c**2)


@pytest.mark.x64_only
def test_sliding_along_a_margin():
    """Steps jump over the kink and back, so that rtol is per step: t_2 is as exact, and steps grow like 1/rtol."""
    problem, half, end = _two_samples()
    steps = []
    for rtol in (1e-3, 1e-4):
        flow = GradientFlow(diffrax.Tsit5(), rtol=rtol, atol=1e-2 * rtol, until=until.margin_above())
        run = solve(problem, flow, [0.0, half, jnp.inf])
        assert run.result == RESULTS.event
        assert jnp.min(problem.y * run.final.outputs) >= 1 - 1e-9
        # On which side of the kink a step ends is decided by rounding: measured up to 12 rtol.
        np.testing.assert_allclose(run.t_end, end, rtol=20 * rtol)
        np.testing.assert_allclose(run["loss"][1], run["loss"][0] / 2, rtol=5 * rtol)
        steps.append(int(run.stats.steps))
    assert steps[1] < 1000
    assert 5 < steps[1] / steps[0] < 20


@pytest.mark.slow
@pytest.mark.x64_only
def test_a_network_reaches_all_margins_in_finite_time():
    """Ten samples in general position, more of which slide the later it is."""
    keys = jr.split(jr.key(2), 3)
    net = nets.MLP(
        in_size=5, out_size=1, width_size=16, depth=1, activation="relu", scaling=nets.Scaling.ntk(), key=keys[0]
    )
    y = jnp.sign(jr.normal(keys[1], (10, 1)))
    problem = Problem(net, jr.normal(keys[2], (10, 5)), y, loss=losses.Hinge(), centered=True)
    flow = lambda condition: GradientFlow(diffrax.Tsit5(), rtol=1e-3, atol=1e-5, until=condition, max_steps=1000)
    half = solve(problem, flow(until.loss_fraction(0.5)), [0.0, jnp.inf])
    end = solve(problem, flow(until.margin_above()), [0.0, half.t_end, jnp.inf])
    assert half.result == RESULTS.event
    assert end.result == RESULTS.event
    np.testing.assert_allclose(half.final.loss, 0.5, rtol=1e-9)
    np.testing.assert_allclose(end["loss"], [1.0, 0.5, 0.0], rtol=0, atol=1e-2)
    assert end.final.loss < 1e-9
    assert jnp.min(problem.y * end.final.outputs) >= 1 - 1e-9
    assert half.t_end < end.t_end


class _NearZero(until.AbstractCondition):
    size: float

    def value(self, view):
        return jnp.max(jnp.abs(view.params.w)) - self.size


@pytest.mark.parametrize(
    ("dynamics", "tolerance"), [(GradientFlow, 1e-5), (lambda until: Descent(optax.sgd(0.01), until=until), 0.02)]
)
def test_a_condition_of_ones_own(dynamics, tolerance):
    """w = 3 exp(-2 t) is 0.3 at t = log(10)/2."""
    trajectory = solve(cases.modes([3.0], [2.0]), dynamics(until=_NearZero(0.3)), [0.0, jnp.inf])
    assert trajectory.result == RESULTS.event
    np.testing.assert_allclose(trajectory.t_end, np.log(10) / 2, rtol=tolerance)
    np.testing.assert_allclose(trajectory.final.params.w, 0.3, rtol=1e-6 if dynamics is GradientFlow else 0.02)


class _SomeAbove(until.AbstractCondition):
    def value(self, view):
        return 2.0 - view.outputs.max(axis=0)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("dynamics", [GradientFlow, lambda until: Descent(optax.sgd(0.01), until=until)])
def test_a_condition_is_of_one_number(dynamics):
    with pytest.raises(ValueError, match=r"the value of a condition must be one number, got an array of shape \(1,\)"):
        solve(cases.modes([3.0], [2.0]), dynamics(until=_SomeAbove()), [1.0])
