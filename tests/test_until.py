"""The conditions by themselves; tests/dynamics shows that runs stop at them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxsolve import Descent, GradientFlow, result_names, solve, until, View
from jaxsolve._results import result_code
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
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), [0.1, 0.2]])
@pytest.mark.usefixtures("as_users")
def test_bad_thresholds(condition, bad):
    with pytest.raises(ValueError, match=r"(threshold|fraction) must be one number > 0, got"):
        condition(bad)


class _NearZero(until.AbstractCondition):
    size: float

    def value(self, view):
        return jnp.max(jnp.abs(view.params.w)) - self.size


@pytest.mark.parametrize(
    ("dynamics", "tolerance"), [(GradientFlow, 1e-5), (lambda until: Descent(optax.sgd, 0.01, until=until), 0.02)]
)
def test_a_condition_of_ones_own(dynamics, tolerance):
    """w = 3 exp(-2 t) is 0.3 at t = log(10)/2."""
    trajectory = solve(cases.modes([3.0], [2.0]), dynamics(until=_NearZero(0.3)), [0.0, jnp.inf])
    assert str(result_names(result_code(trajectory.result))) == "event"
    np.testing.assert_allclose(trajectory.t_end, np.log(10) / 2, rtol=tolerance)
    np.testing.assert_allclose(trajectory.final.params.w, 0.3, rtol=1e-6 if dynamics is GradientFlow else 0.02)
