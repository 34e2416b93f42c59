"""Numbers of a diagnosis by themselves: the confidence of slopes, what a critical rate costs, and Chizat's ratio."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree

import jaxsolve as js
from tests.cases import assert_fails, Linear
from tests.inside import critical_multiple, largest_eigenvalue, slope, slope_at


@pytest.mark.x64_only
def test_the_confidence_of_a_slope_is_that_of_least_squares():
    """95 % by Student's t; what is not positive is left out. Twin: 1.96 for t."""
    widths = np.array([8, 16, 32, 64])
    values = widths[:, None] ** -0.5 * np.exp(np.random.default_rng(0).normal(size=(4, 2)) / 10)
    for missing in (0, 1):
        values[0, :missing] = 0
        fine = values > 0
        line: Any = scipy.stats.linregress(np.log(np.broadcast_to(widths[:, None], (4, 2))[fine]), np.log(values[fine]))
        found = slope(widths, values)
        np.testing.assert_allclose(found.value, line.slope, rtol=1e-12)
        check = lambda factor, found=found, line=line: np.testing.assert_allclose(
            found.error, factor * line.stderr, rtol=1e-12
        )
        check(scipy.stats.t.ppf(0.975, fine.sum() - 2))
        assert_fails(lambda check=check: check(1.96))


@pytest.mark.parametrize("eigenvalues", [[-1.0], [-3.0, -2.0, -1.0], [-2.0, 0.0, 1.0]])
def test_the_largest_eigenvalue_may_be_negative(eigenvalues):
    """Of 30 dimensions, whose Krylov space ends after as many steps as there are eigenvalues."""
    diagonal = jnp.resize(jnp.asarray(eigenvalues), (30,))
    found = largest_eigenvalue(lambda v: diagonal * v, diagonal)
    np.testing.assert_allclose(found, max(eigenvalues), rtol=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_the_largest_eigenvalue_over_decades(size):
    """Squares of eigenvalues are neither lost nor infinite, in float32 as in float64."""
    diagonal = jnp.asarray(size * np.linspace(-1, 2, 40), jnp.float32)
    found = largest_eigenvalue(lambda v: diagonal * v, diagonal)
    np.testing.assert_allclose(found, 2 * size, rtol=1e-5)


def test_a_critical_rate_takes_fewer_than_ten_forward_passes():
    seen = []

    class Noted(js.losses.AbstractLoss):
        """MSE that says when it runs."""

        def pointwise(self, f, y):
            return jnp.sum((f - y) ** 2) / 2

        def value(self, f, y):
            jax.debug.callback(lambda: seen.append(1))
            return super().value(f, y)

        def targets(self, y, out_size):
            return jnp.reshape(y, (-1, out_size))

    problem = js.Problem(Linear(jnp.ones((1, 2))), jnp.eye(2), jnp.zeros((2, 1)), loss=Noted())
    update = jax.tree.map(lambda w: -w, problem.params)
    seen.clear()
    found = critical_multiple(problem, problem.params, update, slope_at(problem, problem.params))
    jax.effects_barrier()
    assert 1 < len(seen) < 10
    np.testing.assert_allclose(found, 2, rtol=0.1)


def test_no_multiple_of_a_step_uphill_lowers_the_loss():
    """A heavy ball that has overshot climbs; multiples that are lost to rounding seem to lower the loss."""
    net, x, y = Linear(jnp.ones((1, 1))), jnp.ones((4, 1)), jnp.zeros((4, 1))
    report = js.diagnose(net, x, y, optimizer=optax.sgd(0.05, 0.95), steps=8)
    weights = []
    w, speed = 1.0, 0.0
    for _ in range(9):
        speed = 0.95 * speed + w
        w -= 0.05 * speed
        weights.append(w)
    assert weights[8] < weights[7] < 0  # the next step climbs
    assert report["critical_rate"] == 0
    assert "goes uphill" in report.text
    problem = js.Problem(net, x, y)
    start, here = problem.params, slope_at(problem, problem.params)
    rate = lambda share: critical_multiple(problem, start, jax.tree.map(lambda w: share * w, start), here)
    assert rate(1e-3) == 0
    np.testing.assert_allclose(rate(-1e-3), 2000, rtol=0.2)  # 1722: the bisection ends there
    assert np.isinf(rate(0.0))  # no multiple of nothing raises the loss


@pytest.mark.x64_only
def test_chizats_ratio_by_finite_differences():
    """|D^2 f[u, u]| s/(2 |D f[u]|) along u = -grad L, with the s at which the loss would be 0; without s it fails."""
    net, x, step = eqx.nn.MLP(3, 2, 8, 1, jnp.tanh, key=jr.key(1)), jr.normal(jr.key(0), (12, 3)), 1e-3
    y = jnp.concatenate([x[:, :1] * x[:, 1:2], x[:, 2:]], axis=1)
    params, rest = eqx.partition(net, eqx.is_array)
    flat, unravel = ravel_pytree(params)
    f = jax.jit(lambda w: jax.vmap(eqx.combine(unravel(w), rest))(x))
    u = -jax.jit(jax.grad(lambda w: js.losses.MSE().value(f(w), y)))(flat)
    u = u / jnp.linalg.norm(u)  # the ratio does not depend on its length
    up, at, down = (np.asarray(f(flat + sign * step * u)) for sign in (1, 0, -1))
    first, second = (up - down) / (2 * step), (up + down - 2 * at) / step**2
    gap = at - np.asarray(y)
    length = np.sum(gap**2) / 2 / -np.sum(gap * first)
    expected = length * np.linalg.norm(second) / (2 * np.linalg.norm(first))
    found = js.diagnose(net, x, y, optimizer=optax.sgd(0.1), steps=1)["chizat_ratio"]
    close = lambda value: np.testing.assert_allclose(found, value, rtol=2e-7)
    close(expected)  # measured: 2e-8
    assert_fails(lambda: close(expected / length))


def test_few_products_are_said_and_bound_from_below():
    """Of five products the largest Ritz values of Lanczos: at most the eigenvalues, and here within a fifth of them."""
    x = jr.normal(jr.key(0), (24, 4))
    net = eqx.nn.MLP(4, 1, 16, 2, activation=jnp.tanh, key=jr.key(1))
    options = {"optimizer": optax.sgd(0.1), "steps": 5, "checkpoints": 1}
    few, all_of = (js.diagnose(net, x, x[:, :1] * x[:, 1:2], products=most, **options) for most in (5, 200))
    assert few.history["step"].tolist() == [0, 5]
    for name, sign in (("stability", 1), ("residual_position", -1)):  # one over the eigenvalue
        share = (few.findings[name].value / all_of.findings[name].value) ** sign
        assert 0.8 < share <= 1 + 1e-6, name
    assert any("at most 5 products of matrices and vectors" in note for note in few.notes)
    assert few.findings["kernel_change"] == all_of.findings["kernel_change"]
