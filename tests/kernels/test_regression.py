"""Kernel regression and the linearized flow, against matrix functions of SciPy, ensembles and finite differences."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg

from jaxsolve import kernels
from tests import cases


N, C, M = 6, 2, 4
TIMES = (0.0, 0.3, 7.0, 1e3)


def _features(key, rank, *, points=N + M):
    return jr.normal(key, (points, rank))


def _kernel(key, rank=N + M):
    """A kernel on N training points, and between M others and these."""
    features = _features(key, rank)
    joint = features @ features.T
    return joint[:N, :N], joint[N:, :N]


def _mixed(key):
    """The same with outputs that mix."""
    features = jr.normal(key, (N + M, C, 3 * N))
    joint = jnp.einsum("iak,jbk->iajb", features, features)
    return joint[:N, :, :N], joint[N:, :, :N]


def _targets(key):
    return jr.normal(key, (N, C)), jr.normal(jr.fold_in(key, 1), (N, C)), jr.normal(jr.fold_in(key, 2), (M, C))


def _by_expm(kernel, cross, y, start, start_test, t, ridge):
    """The linear equation's solution: the last column of exp(t [[-A, b], [0, 0]])."""
    size = y.size if kernel.ndim == 4 else N
    k, kx = np.asarray(kernel).reshape(size, size), np.asarray(cross).reshape(-1, size)
    gap = np.asarray(y - start).reshape(size, -1)
    columns = gap.shape[1]
    generator = np.zeros((size + columns, size + columns))
    generator[:size] = np.concatenate([-k / N - ridge * np.eye(size), gap / N], axis=1)
    coefficients = scipy.linalg.expm(t * generator)[:size, size:]
    outputs = np.asarray(start) + (k @ coefficients).reshape(N, C)
    return outputs, np.asarray(start_test) + (kx @ coefficients).reshape(M, C)


@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("make", [_kernel, _mixed], ids=["diagonal", "mixed"])
def test_linearized_follows_the_linear_equation(make, ridge, getkey):
    (kernel, cross), (y, start, start_test) = make(getkey()), _targets(getkey())
    flow = kernels.linearized(kernel, y, start=start, ridge=ridge)
    times = jnp.asarray(TIMES, float)
    outputs = jax.jit(jax.vmap(flow.outputs))(times)
    predicted = jax.jit(jax.vmap(lambda t: flow.predict(t, cross, start_test)))(times)
    for index, t in enumerate(TIMES):
        exact = _by_expm(kernel, cross, y, start, start_test, t, ridge)
        for found, wanted in zip((outputs[index], predicted[index]), exact, strict=True):
            np.testing.assert_allclose(found, wanted, atol=cases.eps(3e2) * np.abs(wanted).max())
    np.testing.assert_array_equal(outputs[0], start)
    for twin in ((0 * start, ridge), (start, 0.0)) if ridge else ((0 * start, ridge),):  # the start, the ridge left out
        off = _by_expm(kernel, cross, y, twin[0], start_test, 0.3, twin[1])[0]
        close = lambda off=off: np.testing.assert_allclose(outputs[1], off, atol=cases.eps(3e2) * np.abs(off).max())
        cases.assert_fails(close)


@pytest.mark.parametrize("ridge", cases.slow_after(1, [0.0, 0.2]))
@pytest.mark.parametrize("make", [_kernel, _mixed], ids=["diagonal", "mixed"])
def test_regression_is_the_end_of_the_flow(make, ridge, getkey):
    (kernel, cross), (y, start, start_test) = make(getkey()), _targets(getkey())
    found = kernels.regression(kernel, y, start=start, ridge=ridge)
    flow = kernels.linearized(kernel, y, start=start, ridge=ridge)
    assert not found.decomposed
    assert found.rank == flow.rank == kernel.shape[0] * (1 if kernel.ndim == 2 else C)
    size = 1e3 if cases.X64 else 1e4  # a kernel's condition number of about 1e3
    end = jnp.inf
    np.testing.assert_allclose(found.outputs, flow.outputs(end), atol=cases.eps(size))
    predicted = flow.predict(end, cross, start_test)
    np.testing.assert_allclose(found.predict(cross, start_test), predicted, atol=cases.eps(size))
    for off in ({"ridge": ridge}, {"start": start})[: 2 if ridge else 1]:  # the start, the ridge left out
        assert np.abs(kernels.regression(kernel, y, **off).predict(cross, start_test) - predicted).max() > 1e-3


