"""What is no kernel, and what cannot be compared."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import kernels, nets
from jaxsolve.kernels import distance, relative_change


@pytest.mark.parametrize("metric", [distance, relative_change, kernels.centered_distance])
@pytest.mark.parametrize("shape", [(1, 6), (), (6, 1), (6, 1, 6, 1)])
@pytest.mark.usefixtures("as_users")
def test_kernels_of_two_shapes_do_not_broadcast(metric, shape):
    with pytest.raises(ValueError, match=r"the kernels must have one shape, got \(6, 6\) and \("):
        metric(jnp.eye(6), jnp.ones(shape))


@pytest.mark.usefixtures("as_users")
def test_what_has_no_spectrum():
    """Asymmetric and complex matrices are no kernels; a negative one has no entropy, though its shares sum to 1."""
    with pytest.raises(ValueError, match="kernel must be symmetric; the largest difference .* is 2"):
        kernels.spectrum(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    with pytest.raises(TypeError, match="kernel must be an array of real numbers, got .* complex"):
        kernels.spectrum(jnp.array([[1.0, 1j], [-1j, 1.0]]))
    assert np.isnan(kernels.entropy(-jnp.eye(3)))
    assert np.isnan(jax.jit(kernels.effective_rank)(-jnp.eye(3)))
    with pytest.raises(TypeError, match="one must be an array of real numbers, got str 'text'"):
        distance(cast(jax.Array, "text"), jnp.eye(2))


def test_traced_rates_have_the_shape_of_one_number():
    f = lambda p, x: p["w"] @ x
    net, x = nets.Function(f, {"w": jnp.ones((1, 3))}), jnp.ones((2, 3))
    kernel = lambda rate: kernels.empirical(net, x, eta=nets.Function(f, {"w": rate})).ntk
    jax.jit(kernel)(jnp.asarray(2.0))
    with pytest.raises(ValueError, match="eta must be a pytree with one number"):
        jax.jit(kernel)(jnp.array([1.0, 100.0]))


@pytest.mark.x64_only
def test_parameters_of_two_dtypes_are_refused_for_integers_too():
    params = {"a": jnp.ones((6, 4), jnp.float32), "b": jnp.ones((1, 4), jnp.float64)}
    f = lambda p, t: p["b"] @ jnp.tanh(jnp.mean(p["a"][t], 0)).astype(jnp.float64)
    with pytest.raises(ValueError, match="parameters are float32 and float64; give all of them one dtype"):
        kernels.empirical(nets.Function(f, params), jnp.array([[0, 1], [2, 3]]))


def test_kernels_with_negative_eigenvalues_are_none():
    with pytest.raises(ValueError, match="not positive semi-definite"):
        kernels.features(jnp.array([[1.0, 2.0], [2.0, 1.0]]))
    ts, y = jnp.array([0.0, 5.0, 6.0]), jnp.ones((2, 1))
    path = jnp.stack([jnp.eye(2), jnp.eye(2), jnp.array([[1.0, 4.0], [4.0, 1.0]])])
    with pytest.raises(ValueError, match="not positive semi-definite"):
        kernels.along_path(ts, path, y)
    with pytest.raises(ValueError, match="cross_start is at other points"):
        kernels.along_path(ts, jnp.broadcast_to(jnp.eye(2), (3, 2, 2)), y, cross_start=jnp.ones((1, 1)))


@pytest.mark.usefixtures("as_users")
def test_what_an_operator_takes():
    net = nets.TwoLayerLinear(in_size=2, width_size=4, scaling=nets.Scaling.ntk(), key=jax.random.key(0))
    operator = kernels.NTKOperator(net, jnp.eye(2))
    np.testing.assert_array_equal(operator.mv(cast(jax.Array, [[1.0], [0.5]])), operator.mv(jnp.array([[1.0], [0.5]])))
    with pytest.raises(ValueError, match=r"v must have shape \(2, 1\)"):
        operator.cross(jnp.eye(2), jnp.ones((3, 1)))
    with pytest.raises(ValueError, match="x is float16"):
        operator.cross(jnp.ones((1, 2), jnp.float16), jnp.ones((2, 1)))
