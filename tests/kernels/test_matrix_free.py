"""Products, eigenpairs and estimates against the matrices they stand for, which the tests form."""

import functools
from collections.abc import Callable
from typing import cast, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import kernels, nets
from tests import cases
from tests.cases import assert_fails, eps, X64
from tests.inside import batches, find_loss


N = 7
LOSS = find_loss(lambda f, y: jnp.sum(jnp.log(jnp.cosh(f - y))) + 0.3 * f[0] * f[1] ** 2)


class Diagonal(kernels.AbstractSymmetricOperator):
    """A matrix of known eigenvalues, turned so that no axis is an eigenvector."""

    values: jax.Array
    axis: jax.Array

    @property
    def structure(self):
        return jax.ShapeDtypeStruct(self.values.shape, self.values.dtype)

    def mv(self, v):
        return self._turn(self.values * self._turn(v))

    def _turn(self, v):
        return v - 2 * self.axis * (self.axis @ v)


def _diagonal(values, key):
    axis = jr.normal(key, (len(values),))
    return Diagonal(jnp.asarray(values, float), axis / jnp.linalg.norm(axis))


class Net(eqx.Module):
    """A module that is not one of ours."""

    w: jax.Array
    scale: jax.Array

    def __call__(self, x):
        return self.scale * jnp.tanh(self.w @ x)


class _Setting(NamedTuple):
    """A network of unequal rates, and everything about it in one vector of parameters."""

    net: nets.MLP
    x: jax.Array
    y: jax.Array
    outputs: Callable[..., jax.Array]
    theta: jax.Array
    eta: jax.Array

    def kernel(self, eta, others=None):
        """J(others) eta J(x)^T, its rows and columns (sample, output)."""
        jacobian = jax.jit(lambda x: jax.jacobian(lambda theta: self.outputs(theta, x))(self.theta))
        rows = lambda x: np.asarray(jacobian(x), np.float64).reshape(-1, self.theta.size)
        return (rows(self.x if others is None else others) * np.asarray(eta, np.float64)) @ rows(self.x).T


@functools.cache
def _setting():
    keys = jr.split(jr.key(7), 3)
    net, x, y = cases.mlp(keys[0]), cases.inputs(keys[1], N), cases.inputs(keys[2], N, 2)
    params, static = nets.partition(net)
    theta, unravel = ravel_pytree(params)
    outputs = lambda theta, x: jax.vmap(eqx.combine(unravel(theta), static))(x)
    eta = ravel_pytree(jax.tree.map(lambda e, p: e * jnp.ones_like(p), nets.rates(net), params))[0]
    return _Setting(net, x, y, outputs, theta, eta)


def _products(operator, vectors):
    """The operator times each of some flat vectors, flat."""
    product, _, _ = operator.flat()
    return jax.vmap(product)(vectors)


def _check(found, expected, units=100):
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=eps(units) * np.abs(expected).max())


# --- products


@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 3])
def test_kernel_products(batch_size, getkey):
    """Of the eta-weighted and the plain kernel; 3 does not divide the samples."""
    net, x, *_, eta = setting = _setting()
    v, others = jr.normal(getkey(), (N, 2)), cases.inputs(getkey(), 4)

    @eqx.filter_jit
    def run(net, x):
        weighted = kernels.NTKOperator(net, x, eta=nets.rates(net), batch_size=batch_size)
        return weighted.mv(v), weighted.cross(others, v), kernels.NTKOperator(net, x, batch_size=batch_size).mv(v)

    expected = (setting.kernel(eta), setting.kernel(eta, others), setting.kernel(jnp.ones_like(eta)))
    products, flat = run(net, x), np.asarray(v, np.float64).ravel()
    for found, matrix in zip(products, expected, strict=True):
        _check(found.ravel(), matrix @ flat)
    assert_fails(lambda: _check(products[0].ravel(), expected[2] @ flat))  # the rates are left out


