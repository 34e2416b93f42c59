from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxsolve import kernels
from jaxsolve.kernels import distance, relative_change, target_alignment
from tests.cases import assert_fails, eps, X64


def _kernels(getkey):
    one, change = (jax.random.normal(getkey(), (4, 2, 4, 2)) for _ in range(2))
    return one, change


def _flat(array):
    return np.asarray(array, np.float64).ravel()


def _assert_is(found, expected):
    np.testing.assert_allclose(found, expected, rtol=eps(50))


def test_formulas(getkey):
    one, two = _kernels(getkey)
    a, b = _flat(one), _flat(two)
    norm = np.linalg.norm
    y = jax.random.normal(getkey(), (4, 2))
    v, matrix = _flat(y), _flat(one).reshape(8, 8)
    for found, expected, twin in (  # the twins leave out one norm each
        (distance(one, two), 1 - a @ b / (norm(a) * norm(b)), 1 - a @ b / norm(a)),
        (relative_change(two, one), norm(b - a) / norm(a), norm(b - a)),
        (target_alignment(one, y), v @ matrix @ v / (norm(a) * v @ v), v @ matrix @ v / norm(a)),
    ):
        _assert_is(found, expected)
        assert_fails(lambda found=found, twin=twin: _assert_is(found, twin))


def test_range_of_the_distance(getkey):
    one, _ = _kernels(getkey)
    np.testing.assert_allclose(distance(one, 3 * one), 0, atol=eps())
    np.testing.assert_allclose(distance(one, -one), 2, rtol=eps(10))
    np.testing.assert_allclose(distance(jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 5.0])), 1, rtol=eps(10))


def test_tiny_distances_do_not_cancel(getkey):
    """At K + s E the distance is s^2 (|E|^2/|K|^2 - <K, E>^2/|K|^4)/2, which 1 - cos would lose in rounding."""
    one, change = _kernels(getkey)
    s = 1e-6 if X64 else 1e-3
    k, e = _flat(one), _flat((one + s * change) - one) / s
    expected = s**2 * (e @ e / (k @ k) - (k @ e) ** 2 / (k @ k) ** 2) / 2
    tolerance = 30 * s if X64 else 0.02
    np.testing.assert_allclose(distance(one, one + s * change), expected, rtol=tolerance)
    np.testing.assert_allclose(relative_change(one + s * change, one), s * np.sqrt(e @ e / (k @ k)), rtol=eps(50))


def test_alignment_is_one_for_the_target_itself(getkey):
    y = jax.random.normal(getkey(), (4, 2))
    np.testing.assert_allclose(target_alignment(7 * jnp.einsum("na,mb->namb", y, y), y), 1, rtol=eps(10))
    # of the identity, 1/sqrt(dimensions)
    np.testing.assert_allclose(target_alignment(jnp.eye(8).reshape(4, 2, 4, 2), y), 8**-0.5, rtol=eps(10))


@pytest.mark.parametrize("metric", [distance, relative_change])
def test_under_jit_vmap_and_grad(metric, getkey):
    one, change = _kernels(getkey)
    at = lambda s: metric(one + s * change, one)
    many = jax.jit(jax.vmap(at))(jnp.asarray([0.1, 0.5]))
    for index, s in enumerate((0.1, 0.5)):
        np.testing.assert_allclose(many[index], at(s), rtol=eps(100))
    step = 1e-5 if X64 else 1e-2
    slope = (at(0.5 + step) - at(0.5 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(at)(0.5), slope, rtol=1e-8 if X64 else 1e-3)


# --- both layouts


def _positive(getkey, n=5, c=2):
    """A kernel with outputs, targets, and both in NumPy."""
    features, y = jax.random.normal(getkey(), (n, c, 12)), jax.random.normal(getkey(), (n, c))
    kernel = jnp.einsum("nap,mbp->namb", features, features)
    return kernel, y, np.asarray(kernel, np.float64), np.asarray(y, np.float64)


def _cosine(a, b):
    return np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))


def _centered(k):
    n, c = k.shape[:2]
    h = np.kron(np.eye(n) - 1 / n, np.eye(c))
    return (h @ k.reshape(n * c, n * c) @ h).reshape(k.shape)


