"""What a kernel in float32 holds is not lost on the way to its spectrum, or to the kernel of centered features."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsolve import kernels
from tests.cases import assert_fails, eps


def test_entries_that_are_nearly_equal_are_centered(getkey):
    """What rounding leaves of the means is removed as well."""
    rounding = float(jnp.finfo(jnp.float32).eps)
    features = jax.random.normal(getkey(), (200, 5))
    kernel = (1 + 1e-4 * features @ features.T).astype(jnp.float32)
    wide = np.asarray(kernel, np.float64)
    expected = wide - wide.mean(0) - wide.mean(1)[:, None] + wide.mean()
    size = np.abs(expected).max()
    close = lambda found: np.testing.assert_allclose(found, expected, rtol=0, atol=10 * rounding * size)
    close(kernels.center(kernel))
    once = kernel - jnp.mean(kernel, axis=0, keepdims=True)
    assert_fails(lambda: close(once - jnp.mean(once, axis=1, keepdims=True)))


def test_small_eigenvalues_of_float32_are_those_of_the_matrix(getkey):
    """And so are the shares of a target on their vectors; the twin decomposes in float32."""
    frame = np.linalg.qr(np.asarray(jax.random.normal(getkey(), (100, 100)), np.float64))[0]
    kernel = jnp.asarray(frame * np.geomspace(1, 1e-5, 100) @ frame.T, jnp.float32)
    kernel = (kernel + kernel.T) / 2
    y = jnp.asarray(frame.sum(1)[:, None], jnp.float32)
    values, vectors = (part[..., ::-1] for part in np.linalg.eigh(np.asarray(kernel, np.float64)))
    shares = (vectors.T @ np.asarray(y, np.float64))[:, 0] ** 2 / np.sum(np.asarray(y, np.float64) ** 2)

    def close(found_values, found_shares):
        np.testing.assert_allclose(found_values, values, rtol=2e-6)
        np.testing.assert_allclose(found_shares, shares, rtol=2e-5)

    power = kernels.target_power(kernel, y)
    close(power.values, power.shares)
    close(kernels.spectrum(kernel), power.shares)
    rough, rough_vectors = (part[..., ::-1] for part in jnp.linalg.eigh(kernel))
    assert_fails(lambda: close(rough, power.shares))
    assert_fails(lambda: close(power.values, (rough_vectors.T @ y)[:, 0] ** 2 / jnp.sum(y**2)))


def test_derivatives_of_the_spectrum_are_those_of_the_decomposition(getkey):
    root, weights, y = (jax.random.normal(getkey(), shape) for shape in ((5, 5), (5,), (5, 1)))
    kernel = root @ root.T + jnp.diag(jnp.arange(5.0))

    def ours(kernel):
        return weights @ kernels.spectrum(kernel) + weights @ kernels.target_power(kernel, y).shares

    def plain(kernel):
        values, vectors = jnp.linalg.eigh(kernel)
        return weights @ (values + (vectors.T @ y)[:, 0] ** 2 / jnp.sum(y**2))[::-1]

    for derivative in (
        jax.grad,
        lambda f: jax.jit(jax.jacfwd(f)),
        lambda f: jax.grad(lambda k: jnp.sum(jax.grad(f)(k) ** 2)),
    ):
        symmetric = lambda f, derivative=derivative: (lambda d: np.asarray(d + d.T))(derivative(f)(kernel))
        expected = symmetric(plain)
        np.testing.assert_allclose(symmetric(ours), expected, rtol=0, atol=eps(1000) * np.abs(expected).max())