def test_curvature_products(getkey):
    """sqrt(eta) times Hessian and Gauss-Newton matrix times sqrt(eta), formed by jax.hessian and the Jacobian."""
    net, x, y, outputs, theta, eta = _setting()
    vectors = jr.normal(getkey(), (2, theta.size))

    @jax.jit
    def run(theta):
        f = lambda theta: outputs(theta, x)
        gradient, hessian = LOSS.gradient(f(theta), y), LOSS.hessian(f(theta), y)
        jacobian = jax.jacobian(f)(theta)
        matrices = (
            jax.hessian(lambda theta: LOSS.value(f(theta), y))(theta),
            jnp.einsum("iap,iab,ibq->pq", jacobian, hessian, jacobian),
        )
        options = {"eta": nets.rates(net), "batch_size": 3}
        operators = (
            kernels.HessianOperator(net, x, gradient, hessian, **options),
            kernels.GaussNewtonOperator(net, x, hessian, **options),
        )
        return matrices, [_products(operator, vectors) for operator in operators]

    (hessian, gauss_newton), products = run(theta)
    roots = jnp.sqrt(eta)[None, :]
    for matrix, found in zip((hessian, gauss_newton), products, strict=True):
        _check(found, (roots * vectors) @ matrix * roots)
        assert_fails(lambda matrix=matrix, found=found: _check(found, vectors @ matrix))  # the rates are left out
    # The Hessian without the curvature of the network.
    assert_fails(lambda: _check(products[0], (roots * vectors) @ gauss_newton * roots))


def test_modules_of_any_kind_and_derivatives(getkey):
    """tr K of f = s tanh(W x) and its derivative in s, in batches.

    tr K = sum tanh^2 + s^2 sum |x|^2 (1 - tanh^2)^2.
    """
    w, x = jr.normal(getkey(), (2, 3)), cases.inputs(getkey(), 5)

    @jax.jit
    @jax.value_and_grad
    def trace(scale):
        operator = kernels.NTKOperator(Net(w, scale), x, batch_size=2)
        return jnp.trace(_products(operator, jnp.eye(10)))

    value, slope = trace(jnp.asarray(0.7))
    t = np.tanh(np.asarray(x, np.float64) @ np.asarray(w, np.float64).T)
    second = np.sum(np.sum(np.asarray(x) ** 2, axis=1)[:, None] * (1 - t**2) ** 2)
    _check(value, np.sum(t**2) + 0.49 * second)
    _check(slope, 1.4 * second)
    assert_fails(lambda: _check(value, np.sum(t**2)))  # the derivatives in W are left out


def test_batches_follow_the_memory(getkey, monkeypatch):
    """What the backward pass of a sample keeps here: both hidden layers, as values and as slopes, and inputs."""
    net = cases.mlp(getkey())
    size = jnp.result_type(float).itemsize
    per_sample = batches.saved(net, jnp.zeros((9, 3)), 2) - batches.saved(net, jnp.zeros((9, 3)), 1)
    assert 10 * size <= per_sample <= 40 * size
    monkeypatch.setattr(batches, "BATCH_MEMORY", 4 * per_sample)
    operator = kernels.NTKOperator(net, jnp.zeros((9, 3)))
    assert operator.batch_size == 3  # 4 would fit; three batches are needed, and 3 fill them evenly


# --- eigenpairs


SPECTRA = {
    "power": 1 / np.arange(1, 61.0),
    "low rank": np.r_[3.0, 2.0, np.zeros(58)],
    "outlier": np.r_[1e3, np.linspace(2, 1, 59)],
    "zero": np.zeros(60),
    "indefinite": np.linspace(1, -3, 60),
}


@jax.jit
def _find(operator, tol):
    return kernels.top_eigenpairs(operator, 3, key=jr.key(0), tol=tol)


@pytest.mark.parametrize("name", SPECTRA)
def test_eigenvalues_of_spectra_hard_and_easy(name):
    """At three scales: values to rounding, orthonormal vectors, and residuals within the tolerance."""
    exact = SPECTRA[name][:3] / (np.abs(SPECTRA[name]).max() or 1)
    for scale in (1.0, 1e200, 1e-200) if X64 else (1.0, 1e25, 1e-25):
        found = _find(_diagonal(SPECTRA[name] * scale, jr.key(1)), jnp.asarray(eps() ** 0.75))
        size = scale * (np.abs(SPECTRA[name]).max() or 1)
        close = lambda exact, values=np.asarray(found.values) / size: np.testing.assert_allclose(
            values, exact, rtol=0, atol=eps(20)
        )
        close(exact)
        if name != "zero":
            others = SPECTRA[name][1:4] / np.abs(SPECTRA[name]).max()
            assert_fails(lambda close=close, others=others: close(others))  # the largest is left out
        np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(3), atol=eps(50))
        assert np.max(found.residuals / size) <= 10 * eps() ** 0.75
        assert found.steps < 200