def _check(found, expected, units=200):
    """Close to the formula."""
    np.testing.assert_allclose(found, expected, rtol=eps(units), atol=eps(units) * np.max(np.abs(expected)))


def _expected(k, y, other):
    """Every metric of a kernel (n, c, n, c) by its definition."""
    n, c = y.shape
    matrix, one_hot = k.reshape(n * c, n * c), np.array([[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]])
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    p = np.maximum(values, 1e-300) / values.sum()
    shares = (vectors.T @ y.ravel()) ** 2 / np.sum(y**2)
    average = k.trace(axis1=1, axis2=3) / c
    share = one_hot / one_hot.sum(1)[:, None]
    centered_y = y - y.mean(0)
    return {
        "trace": np.sum(values),
        "spectrum": values,
        "entropy": -np.sum(p * np.log(p)),
        "effective_rank": np.prod(p**-p),
        "participation_ratio": np.sum(values) ** 2 / np.sum(values**2),
        "shares": shares,
        "cumulative": [np.sum(shares[: i + 1]) for i in range(n * c)],
        "output_average": average,
        "centered_alignment": _cosine(_centered(k), _centered(other)),
        "centered_distance": 1 - _cosine(_centered(k), _centered(other)),
        "centered_target_alignment": _cosine(_centered(k), np.einsum("na,mb->namb", centered_y, centered_y)),
        "class_kernel": share @ average @ share.T,
        "within": [np.mean([average[i, j] for i in (0, 2, 4) for j in (0, 2, 4) if i != j]), average[1, 3]],
        "between": [[np.nan, share[0] @ average @ share[1]], [share[0] @ average @ share[1], np.nan]],
    }


@jax.jit
def _found(k, y, other):
    labels = jnp.asarray([0, 1, 0, 1, 0])
    power, means = kernels.target_power(k, y), kernels.class_means(k, labels, 2)
    names = ("trace", "spectrum", "entropy", "effective_rank", "participation_ratio", "output_average")
    return {name: getattr(kernels, name)(k) for name in names} | {
        "shares": power.shares,
        "cumulative": power.cumulative,
        "values": power.values,
        "centered_alignment": kernels.centered_alignment(k, other),
        "centered_distance": kernels.centered_distance(k, other),
        "centered_target_alignment": kernels.centered_target_alignment(k, y),
        "target_alignment": target_alignment(k, y),
        "class_kernel": kernels.class_kernel(k, labels, 2),
        "within": means.within,
        "between": means.between,
    }


def test_metrics_with_outputs(getkey):
    kernel, y, k, target = _positive(getkey)
    other, _, o, _ = _positive(getkey)
    found, one_output = _found(kernel, y, other), k * (np.arange(2) == 0)[:, None, None] * (np.arange(2) == 0)
    twins = _expected(one_output, target, o)  # the second output is left out of the kernel
    for name, expected in _expected(k, target, o).items():
        # between holds NaN on its diagonal, which no check of its size survives
        pick = (lambda a: np.asarray(a)[[0, 1], [1, 0]]) if name == "between" else np.asarray
        value, units = pick(found[name]), 1000 if name in ("spectrum", "shares") else 200
        _check(value, pick(expected), units)
        assert_fails(lambda value=value, twin=pick(twins[name]), units=units: _check(value, twin, units))
    np.testing.assert_array_equal(np.isnan(found["between"]), np.eye(2, dtype=bool))
    np.testing.assert_allclose(found["values"], found["spectrum"], rtol=eps(200), atol=eps(100) * k.trace().sum())


def test_target_alignment_of_both_layouts_agrees_for_one_output(getkey):
    kernel, y, k, target = _positive(getkey, c=1)
    expected = _cosine(k[:, 0, :, 0], target @ target.T)
    _check(target_alignment(kernel, y), expected)
    _check(target_alignment(kernel[:, 0, :, 0], y), expected)