def test_ridge_minimizes_what_it_says(getkey):
    kernel, _ = _kernel(getkey(), 3)
    (y, start, _), ridge = _targets(getkey()), 0.3
    found = kernels.regression(kernel, y, start=start, ridge=ridge).coefficients

    def penalized(coefficients):
        moved = kernel @ coefficients
        return jnp.sum((start + moved - y) ** 2) / (2 * N) + ridge / 2 * jnp.sum(coefficients * moved)

    slope = jax.grad(penalized)(found)
    assert np.abs(slope).max() < cases.eps(1e2)
    without = kernels.regression(kernel, y, start=start).coefficients
    assert np.abs(jax.grad(penalized)(without)).max() > 1e-4  # the ridge is left out


@pytest.mark.parametrize("t", [1e5, 1e300, np.inf])
def test_a_singular_kernel_projects(t, getkey):
    t = min(t, 1e30) if not cases.X64 and np.isfinite(t) else t
    (kernel, cross), (y, start, start_test) = _kernel(getkey(), 3), _targets(getkey())
    k, kx = (np.asarray(part, np.float64) for part in (kernel, cross))
    inverse = np.linalg.pinv(k, rtol=N * cases.eps(), hermitian=True)
    least = inverse @ np.asarray(y - start, np.float64)
    flow = kernels.linearized(kernel, y, start=start)
    found = kernels.regression(kernel, y, start=start)
    assert found.decomposed
    assert found.rank == flow.rank == 3
    np.testing.assert_allclose(flow.rates[: N - 3], 0)
    tolerance = {"atol": cases.eps(3e2), "rtol": 0}
    np.testing.assert_allclose(found.coefficients, least, **tolerance)
    np.testing.assert_allclose(flow.outputs(t), start + k @ least, **tolerance)
    np.testing.assert_allclose(flow.predict(t, cross, start_test), start_test + kx @ least, **tolerance)
    without = start + k @ (inverse @ np.asarray(y, np.float64))  # the gap to learn without the start
    cases.assert_fails(lambda: np.testing.assert_allclose(flow.outputs(t), without, **tolerance))


@pytest.mark.parametrize("kernel", [np.zeros((3, 3)), np.ones((3, 3)), np.zeros((3, 2, 3, 2))], ids=["0", "1", "0*"])
def test_degenerate_kernels_give_no_nan(kernel):
    kernel, y = jnp.asarray(kernel, float), jnp.arange(6.0).reshape(3, 2)
    flow = kernels.linearized(kernel, y)
    mean = np.mean(y, axis=0, keepdims=True) * np.ones((3, 1)) if np.any(kernel) else np.zeros((3, 2))
    for found in (flow.outputs(jnp.inf), kernels.regression(kernel, y).outputs):
        np.testing.assert_allclose(found, mean, atol=cases.eps(20))
    slope = jax.jit(jax.grad(lambda k: jnp.sum(kernels.linearized(k, y).outputs(2.0) ** 2)))(kernel)
    assert np.all(np.isfinite(slope))


