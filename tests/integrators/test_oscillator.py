import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from tests.cases import eps, X64
from tests.inside import responses


TAUS = (1e-6, 0.25, 1.0, 1e4)
TIMES = (1e-6, 0.3, 1.0, 7.0, 1e3)
RATES = (0.0, 1e-9, 0.01, 0.25, 1.0, 1.0 + 1e-9, 30.0, 1e6)  # 0.25 and 1 are critical


@functools.cache
def _exact(k, time, tau, rate):
    """phi_k of the matrix, as a corner of the exponential of a larger one."""
    size = 2 * (k + 1)
    with mpmath.workdps(60):
        t, tau, rate = mpmath.mpf(time), mpmath.mpf(tau), mpmath.mpf(rate)
        larger = mpmath.zeros(size)
        larger[0, 1], larger[1, 0], larger[1, 1] = t / tau, -t * rate, -t / tau
        for row in range(size - 2):
            larger[row, row + 2] = 1
        # Squarings need digits for the growth of e^|Z|, of which nothing is left.
        with mpmath.extradps(40):
            power = mpmath.expm(larger, method="taylor")
        return np.array([[float(power[i, size - 2 + j]) for j in range(2)] for i in range(2)])


def _balanced(entries, tau, rates):
    """In units in which both rows are energies, w sqrt(rate) and p/sqrt(tau): no entry exceeds 1."""
    unit = np.sqrt(np.maximum(rates, 1e-30) * tau)
    return np.array([entries[0], entries[1] * unit, entries[2] / unit, entries[3]])


@functools.cache
def _found(tau, times):
    """Entries, times, k and modes."""
    run = jax.jit(jax.vmap(lambda time: responses(3, time, jnp.asarray(tau), jnp.asarray(RATES))))
    return np.asarray(jnp.stack(run(jnp.asarray(times))))


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("tau", TAUS)
def test_against_matrix_exponentials(k, tau):
    """Over and under-damped, critical, and free; from times within a swing to times long after it."""
    times = [time for time in TIMES if time / tau < 1e4 and time * np.sqrt(max(RATES) / tau) < 1e4]
    rates = np.asarray(jnp.asarray(RATES), float)
    found = _found(tau, tuple(times))[:, :, k]
    number = lambda value: float(jnp.asarray(value))
    for index, time in enumerate(times):
        exact = [_exact(k, number(time), number(tau), rate) for rate in rates]
        expected = np.stack([[matrix[i, j] for matrix in exact] for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))])
        a, b = _balanced(found[:, index], tau, rates), _balanced(expected, tau, rates)
        # A swing is known as well as its phase.
        phase = 1 + time * np.sqrt(rates / tau)
        bound = eps(30) * phase
        assert np.all(np.abs(a - b)[:, 1:] < bound[1:]), (time, (np.abs(a - b)[:, 1:] / bound[1:]).max())
        np.testing.assert_allclose(found[:2, index, 0], expected[:2, 0], rtol=eps(30), atol=eps(30))
        free = _balanced(np.repeat(expected[:, :1], rates.size, axis=1), tau, rates)  # the rates are left out
        assert np.any(np.abs(a - free)[:, 1:] > bound[1:])


def test_swings_at_the_border_of_the_series():
    """Where XLA rounds |z| = 2, or half of the difference 1, in different ways in one program."""
    taus, shares = (grid.ravel() for grid in np.meshgrid(np.geomspace(0.25, 25.0, 30), np.linspace(0.3, 3.7, 30)))
    times = shares * taus  # |z|^2 is rate time^2 / tau
    run = jax.jit(jax.vmap(lambda *mode: jnp.stack(responses(2, *mode))))
    at = lambda size: run(*(jnp.asarray(v) for v in (times, taus, (size * taus / times**2)[:, None])))
    for size in (4.0, 1.0 + shares**2 / 4):  # of |z|^2; half of the difference is the root of the second, less x^2
        found, near = at(size), at(size * (1 - eps(1e4)))
        np.testing.assert_allclose(found, near, rtol=eps(1e6), atol=eps(1e6) * np.max(np.abs(near)))


@pytest.mark.skipif(not X64, reason="differences in double precision")
def test_derivative_in_time():
    """d/dt exp(Z) = Z/t exp(Z), also where both eigenvalues are equal."""
    tau, rates = jnp.asarray(0.5), jnp.asarray(RATES)
    exponential = lambda t: jax.tree.map(lambda entry: entry[0], responses(1, t, tau, rates))
    value, slope = jax.jvp(exponential, (jnp.asarray(0.7),), (jnp.asarray(1.0),))
    np.testing.assert_allclose(slope.w_to_w, value.w_to_p / tau, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(slope.p_to_p, -rates * value.p_to_w - value.p_to_p / tau, rtol=1e-11, atol=1e-13)
