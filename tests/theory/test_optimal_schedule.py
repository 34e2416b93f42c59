"""Optimal learning rates of online SGD: against a minimizer that knows no formula, and against usual schedules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxsolve as js
from tests import cases


SIZE, STEPS, BATCH, NOISE = 50, 100, 4, 0.1
EIGENVALUES, ERRORS = np.arange(1, SIZE + 1) ** -1.5, np.arange(1, SIZE + 1) ** -1.2
MODES, FEW = slice(0, 5), 4  # for what is compared in detail


def _optimal(noise: Any = NOISE, batch: Any = BATCH, steps: int = STEPS, modes: slice = slice(None)):
    return js.theory.optimal_schedule(EIGENVALUES[modes], ERRORS[modes], steps, batch_size=batch, noise_variance=noise)


def _final(rates, noise=NOISE, batch=BATCH):
    return js.theory.online_sgd(EIGENVALUES, ERRORS, rates, batch_size=batch, noise_variance=noise)[-1]


def _brute(batch, noise):
    """The least final loss over all schedules of `FEW` steps, from ten starts, by NumPy and SciPy alone."""

    def final(log_rates):
        d, eigenvalues = ERRORS[MODES].copy(), EIGENVALUES[MODES]
        for rate in np.exp(log_rates):
            noisy = eigenvalues @ d + noise
            d = (1 - 2 * rate * eigenvalues + (1 + 1 / batch) * (rate * eigenvalues) ** 2) * d
            d += rate**2 * eigenvalues * noisy / batch
        return eigenvalues @ d

    starts = np.random.default_rng(0).normal(-0.5, 0.7, size=(10, FEW))
    ends = [scipy.optimize.minimize(final, start, method="BFGS", options={"gtol": 1e-10}) for start in starts]
    best = min(ends, key=lambda end: end.fun)
    return np.exp(best.x), best.fun


@pytest.mark.parametrize(("batch", "noise"), [(4, 0.1), (1, 0.0), (16, 0.02)])
def test_what_a_minimizer_finds_that_knows_no_formula(batch, noise):
    rates, loss = _brute(batch, noise)

    def check(found):
        np.testing.assert_allclose(found[1], loss, rtol=1e-9 if cases.X64 else 1e-5)
        np.testing.assert_allclose(found[0], rates, rtol=2e-5 if cases.X64 else 2e-3)

    check(_optimal(noise, batch, FEW, MODES))
    cases.assert_fails(lambda: check(_optimal(noise + 0.1, batch, FEW, MODES)))


@pytest.mark.parametrize(("batch", "noise"), [(4, 0.1), (4, 0.0), (64, 0.01)])
def test_better_than_the_best_of_usual_schedules(batch, noise):
    rates, loss = _optimal(noise, batch)
    assert rates.shape == (STEPS,)
    assert rates.dtype == loss.dtype == jnp.result_type(float)
    np.testing.assert_allclose(loss, _final(rates, noise, batch), rtol=cases.eps(10))
    ramp = jnp.linspace(1.0, 0.0, STEPS)
    shapes = {"constant": jnp.ones(STEPS), "linear": ramp, "cosine": (1 - jnp.cos(jnp.pi * ramp)) / 2}
    peaks = jnp.geomspace(0.01, 2.0, 200)
    for name, shape in shapes.items():
        best = jnp.nanmin(jax.vmap(lambda peak, shape=shape: _final(peak * shape, noise, batch))(peaks))
        assert loss < 0.96 * best, name
    # The rates that are best for the next step alone, where the passes begin.
    greedy = []
    d = ERRORS.copy()
    for _ in range(STEPS):
        noisy = EIGENVALUES @ d + noise
        rise = (1 + 1 / batch) * EIGENVALUES * d + noisy / batch
        greedy.append((EIGENVALUES**2 @ d) / (EIGENVALUES**2 @ rise))
        d = d - 2 * greedy[-1] * EIGENVALUES * d + greedy[-1] ** 2 * EIGENVALUES * rise
    assert loss < 0.96 * _final(jnp.asarray(greedy), noise, batch)


@pytest.mark.parametrize(("batch", "noise"), [(4, 0.0), (np.linspace(1.0, 9.0, STEPS), 0.1)])
def test_a_minimum(batch, noise):
    rates, loss = _optimal(noise, batch)
    final = lambda logs: jnp.log(_final(jnp.exp(logs), noise, batch))
    slope_of = jax.jit(jax.grad(final))
    slope = slope_of(jnp.log(rates))
    flat = lambda slope: np.testing.assert_array_less(jnp.abs(slope).max(), 1e-8 if cases.X64 else 1e-4)
    flat(slope)
    cases.assert_fails(lambda: flat(slope_of(jnp.log(rates) + 0.01)))
    assert jnp.linalg.eigvalsh(jax.jit(jax.jacfwd(slope_of))(jnp.log(rates)))[0] > 0
    # A schedule stays as it is where it is followed from its middle on.
    half = STEPS // 2
    d = ERRORS.copy()
    every = np.broadcast_to(batch, STEPS)
    for rate, of_step in zip(np.asarray(rates, float)[:half], every, strict=False):
        noisy = EIGENVALUES @ d + noise
        d = (1 - 2 * rate * EIGENVALUES + (1 + 1 / of_step) * (rate * EIGENVALUES) ** 2) * d
        d += rate**2 * EIGENVALUES * noisy / of_step
    later = js.theory.optimal_schedule(EIGENVALUES, d, STEPS - half, batch_size=every[half:], noise_variance=noise)
    np.testing.assert_allclose(later[1], loss, rtol=1e-9 if cases.X64 else 1e-5)
    np.testing.assert_allclose(later[0], rates[half:], rtol=1e-6 if cases.X64 else 1e-2)


def test_gradient_descent_has_the_roots_of_chebyshev():
    """Without noise, of two modes and two steps, each step removes one of them: 1/rate is an eigenvalue."""
    rates, loss = js.theory.optimal_schedule(np.array([1.0, 0.25]), np.ones(2), 2, batch_size=1e12)
    np.testing.assert_allclose(sorted(np.asarray(rates)), [1.0, 4.0], rtol=1e-5)
    assert loss < 1e-10


def test_nothing_to_learn():
    eigenvalues, errors = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    rates, loss = js.theory.optimal_schedule(eigenvalues, errors, 3, batch_size=2, noise_variance=0.1)
    assert loss == 0
    assert (rates == 0).all()


def test_jit_and_vmap():
    noises = jnp.array([0.05, 0.2])
    rates, losses = jax.jit(jax.vmap(_optimal))(noises)
    for noise, row, loss in zip(noises, rates, losses, strict=True):
        one = _optimal(noise)
        np.testing.assert_allclose(loss, one[1], rtol=cases.eps(100))
        np.testing.assert_allclose(row, one[0], rtol=1e-7 if cases.X64 else 1e-2)


@pytest.mark.slow
@pytest.mark.x64_only  # finite differences of a minimizer, which is only known to the root of eps
def test_derivatives_by_finite_differences():
    few = lambda noise, batch: _optimal(noise, batch, FEW, MODES)
    point, h = (0.1, 4.0), 1e-3
    forward, backward = (jax.jit(way(few, argnums=(0, 1)))(*point) for way in (jax.jacfwd, jax.jacrev))
    for index in range(2):
        moved = [few(*(p + side * h * (i == index) for i, p in enumerate(point))) for side in (1, -1)]
        for rates, loss in ((forward[0][index], forward[1][index]), (backward[0][index], backward[1][index])):
            np.testing.assert_allclose(rates, (moved[0][0] - moved[1][0]) / (2 * h), rtol=1e-3)
            np.testing.assert_allclose(loss, (moved[0][1] - moved[1][1]) / (2 * h), rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"errors": np.ones(3)}, ValueError, r"one shape \(d,\)"),
        ({"steps": 0}, ValueError, "steps must be an integer >= 1, got 0"),
        ({"steps": 2.5}, TypeError, "steps must be an integer >= 1, got float 2.5"),
        ({"batch_size": np.ones(3)}, ValueError, "one for each of 100 steps"),
        ({"noise_variance": -1.0}, ValueError, "noise_variance must be >= 0"),
    ],
)
def test_bad_arguments(change, error, message, as_users):
    arguments = {"eigenvalues": EIGENVALUES, "errors": ERRORS, "steps": STEPS, "batch_size": BATCH} | change
    with pytest.raises(error, match=message):
        js.theory.optimal_schedule(**arguments)