@pytest.mark.x64_only
@pytest.mark.slow
def test_derivatives(getkey):
    """In everything at once, by central differences, at a kernel of low rank with equal eigenvalues."""
    features = jnp.linalg.qr(_features(getkey(), 3, points=N))[0] * jnp.array([[1.0, 1.0, 3.0]])
    y, start, _ = _targets(getkey())
    arguments = (features, y, start, jnp.asarray(0.1))
    direction = (jr.normal(getkey(), (N, 3)), *_targets(getkey())[:2], jnp.asarray(1.0))

    def value(step, t, direction=direction):
        features, y, start, ridge = (a + step * d for a, d in zip(arguments, direction, strict=True))
        kernel, cross = features @ features.T, (features[:M] * jnp.array([[1.0, -2.0, 0.5]])) @ features.T
        flow = kernels.linearized(kernel, y, start=start, ridge=ridge)
        return jnp.sum(jnp.sin(flow.outputs(t))) + jnp.sum(jnp.cos(flow.predict(t, cross)))

    times, h = jnp.array([0.0, 0.05, 3.0, 1e4, jnp.inf]), 1e-5
    one = lambda step: jax.vmap(lambda t: value(step, t))(times)
    difference = jax.jit(lambda: (one(h) - one(-h)) / (2 * h))()
    forward = jax.jit(lambda: jax.jvp(one, (0.0,), (1.0,))[1])()
    backward = jax.jit(jax.grad(lambda step: jnp.sum(one(step) * jnp.arange(1.0, 6.0))))(0.0)
    np.testing.assert_allclose(backward, forward @ jnp.arange(1.0, 6.0), rtol=1e-10)
    np.testing.assert_allclose(forward, difference, rtol=1e-7)
    for index in range(4):  # the derivative in one of the arguments is left out
        others = tuple(0 * d if i == index else d for i, d in enumerate(direction))
        fewer = lambda step, others=others: jax.vmap(lambda t: value(step, t, others))(times)
        twin = jax.jit(lambda fewer=fewer: jax.jvp(fewer, (0.0,), (1.0,))[1])()
        cases.assert_fails(lambda twin=twin: np.testing.assert_allclose(twin, difference, rtol=1e-7))


def test_derivatives_in_time_and_through_a_singular_regression(getkey):
    (kernel, cross), (y, start, _) = _kernel(getkey(), 3), _targets(getkey())
    flow = kernels.linearized(kernel, y, start=start)
    rate = jax.jit(jax.jacfwd(flow.outputs))(jnp.asarray(0.7))
    np.testing.assert_allclose(rate, -kernel @ (flow.outputs(0.7) - y) / N, atol=cases.eps(1e2))
    assert np.abs(rate + kernel @ (flow.outputs(0.7) - y)).max() > 1e-4  # without the mean over samples
    by_y = jax.jit(jax.grad(lambda y: jnp.sum(kernels.regression(kernel, y).predict(cross))))(y)
    flat = jax.jit(jax.grad(lambda y: jnp.sum(kernels.linearized(kernel, y).predict(jnp.inf, cross))))(y)
    np.testing.assert_allclose(by_y, flat, atol=cases.eps(1e2))
    assert np.abs(flat).max() > 1e-2


@pytest.mark.slow
def test_a_singular_lane_beside_one_that_is_not(getkey):
    kernel, y = _kernel(getkey(), 3)[0], _targets(getkey())[0]
    ridges = jnp.array([0.0, 0.1])
    total = lambda r, y: jnp.sum(kernels.regression(kernel, y, ridge=r).outputs)
    lanes = jax.jit(jax.vmap(jax.grad(total, 1), (0, None)))(ridges, y)
    k = np.asarray(kernel, np.float64)
    inverses = np.linalg.pinv(k, 1e-6), np.linalg.inv(k + 0.1 * N * np.eye(N))
    for found, inverse in zip(lanes, inverses, strict=True):
        np.testing.assert_allclose(found, (inverse @ k).sum(0)[:, None] * np.ones((1, C)), atol=cases.eps(1e3))


