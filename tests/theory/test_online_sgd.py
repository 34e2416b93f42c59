"""Online SGD of linear models: the mean loss against thousands of runs with fresh samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


SIZE, STEPS, BATCH, NOISE = 20, 200, 4, 0.05
EIGENVALUES, ERRORS = np.arange(1, SIZE + 1) ** -1.5, np.arange(1, SIZE + 1) ** -1.2
RATES = 0.25 * np.linspace(1.0, 0.05, STEPS)
solved = functools.partial(js.theory.online_sgd, EIGENVALUES, ERRORS, RATES, batch_size=BATCH, noise_variance=NOISE)


@pytest.fixture(scope="module")
def simulated():
    """The losses of 4000 runs, shape (runs, steps + 1): NumPy alone."""
    draws, target = np.random.default_rng(1), ERRORS**0.5
    weights, losses = np.zeros((4000, SIZE)), []
    for rate in RATES:
        losses.append((EIGENVALUES * (weights - target) ** 2).sum(1))
        x = draws.normal(size=(4000, BATCH, SIZE)) * EIGENVALUES**0.5
        y = x @ target + NOISE**0.5 * draws.normal(size=(4000, BATCH))
        miss = np.einsum("rbd,rd->rb", x, weights) - y
        weights = weights - rate * np.einsum("rb,rbd->rd", miss, x) / BATCH
    losses.append((EIGENVALUES * (weights - target) ** 2).sum(1))
    return np.array(losses).T


def test_the_mean_of_simulations_at_every_step(simulated):
    error = simulated[:, 1:].std(0) / 4000**0.5

    def check(losses):
        assert losses.shape == (STEPS + 1,)
        assert abs(losses[0] - simulated[0, 0]) < cases.eps(100)
        assert np.max(np.abs(simulated[:, 1:].mean(0) - losses[1:]) / error) < 3.5  # the largest of 200

    check(np.asarray(solved()))
    for twin in ({"noise_variance": 0.0}, {"batch_size": 5}):
        cases.assert_fails(lambda twin=twin: check(np.asarray(solved(**twin))))


def test_large_batches_are_gradient_descent():
    losses = solved(batch_size=1e12, noise_variance=0.0)
    decay = np.cumprod((1 - RATES[:, None] * EIGENVALUES) ** 2, axis=0)
    np.testing.assert_allclose(losses[1:], (EIGENVALUES * ERRORS * decay).sum(1), rtol=1e-5)


def test_gradients_by_finite_differences():
    small = lambda eigenvalues, errors, rates, batch, noise: js.theory.online_sgd(
        eigenvalues, errors, rates, batch_size=batch, noise_variance=noise
    )[-1]
    point = tuple(map(jnp.asarray, (EIGENVALUES[:5], ERRORS[:5], RATES[:7], 3.0, 0.1)))
    step = cases.eps() ** (1 / 3)
    for index, slope in enumerate(jax.grad(small, argnums=tuple(range(5)))(*point)):
        move = lambda h, index=index: tuple(p + h * (i == index) for i, p in enumerate(point))
        numeric = (small(*move(step)) - small(*move(-step))) / (2 * step)
        np.testing.assert_allclose(jnp.sum(slope), numeric, rtol=1e-6 if cases.X64 else 1e-2)


@pytest.mark.parametrize("steps", [0, 1, 2, 10, 17])  # full blocks and others
def test_any_number_of_steps_with_a_batch_of_its_own_each(steps):
    batches = np.linspace(1.0, 9.0, steps)
    losses = js.theory.online_sgd(EIGENVALUES, ERRORS, RATES[:steps], batch_size=batches if steps else 4.0)
    d, expected = ERRORS.copy(), [EIGENVALUES @ ERRORS]
    for rate, batch in zip(RATES, batches, strict=False):
        d = (1 - 2 * rate * EIGENVALUES + rate**2 * EIGENVALUES**2 * (1 + 1 / batch)) * d + (
            rate**2 * EIGENVALUES * (EIGENVALUES @ d) / batch
        )
        expected.append(EIGENVALUES @ d)
    np.testing.assert_allclose(losses, expected, rtol=cases.eps(100))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"errors": np.ones(3)}, r"one shape \(d,\)"),
        ({"eigenvalues": -EIGENVALUES}, "eigenvalues must be >= 0, got -1"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": np.ones(3)}, "one for each of 200 steps"),
        ({"noise_variance": -1.0}, "noise_variance must be >= 0"),
        ({"rates": np.full(3, np.inf)}, "rates"),
    ],
)
def test_bad_arguments(change, message, as_users):
    arguments = {"eigenvalues": EIGENVALUES, "errors": ERRORS, "rates": RATES, "batch_size": BATCH} | change
    with pytest.raises(ValueError, match=message):
        js.theory.online_sgd(**arguments)