@pytest.mark.slow
def test_a_kernel_without_outputs_is_its_output_diagonal_one(getkey):
    """k delta_ab: c times the trace and ranks, log c more entropy, every eigenvalue c times; the rest is equal."""
    kernel, _, _, _ = _positive(getkey, c=1)
    other, _, _, _ = _positive(getkey, c=1)
    plain, other = kernel[:, 0, :, 0], other[:, 0, :, 0]
    y = jax.random.normal(getkey(), (5, 3))
    with_outputs = lambda k: jnp.einsum("nm,ab->namb", k, jnp.eye(3))
    one, many = _found(plain, y, other), _found(with_outputs(plain), y, with_outputs(other))
    for name in ("trace", "effective_rank", "participation_ratio"):
        _check(many[name], 3 * np.asarray(one[name]))
    _check(many["entropy"], np.asarray(one["entropy"]) + np.log(3))
    _check(many["spectrum"], np.repeat(one["spectrum"], 3))
    _check(many["shares"].reshape(5, 3).sum(1), one["shares"])
    for name in ("output_average", "centered_alignment", "centered_distance", "class_kernel", "within"):
        _check(many[name], one[name])
    # The target's kernel is y y^T with outputs and Y Y^T, of the higher rank, without.
    gram = np.asarray(y @ y.T, np.float64)
    _check(one["target_alignment"], _cosine(np.asarray(plain, np.float64), gram))
    _check(many["target_alignment"], np.asarray(one["target_alignment"]) * np.linalg.norm(gram) / 3**0.5 / gram.trace())


# --- limits


def test_ranks_of_projectors(getkey):
    """r equal eigenvalues: both ranks are r, the entropy log r, and rounding leaves no eigenvalue below 0."""
    basis = jnp.linalg.qr(jax.random.normal(getkey(), (6, 6)))[0]
    for r in (1, 4):
        kernel = 3 * basis[:, :r] @ basis[:, :r].T
        assert np.min(kernels.spectrum(kernel)) >= 0
        _check(kernels.effective_rank(kernel), r)
        _check(kernels.participation_ratio(kernel), r)
        np.testing.assert_allclose(kernels.entropy(kernel), np.log(r), rtol=eps(100), atol=eps(100))


def test_what_is_no_kernel_shows_its_negative_eigenvalues():
    values = kernels.spectrum(jnp.diag(jnp.asarray([1.0, -1e-3, 0.5])))
    np.testing.assert_allclose(values, [1, 0.5, -1e-3], rtol=eps(10))
    assert np.isnan(kernels.entropy(jnp.diag(jnp.asarray([1.0, -1e-3, 0.5]))))


@jax.jit
def _without_scale(s):
    one, two = jnp.diag(jnp.asarray([1.0, 2.0, 3.0])), jnp.ones((3, 3)) + jnp.eye(3)
    y = jnp.asarray([[1.0], [2.0], [-1.0]])
    numbers = (
        distance(s * one, two),
        relative_change(s * two, s * one),
        target_alignment(s * one, s * y),
        kernels.centered_alignment(s * one, s * two),
        kernels.entropy(s * one),
        kernels.participation_ratio(s * one),
    )
    return jnp.concatenate(
        [jnp.stack(numbers), kernels.spectrum(s * one) / s, kernels.target_power(s * two, s * y).cumulative[:1]]
    )


@settings(max_examples=20, deadline=None)
@given(exponent=st.integers(-290, 290) if X64 else st.integers(-30, 35))
def test_no_scale_overflows(exponent):
    """Squares of these kernels would: alignments, distances and ranks do not see the scale."""
    found = _without_scale(jnp.asarray(10.0**exponent, float))
    np.testing.assert_allclose(found, _without_scale(jnp.asarray(1.0)), rtol=eps(50), atol=eps(50))


def test_undefined_is_nan(getkey):
    """No kernel, no target, nothing left after centering: no number pretends otherwise."""
    kernel, y, _, _ = _positive(getkey)
    zero = jnp.zeros_like(kernel)
    undefined = lambda: (
        distance(zero, kernel),
        kernels.entropy(zero),
        kernels.participation_ratio(zero),
        target_alignment(kernel, jnp.zeros_like(y)),
        kernels.centered_target_alignment(kernel, jnp.ones_like(y)),
        kernels.centered_alignment(jnp.ones_like(kernel), kernel),
    )
    values, spectrum = jax.jit(lambda: (undefined(), kernels.spectrum(zero)))()
    assert np.all(np.isnan(values))
    np.testing.assert_array_equal(spectrum, 0)


