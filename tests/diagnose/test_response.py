"""The rates that stand for an optimizer, where its second moments stand still."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import Linear, X64
from tests.inside import optimizer_response, slope_at


RATE = 1e-2


def _stationary(optimizer):
    """The rates after many steps of one gradient, which the problem has there, and that gradient."""
    x = jr.normal(jr.key(0), (8, 3))
    problem = js.Problem(Linear(jnp.array([[0.3, -0.2, 0.5]])), x, x[:, :1] * x[:, 1:2])
    gradient = jax.grad(problem.objective)(problem.params)
    state = optimizer.init(problem.params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(300):
            state = optimizer.update(gradient, state, problem.params)[1]
    held = js.Descent(optimizer, rate=1.0).optimizer
    found = optimizer_response(problem.eta, held, problem.params, state, slope_at(problem, problem.params))
    assert not found.why
    return found.rates.w, jnp.abs(gradient.w)


@pytest.mark.parametrize(
    ("optimizer", "share"),
    [
        (optax.rmsprop(RATE), 1.0),
        (optax.rmsprop(RATE, decay=0.5), 1.0),
        (optax.adam(RATE, b1=0.0, b2=0.5), 1.0),
        (optax.adam(RATE, b1=0.9, b2=0.9), 0.1 / 1.9),
        (
            optax.masked(optax.adam(RATE, b1=0.9, b2=0.9), lambda params: jax.tree.map(lambda _: True, params)),
            0.1 / 1.9,
        ),
    ],
)
def test_a_stationary_second_moment_is_the_square_of_the_gradient(optimizer, share):
    rates, gradient = _stationary(optimizer)
    np.testing.assert_allclose(rates, share * RATE / gradient, rtol=1e-5 if X64 else 1e-4)
