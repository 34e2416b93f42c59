"""What is no kernel, and what cannot be compared."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import kernels, nets
from jaxsolve.kernels import distance, relative_change


@pytest.mark.parametrize("metric", [distance, relative_change, kernels.centred_distance])
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


@pytest.mark.usefixtures("as_users")
def test_rates_have_the_shape_of_the_parameters():
    net = nets.TwoLayerLinear(2, 4, scaling=nets.Scaling.ntk(), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"eta must be a pytree with one number at every trainable array.*got list"):
        kernels.empirical(net, jnp.eye(2), eta=[1.0, 2.0])