def test_residuals_bound_the_error():
    """A loose tolerance stops early, with errors far above rounding and below the residuals."""
    values = SPECTRA["outlier"]
    found = _find(_diagonal(values, jr.key(1)), jnp.asarray(1e-3))
    errors = np.abs(np.asarray(found.values)[:, None] - values[None, :]).min(1)
    assert np.max(errors) > 1e-4
    assert np.all(errors <= np.maximum(found.residuals, eps(1e4)))


@pytest.mark.parametrize("k", [pytest.param(2, marks=pytest.mark.slow), 14])
def test_eigenpairs_of_a_kernel_and_their_derivative(k):
    """LOBPCG (2 pairs of 14) and the formed matrix (all) agree with eigh, and d value = v^T dK v."""
    net, x, *_, eta = setting = _setting()

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def top(gamma):
        moved = eqx.tree_at(lambda net: net.scaling.gamma, net, gamma)
        found = kernels.top_eigenpairs(kernels.NTKOperator(moved, x, eta=nets.rates(net)), k, key=jr.key(0))
        return jnp.sum(found.values), found

    values = np.linalg.eigvalsh(setting.kernel(eta))[::-1]
    (_, found), slope = top(net.scaling.gamma)
    _check(found.values, values[:k])
    assert found.vectors.shape == (k, N, 2)
    assert (found.steps == 0) == (k == 14)
    np.testing.assert_allclose(slope, 2 * np.sum(values[:k]) / 0.75, rtol=eps(200))  # gamma^2 is in the kernel


# --- estimates


@functools.partial(jax.jit, static_argnums=(0, 2))
def _estimates(estimate, operator, n_products):
    return jax.vmap(lambda key: estimate(operator, key=key, n_products=n_products))(jr.split(jr.key(0), DRAWS))


def _order(counts, errors):
    return np.polyfit(np.log(counts), np.log(errors), 1)[0]


DRAWS = 128


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("estimate", "power", "counts"),
    [
        (kernels.estimate_trace, 1.0, (6, 96)),
        pytest.param(kernels.estimate_frobenius_norm, 0.5, (8, 96), marks=pytest.mark.slow),
    ],
)
def test_errors_fall_as_one_over_the_products(estimate, power, counts):
    """On eigenvalues k^-1 of A, or of A^2, where Hutch++ can do no better. Hutchinson's errors fall as the root."""
    values = np.arange(1, 401.0) ** -power
    trace = np.sum(values if power == 1 else values**2)
    exact = trace**power
    runs = [_estimates(estimate, _diagonal(values, jr.key(1)), count) for count in counts]
    missed = [np.asarray(found.value) - exact for found in runs]
    errors = [np.sqrt(np.mean(off**2)) for off in missed]
    np.testing.assert_allclose(errors[-1], np.sqrt(np.mean(np.asarray(runs[-1].standard_error) ** 2)), rtol=0.2)
    for off, error in zip(missed, errors, strict=True):
        assert abs(np.mean(off)) < 4 * error / np.sqrt(DRAWS)
    hutchinson = np.random.default_rng(0).normal(size=(max(counts), 64, 400)) ** 2 @ values ** (1 / power)
    plain = [np.sqrt(np.mean((hutchinson[:count].mean(0) - trace) ** 2)) for count in counts]
    assert _order(counts, errors) == pytest.approx(-1, abs=0.15)
    assert _order(counts, plain) == pytest.approx(-0.5, abs=0.1)


@jax.jit
def _both(operator):
    return [
        e(operator, key=jr.key(0), n_products=12) for e in (kernels.estimate_trace, kernels.estimate_frobenius_norm)
    ]