@pytest.mark.parametrize("make", [_kernel, _mixed, lambda key: _kernel(key, 3)], ids=["diagonal", "mixed", "singular"])
def test_features_have_the_kernel_as_inner_products(make, getkey):
    kernel, cross = make(getkey())
    train, others = kernels.features(kernel, cross)
    assert others is not None
    blocks = 1 if kernel.ndim == 2 else C
    assert (train.shape, others.shape) == ((N, blocks, blocks * N), (M, blocks, blocks * N))
    for one, wanted in ((train, kernel), (others, cross)):
        products = lambda one, two, shape=wanted.shape: jnp.einsum("iap,jbp->iajb", one, two).reshape(shape)
        np.testing.assert_allclose(products(one, train), wanted, atol=cases.eps(1e2) * float(jnp.max(jnp.abs(wanted))))
        assert np.abs(products(one[..., 1:], train[..., 1:]) - wanted).max() > 1e-3  # one feature is left out
    assert kernels.features(kernel).others is None


@pytest.mark.x64_only
def test_derivatives_of_features(getkey):
    points, direction = _features(getkey(), 3), _features(getkey(), 3)

    def value(step, moved=1.0):
        joint = (points + step * direction) @ (points + step * direction).T
        train, others = kernels.features(joint[:N, :N], joint[N:, :N])
        assert others is not None
        return jnp.sum(jnp.sin(train)) + moved * jnp.sum(jnp.cos(others))

    (tangent, twin), h = jax.jit(jax.vmap(jax.grad(value), (None, 0)))(0.0, jnp.array([1.0, 0.0])), 1e-5
    difference = jax.jit(lambda: (value(h) - value(-h)) / (2 * h))()
    np.testing.assert_allclose(tangent, difference, rtol=1e-7)
    cases.assert_fails(lambda: np.testing.assert_allclose(twin, difference, rtol=1e-7))  # without those of the others


def test_ensemble_is_that_of_its_members(getkey):
    (kernel, cross), (y, mean, mean_test) = _kernel(getkey()), _targets(getkey())
    features = _features(getkey(), N + M)
    initial = features @ features.T
    t = 1.3
    ensemble = kernels.linearized_ensemble(kernel, initial[:N, :N], y, start=mean)
    given = (initial[N:, :N], initial[N:, N:], mean_test)
    # Starts whose empirical mean and covariance are those of the ensemble.
    signs = jnp.concatenate([jnp.eye(N + M), -jnp.eye(N + M)]) * jnp.sqrt(jnp.asarray(N + M, float))
    noise = (signs @ features.T)[:, :, None]
    many, many_test = mean[None] + noise[:, :N], mean_test[None] + noise[:, N:]
    member = lambda f0: kernels.linearized(kernel, y, start=f0)
    members = jax.vmap(lambda f0: member(f0).outputs(t))(many)
    members_test = jax.vmap(lambda f0, fx: member(f0).predict(t, cross, fx))(many, many_test)
    for found, drawn in ((ensemble.outputs(t), members), (ensemble.predict(t, cross, *given), members_test)):
        deviation = drawn[:, :, 0] - jnp.mean(drawn[:, :, 0], axis=0)[None, :]
        covariance = deviation.T @ deviation / len(drawn)
        size = float(jnp.max(covariance))
        np.testing.assert_allclose(found.mean, jnp.mean(drawn, axis=0), atol=cases.eps(1e2))
        np.testing.assert_allclose(found.covariance, covariance, atol=cases.eps(3e2) * size)
        moment = drawn[:, :, 0].T @ drawn[:, :, 0] / len(drawn)  # the mean is left in
        cases.assert_fails(
            lambda a=found.covariance, b=moment, s=size: np.testing.assert_allclose(a, b, atol=cases.eps(3e2) * s)
        )
    at_start = ensemble.predict(0.0, cross, *given)
    np.testing.assert_allclose(at_start.covariance, initial[N:, N:], atol=cases.eps(10) * float(jnp.max(initial)))
    assert np.abs(ensemble.outputs(jnp.inf).covariance).max() < cases.eps(1e2) * float(jnp.max(initial))
    # The same with blocks: outputs stay independent and equal.
    blocks = lambda k: k[:, None, :, None] * jnp.eye(C)[None, :, None, :]
    full = kernels.linearized_ensemble(blocks(kernel), initial[:N, :N], y, start=mean)
    one, two = full.predict(t, blocks(cross), *given), ensemble.predict(t, cross, *given)
    np.testing.assert_allclose(one.mean, two.mean, atol=cases.eps(1e2))
    np.testing.assert_allclose(one.covariance, blocks(two.covariance), atol=cases.eps(3e2) * float(jnp.max(initial)))


