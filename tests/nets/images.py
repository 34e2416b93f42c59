"""Image networks in NumPy, layer by layer, and small ones to try things on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsolve import nets, Problem


def convolve(w, z, stride):
    """The sum over the window of W z, zeros around the image: ceil(size/stride) pixels; an odd zero at the end."""
    w, z = np.asarray(w), np.asarray(z)
    sizes = [-(-size // stride) for size in z.shape[1:]]
    pad = [max((n - 1) * stride + k - size, 0) for n, k, size in zip(sizes, w.shape[2:], z.shape[1:], strict=True)]
    top, left = (p // 2 for p in pad)
    inside, (_, height, width) = z, z.shape
    z = np.zeros((z.shape[0], height + pad[0], width + pad[1]), z.dtype)
    z[:, top : top + height, left : left + width] = inside
    out = np.zeros((w.shape[0], *sizes), z.dtype)
    for row, column in np.ndindex(*w.shape[2:]):
        rows, columns = (slice(i, i + (n - 1) * stride + 1, stride) for i, n in zip((row, column), sizes, strict=True))
        out += np.einsum("oi,ihw->ohw", w[:, :, row, column], z[:, rows, columns])
    return out


def relu(z):
    return np.maximum(z, 0)


def draw(key, *shape):
    """A Gaussian array from NumPy: nothing to compile."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return jnp.asarray(generator.normal(size=shape), jnp.result_type(float))


class Drawn(nets.AbstractInit):
    """Gaussian, drawn by NumPy: nothing to compile."""

    def __call__(self, shapes, scaling, key):
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        draw = lambda sigma, *shape: sigma * jnp.asarray(generator.normal(size=shape), shapes.dtype)
        weights = tuple(draw(s, *shape) for s, shape in zip(scaling.sigma, shapes.weights, strict=True))
        biases = tuple(draw(scaling.bias_sigma, shape[0]) for shape in shapes.weights) if shapes.bias else ()
        return nets.Start(weights, biases)


def problem(net, key, *, n=2, test=0, **options):
    """Gaussian images and targets for a network."""
    x, y = draw(key, n + test, *net.in_shape), draw(jax.random.fold_in(key, 1), n + test, net.out_size)
    return Problem(net, x[:n], y[:n], test=(x[n:], y[n:]) if test else None, **options)


@eqx.filter_jit
def velocity(start):
    """d theta/dt of the gradient flow."""
    return jax.tree.map(lambda rate, g: -rate * g, start.eta, jax.grad(start.objective)(start.params))


@eqx.filter_jit
def drifts(net, params, velocity, eta):
    """The slope of every conserved quantity along the flow, relative to how fast its two terms change."""
    slopes = jax.jvp(lambda p: net.conserved(p, eta), (params,), (velocity,))[1]
    return jnp.stack([jnp.max(jnp.abs(s.value)) / jnp.max(jnp.abs(s.outgoing)) for s in slopes])