def test_low_rank_is_exact():
    """A range of a third of the products holds all of it; scales far from 1 do no harm."""
    values = np.r_[5.0, -2.0, 1.0, np.zeros(27)]
    for scale in (1.0, 1e180, 1e-180) if X64 else (1.0, 1e25, 1e-25):
        trace, norm = _both(_diagonal(scale * values, jr.key(1)))
        _check(trace.value / scale, 4.0)
        _check(norm.value / scale, np.sqrt(30.0))
        assert trace.standard_error / scale < eps(100)


@pytest.mark.slow
def test_estimates_differentiate():
    """tr K and |K| are quadratic in gamma, and their estimates too."""
    net, x, *_ = _setting()

    @jax.jit
    @jax.jacrev
    def logs(gamma):
        operator = kernels.NTKOperator(eqx.tree_at(lambda net: net.scaling.gamma, net, gamma), x)
        estimates = (kernels.estimate_trace, kernels.estimate_frobenius_norm)
        return jnp.log(jnp.stack([estimate(operator, key=jr.key(0), n_products=8).value for estimate in estimates]))

    np.testing.assert_allclose(logs(jnp.asarray(0.75)), 2 / 0.75, rtol=eps(200))


# --- arguments


def _operator():
    return _diagonal(np.ones(6), jr.key(0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net, x: kernels.NTKOperator(net, x[:0]), ValueError, "at least one sample is needed"),
        (lambda net, x: kernels.NTKOperator(jnp.sum, x), ValueError, r"with c >= 1 .*, got an array of shape \(\)"),
        (lambda net, x: kernels.NTKOperator(net, x, batch_size=0), ValueError, "batch_size must be an integer >= 1"),
        (lambda net, x: kernels.NTKOperator(net, x, batch_size=cast(int, 2.0)), TypeError, "batch_size must be"),
        (lambda net, x: kernels.NTKOperator(net, x).mv(x), ValueError, r"v must have shape \(7, 2\), got .* \(7, 3\)"),
        (lambda net, x: kernels.GaussNewtonOperator(net, x, x), ValueError, r"loss.hessian\(f, y\), shape \(7, 2, 2\)"),
        (
            lambda net, x: kernels.HessianOperator(net, x, x, jnp.zeros((7, 2, 2))),
            ValueError,
            r"gradient must be loss.gradient\(f, y\), shape \(7, 2\), got \(7, 3\)",
        ),
        (
            lambda net, x: kernels.top_eigenpairs(_operator(), 7, key=jr.key(0)),
            ValueError,
            "k must be at most 6, .* got 7",
        ),
        (lambda net, x: kernels.top_eigenpairs(_operator(), 0, key=jr.key(0)), ValueError, "k must be an integer >= 1"),
        (
            lambda net, x: kernels.top_eigenpairs(_operator(), 1, key=jr.key(0), tol=-1.0),
            ValueError,
            "must be positive",
        ),
        (lambda net, x: kernels.estimate_trace(_operator(), key=jr.key(0), n_products=2), ValueError, "at least 3"),
        (
            lambda net, x: kernels.estimate_frobenius_norm(_operator(), key=jr.key(0), n_products=3),
            ValueError,
            "at least 4",
        ),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(call, error, message, getkey):
    with pytest.raises(error, match=message):
        call(cases.mlp(getkey()), cases.inputs(getkey(), N))


def test_jit_takes_the_products():
    net, x = eqx.nn.MLP(3, 2, 4, 1, jnp.tanh, key=jr.key(0)), jr.normal(jr.key(1), (N, 3))
    hessian = jnp.broadcast_to(jnp.eye(2), (N, 2, 2))
    kernel, v = kernels.NTKOperator(net, x), jnp.ones((N, 2))
    np.testing.assert_allclose(jax.jit(kernel.mv)(v), kernel.mv(v), rtol=eps(100))
    np.testing.assert_allclose(jax.jit(kernel.cross)(x, v), kernel.mv(v), rtol=eps(100))
    for operator in (kernels.GaussNewtonOperator(net, x, hessian), kernels.HessianOperator(net, x, v, hessian)):
        direction = nets.partition(net)[0]
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=eps(1000)),
            jax.jit(operator.mv)(direction),
            operator.mv(direction),
        )
