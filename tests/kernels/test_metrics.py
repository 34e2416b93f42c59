import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    for found, expected in (
        (distance(one, two), 1 - a @ b / (norm(a) * norm(b))),
        (relative_change(two, one), norm(b - a) / norm(a)),
        (target_alignment(one, y), v @ matrix @ v / (norm(a) * v @ v)),
    ):
        _assert_is(found, expected)
        assert_fails(lambda found=found, expected=expected: _assert_is(found, 1.01 * expected))


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
