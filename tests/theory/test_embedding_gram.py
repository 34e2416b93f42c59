"""The Gram matrix of quadratic word embeddings against integration of the weights and 1200 digits."""

import jax
import jax.numpy as jnp
import jax.random as jr
import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxsolve as js
from tests import cases


def _problem(dims, words=7):
    draws = np.random.default_rng(3)
    square = draws.normal(size=(words, words))
    return (square + square.T) / 2, 0.3 * draws.normal(size=(words, dims))


def _integrated(target, start, t):
    """W W^T, by an explicit method of order 8 on W itself."""

    def velocity(_, w):
        weights = w.reshape(start.shape)
        return (2 * (target - weights @ weights.T) @ weights).ravel()

    end = solve_ivp(velocity, (0, t), start.ravel(), method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    return end.reshape(start.shape) @ end.reshape(start.shape).T


def _by_digits(target, start, t):
    """The printed solution, in 1200 digits."""
    with mpmath.workdps(1200):
        values, frame = mpmath.eigsy(mpmath.matrix(target.tolist()))
        weights = mpmath.matrix(start.tolist())
        grown = frame * mpmath.diag([mpmath.exp(2 * v * t) for v in values]) * frame.T
        sums = frame * mpmath.diag([(mpmath.exp(4 * v * t) - 1) / v for v in values]) * frame.T
        middle = (mpmath.eye(start.shape[1]) + weights.T * sums * weights) ** -1
        return np.array((grown * weights * middle * weights.T * grown).tolist(), float)


@pytest.mark.parametrize("dims", [1, 4, 7, 9])
@pytest.mark.parametrize("growth", [0.0, 0.3, 3.0])  # of the largest mode
def test_equals_integration_of_the_weights(dims, growth):
    target, start = _problem(dims)
    t = growth / np.linalg.eigvalsh(target)[-1]
    check = lambda found: np.testing.assert_allclose(found, _integrated(target, start, t), atol=cases.eps(100))
    check(js.theory.embedding_gram(target, start, t))
    if growth:
        cases.assert_fails(lambda: check(js.theory.embedding_gram(target, start, 0.9 * t)))


@pytest.mark.parametrize("growth", [3.0, 30.0, 300.0])
def test_late_times_lose_no_digits(growth):
    target, start = _problem(4)
    t = growth / np.linalg.eigvalsh(target)[-1]
    np.testing.assert_allclose(
        js.theory.embedding_gram(target, start, t), _by_digits(target, start, t), atol=cases.eps(100)
    )


def test_the_end_is_the_best_positive_matrix_of_that_rank():
    target, start = _problem(2)
    values, frame = np.linalg.eigh(target)
    best = (frame[:, -2:] * values[-2:]) @ frame[:, -2:].T
    np.testing.assert_allclose(js.theory.embedding_gram(target, start, jnp.inf), best, atol=cases.eps(100))
    # More dimensions than positive modes, and an eigenvalue of 0: the rest dies out.
    flat = np.diag([1.0, 0.0, -1.0])
    end = js.theory.embedding_gram(flat, np.full((3, 3), 0.1) + 0.2 * np.eye(3), jnp.inf)
    np.testing.assert_allclose(end, np.diag([1.0, 0.0, 0.0]), atol=cases.eps(100))


def test_derivatives_and_transformations():
    target, start = map(jnp.asarray, _problem(3))
    at = lambda start, t: js.theory.embedding_gram(target, start, t)
    ts = jnp.array([0.0, 0.4, 2.0])
    velocity = jax.jit(jax.vmap(jax.jacfwd(at, argnums=1), in_axes=(None, 0)))(start, ts)
    grams = jax.vmap(at, in_axes=(None, 0))(start, ts)
    flow = jax.vmap(lambda gram: 2 * ((target - gram) @ gram + gram @ (target - gram)))(grams)
    np.testing.assert_allclose(velocity, flow, atol=cases.eps(1e4))
    slope = jr.normal(jr.key(0), start.shape, start.dtype)
    step = cases.eps() ** (1 / 3)
    numeric = (at(start + step * slope, 1.0) - at(start - step * slope, 1.0)) / (2 * step)
    exact = jax.jvp(lambda start: at(start, 1.0), (start,), (slope,))[1]
    np.testing.assert_allclose(exact, numeric, atol=1e4 * step**2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3)[:2], np.ones((2, 1)), 1.0), r"target must have shape \(words, words\)"),
        ((np.eye(3), np.ones(3), 1.0), r"start \(words, dims\)"),
        ((np.triu(np.ones((3, 3))), np.ones((3, 1)), 1.0), "target must be symmetric"),
        ((np.eye(3), np.ones((3, 1)), -1.0), "t must be a time >= 0"),
        ((np.eye(3), np.full((3, 1), np.nan), 1.0), "start"),
    ],
)
def test_bad_arguments(arguments, message, as_users):
    with pytest.raises(ValueError, match=message):
        js.theory.embedding_gram(*arguments)