GOOD: Any = np.eye(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": GOOD + np.eye(3, k=1)}, "kernel must be symmetric; the largest difference .* is 1"),
        (
            {"kernel": np.diag([1.0, 1.0, -0.1])},
            "kernel is not positive semi-definite: its smallest eigenvalue.* -0.1",
        ),
        ({"kernel": np.diag([1.0, 1.0, -0.1]), "ridge": 1.0}, "kernel is not positive semi-definite"),
        ({"kernel": GOOD[:2]}, r"kernel must have shape \(3, 3\) or \(3, 2, 3, 2\) for targets \(3, 2\), got \(2, 3\)"),
        ({"kernel": GOOD.astype(np.float16)}, "kernel must be float32 or float64, got .*float16.*astype"),
        ({"kernel": np.eye(3, dtype=int)}, "kernel must be float32 or float64.*int"),
        ({"kernel": np.where(GOOD > 0, np.nan, 0)}, r"kernel holds 3 value\(s\) that are NaN"),
        ({"y": np.ones(3)}, r"y must have shape \(n, c\), one row per training point"),
        ({"start": np.ones((3, 1))}, r"start must have shape \(3, 2\)"),
        ({"ridge": -1.0}, "ridge must be finite and >= 0, got -1.0"),
        ({"ridge": np.ones(3)}, "ridge must be one number"),
    ],
)
@pytest.mark.parametrize("make", [kernels.linearized, kernels.regression])
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(make, change, message):
    dtype = jnp.result_type(float)
    arguments = {"kernel": GOOD, "y": np.ones((3, 2))} | change
    arguments = {
        name: value if getattr(value, "dtype", float) in (np.float16, int) else np.asarray(value, dtype)
        for name, value in arguments.items()
    }
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.usefixtures("as_users")
def test_bad_points():
    y = jnp.ones((3, 2))
    flow = kernels.linearized(jnp.eye(3), y)
    mixed = kernels.linearized(jnp.eye(6).reshape(3, 2, 3, 2), y)
    with pytest.raises(ValueError, match=r"cross must have shape \(m, 3\) like the kernel.* got \(4, 2\)"):
        flow.predict(1.0, jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"cross must have shape \(m, 2, 3, 2\)"):
        mixed.predict(1.0, jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"start must have shape \(4, 2\)"):
        flow.predict(1.0, jnp.ones((4, 3)), jnp.ones((3, 2)))
    with pytest.raises(ValueError, match=r"initial has blocks \(3, 2, 3, 2\), so the kernel must have them"):
        kernels.linearized_ensemble(jnp.eye(3), jnp.eye(6).reshape(3, 2, 3, 2), y)
    with pytest.raises(ValueError, match="initial is not positive semi-definite"):
        kernels.linearized_ensemble(jnp.eye(3), -jnp.eye(3), y)


def test_times_before_the_start_are_refused():
    flow = kernels.linearized(jnp.eye(2), jnp.ones((2, 1)))
    for bad in (-1.0, jnp.nan):
        with pytest.raises(ValueError, match=r"t must be one time in \[0, inf\], got"):
            flow.outputs(bad)
    found = jax.jit(jax.vmap(flow.outputs))(jnp.array([-1.0, 0.0]))
    assert np.all(np.isnan(found[0]))
    np.testing.assert_array_equal(found[1], 0.0)


def test_a_ridge_does_not_hide_a_negative_eigenvalue_among_many():
    """Of 1 and -0.3, which the sum of a thousand eigenvalues, times the rounding that is allowed, would cover."""
    kernel = jnp.diag(jnp.ones(1000, jnp.float32).at[-1].set(-0.3))
    with pytest.raises(ValueError, match="eigenvalue"):
        kernels.regression(kernel, jnp.ones((1000, 1), jnp.float32), ridge=0.5)
