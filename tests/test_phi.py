import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests import cases
from tests.inside import finite_product, integrated_decay, phi


SIZES = np.concatenate([[0.0], np.geomspace(1e-20, 1e5, 60), np.linspace(1.9, 2.1, 11)])
ARGUMENTS = np.concatenate([-SIZES, SIZES[SIZES < 80]])


def _exact(k: int, z: float):
    with mpmath.workdps(40):
        return mpmath.hyp1f1(1, k + 1, z) / mpmath.factorial(k)


def _worst(found, exact) -> float:
    """The largest relative error in units of rounding."""
    with mpmath.workdps(40):
        errors = [abs((mpmath.mpf(float(a)) - b) / b) for a, b in zip(found, exact, strict=True)]
    return float(max(errors)) / cases.eps()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_phi_and_its_derivative_are_correct_to_rounding(k):
    z = jnp.asarray(ARGUMENTS, float)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda point: phi(k, point))))(z)
    exact = [_exact(k, float(point)) for point in z]
    with mpmath.workdps(40):
        slope = [_exact(k, float(point)) - k * _exact(k + 1, float(point)) for point in z]
        off = [_exact(k + 1, float(point)) for point in z]
    assert _worst(values, exact) < 4  # measured: 1.6
    assert _worst(slopes, slope) < 30  # measured: 8.6
    cases.assert_fails(lambda: np.testing.assert_array_less(_worst(values, off), 4))


def test_the_recursion_that_defines_them():
    z = jnp.asarray([-3.0, -30.0, -0.5], float)
    np.testing.assert_allclose(phi(0, z), np.exp(np.asarray(z)), rtol=cases.eps(4))
    for k in range(3):
        np.testing.assert_allclose(phi(k + 1, z) * z, phi(k, z) - 1 / math.factorial(k), rtol=cases.eps(50))


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_limits(k):
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda z: phi(k, z))))(jnp.array([-jnp.inf, 0.0]))
    assert values[0] == slopes[0] == 0
    np.testing.assert_allclose(values[1], 1 / math.factorial(k), rtol=cases.eps(2))
    np.testing.assert_allclose(slopes[1], 1 / math.factorial(k + 1), rtol=cases.eps(4))


@settings(max_examples=50, deadline=None)
@given(st.floats(-12, 12), st.floats(-12, 12))
def test_integrated_decay(log_rate, log_t):
    rate, t = (jnp.asarray(10.0**power, float) for power in (log_rate, log_t))
    with mpmath.workdps(40):
        a, b = mpmath.mpf(float(rate)), mpmath.mpf(float(t))
        exact = -mpmath.expm1(-a * b) / a
    np.testing.assert_allclose(integrated_decay(rate, t), float(exact), rtol=cases.eps(5))
    growth = float(b - exact)
    cases.assert_fails(lambda: np.testing.assert_allclose(integrated_decay(rate, t), growth, rtol=cases.eps(5)))


def test_integrated_decay_at_its_limits():
    slopes = jax.jit(jax.vmap(jax.grad(integrated_decay, (0, 1))))
    rate, t = jnp.array([0.0, 2.0, 0.0, 2.0]), jnp.array([3.0, jnp.inf, 0.0, 0.0])
    np.testing.assert_allclose(integrated_decay(rate, t), [3.0, 0.5, 0.0, 0.0], rtol=cases.eps(2))
    by_rate, by_t = slopes(rate, t)
    np.testing.assert_allclose(by_rate, [-4.5, -0.25, 0.0, 0.0], rtol=cases.eps(8))
    np.testing.assert_allclose(by_t, [1.0, 0.0, 1.0, 1.0], rtol=cases.eps(2))
    assert integrated_decay(jnp.zeros(()), jnp.asarray(jnp.inf)) == jnp.inf
    tiny = jnp.asarray(1e-300 if cases.X64 else 1e-37)
    np.testing.assert_allclose(jax.grad(integrated_decay)(tiny, jnp.asarray(2.0)), -2.0, rtol=cases.eps(4))


def test_finite_product():
    rate, t = jnp.array([0.0, 3.0, 3.0, 0.0]), jnp.array([jnp.inf, jnp.inf, 2.0, 2.0])
    product = finite_product(rate, t)
    assert np.all(np.isfinite(product))
    assert product[0] == product[3] == 0
    assert product[2] == 6
    assert np.exp(-product[1]) == 0