# --- derivatives


@pytest.mark.x64_only
def test_derivatives(getkey):
    """Against central differences."""
    kernel, y, _, _ = _positive(getkey, n=4)
    step = jnp.einsum("na,mb->namb", y, y)
    every = lambda k: jnp.concatenate(
        [
            kernels.spectrum(k),
            kernels.target_power(k, y).shares,
            jnp.stack([kernels.entropy(k), kernels.participation_ratio(k), kernels.centered_alignment(k, kernel)]),
            jnp.stack([target_alignment(k, y), kernels.centered_target_alignment(k, y), relative_change(k, kernel)]),
        ]
    )
    at = jax.jit(lambda s: every(kernel + s * step))
    slope = (at(0.3 + 1e-5) - at(0.3 - 1e-5)) / 2e-5
    derivative = jax.jit(lambda s: jax.jvp(at, (s,), (jnp.ones_like(s),))[1])
    np.testing.assert_allclose(derivative(jnp.asarray(0.3)), slope, rtol=1e-6, atol=1e-8)


@pytest.mark.x64_only
def test_derivatives_at_equal_and_vanishing_eigenvalues():
    values = jnp.asarray([2.0, 2.0, 1.0, 0.0])
    total = lambda k: jnp.sum(kernels.spectrum(k) ** 2) + kernels.entropy(k) + relative_change(k, jnp.diag(values))
    gradient = jax.jit(jax.grad(total))(jnp.diag(values))
    p = values[:3] / 5
    entropy_slope = -(jnp.log(p) + jnp.sum(-p * jnp.log(p))) / 5
    np.testing.assert_allclose(jnp.diag(gradient)[:3], 2 * values[:3] + entropy_slope, rtol=1e-13)
    assert np.all(np.isfinite(gradient))


# --- classes


def test_class_kernel_is_that_of_mean_features(getkey):
    features = jax.random.normal(getkey(), (6, 3))
    labels = jnp.asarray([2, 0, 1, 2, 0, 0])
    means = np.array([np.asarray(features, np.float64)[np.asarray(labels) == k].mean(0) for k in range(3)])
    _check(kernels.class_kernel(features @ features.T, labels, 3), means @ means.T)
    traced = jax.jit(lambda labels: kernels.class_kernel(features @ features.T, labels, 4))(labels)
    assert np.all(np.isnan(traced[3]))  # in a trace nothing raises
    np.testing.assert_allclose(traced[:3, :3], kernels.class_kernel(features @ features.T, labels, 3), rtol=eps(50))
    alone = kernels.class_means(features @ features.T, jnp.asarray([0, 0, 0, 0, 0, 1]), 2).within
    assert np.isfinite(alone[0])
    assert np.isnan(alone[1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda k, y: kernels.trace(k[0]), ValueError, r"must have shape \(n, c, n, c\), or \(n, n\).* \(2, 5, 2\)"),
        (lambda k, y: kernels.spectrum(k[:, :, :3]), ValueError, r"got an array of shape \(5, 2, 3, 2\)"),
        (lambda k, y: target_alignment(k, y[:, :1]), ValueError, r"needs targets with one row per sample"),
        (lambda k, y: kernels.target_power(k[:, 0, :, 0], y[:4]), ValueError, r"needs targets with one row"),
        (lambda k, y: kernels.centered_alignment(k, k[:, 0, :, 0]), ValueError, "output_average turns"),
        (lambda k, y: kernels.class_kernel(k, jnp.arange(4), 5), ValueError, "needs one label per sample"),
        (lambda k, y: kernels.class_kernel(k, jnp.arange(5), 6), ValueError, "no sample has label 5"),
        (lambda k, y: kernels.class_means(k, jnp.arange(5), 4), ValueError, r"must lie in 0..3, got 0..4"),
        (lambda k, y: kernels.class_kernel(k, y[:, 0], 2), TypeError, "labels must be integers, got an array"),
        (lambda k, y: kernels.class_kernel(k, jnp.arange(5), cast(int, 2.0)), TypeError, "classes must be an integer"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(call, error, message, getkey):
    kernel, y, _, _ = _positive(getkey)
    with pytest.raises(error, match=message):
        call(kernel, y)
