"""Symmetric operators of a network known only by their products with vectors: no kernel, Jacobian or Hessian is formed.

Samples go through the network in batches, so memory grows with the batch and not with their number.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._checks import describe, require_size
from ..nets import partition
from ._empirical import unit_rates


# What a backward pass may keep of one batch, in bytes, when no batch size is given.
BATCH_MEMORY = 64 * 2**20


class AbstractSymmetricOperator(eqx.Module):
    """A symmetric linear map between arrays, or pytrees of arrays, of one structure."""

    @property
    @abc.abstractmethod
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the vectors it acts on."""

    @property
    @abc.abstractmethod
    def positive(self) -> bool:
        """Whether it is known to have no eigenvalue below 0."""

    @abc.abstractmethod
    def mv(self, v: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """Its product with a vector."""

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.structure))

    def flat(self) -> tuple[Callable[[Array], Array], Callable[[Array], PyTree], Any]:
        """The product on flat vectors, what turns a flat vector into one of this structure, and the dtype."""
        zero, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.structure))
        return lambda v: ravel_pytree(self.mv(unravel(v)))[0], unravel, zero.dtype

    def as_lineax(self) -> lineax.FunctionLinearOperator:
        """The same for Lineax, whose sums and solvers then work on it: `lineax.CG` needs no matrix.

        Of a sum with `ridge * lineax.IdentityLinearOperator(operator.structure)` Lineax must be told that it is
        positive, by `lineax.TaggedLinearOperator`.
        """
        tag = lineax.positive_semidefinite_tag if self.positive else lineax.symmetric_tag
        return lineax.FunctionLinearOperator(self.mv, self.structure, tag)


class NTKOperator(AbstractSymmetricOperator):
    """The empirical NTK sum_l eta_l <df/dtheta_l, df/dtheta_l> on a training set, `kernels.empirical`, by products.

    K v = J (eta J^T v): one backward and one forward derivative per batch of samples.

    Arguments:
        net: a network or any Equinox module acting on one sample and returning (c,).
        x: inputs, shape (n, ...).
        eta: learning rates, a pytree with a scalar at every trainable array (`nets.rates(net)` are the network's own).
            None takes 1 everywhere: the plain NTK.
        batch_size: samples that go through the network at once. None takes as many as keep what a backward pass saves
            below 64 MiB. On CPU, XLA is slow at channel-first convolutions in batches (jax issue 12868), not at
            channel-last ones.

    Raises:
        ValueError: x holds no sample, net does not return shape (c,), or batch_size is below 1.
        TypeError: batch_size is not an integer.
    """

    net: Any
    x: Float[Array, "n ..."]
    eta: PyTree
    batch_size: int = eqx.field(static=True)  # a size

    def __init__(self, net: Any, x: Float[Array, "n ..."], *, eta: PyTree | None = None, batch_size: int | None = None):
        self.net, self.x = net, x
        self.eta = unit_rates(net) if eta is None else eta
        self.batch_size = _batch_size(net, x, batch_size)

    @property
    def structure(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.x.shape[0], *_output(self.net, self.x).shape), self.x.dtype)

    @property
    def positive(self) -> bool:
        return True

    def mv(self, v: Float[Array, "n out"]) -> Float[Array, "n out"]:
        """K v, shape (n, c)."""
        return self.cross(self.x, v)

    def cross(self, x: Float[Array, "m ..."], v: Float[Array, "n out"]) -> Float[Array, "m out"]:
        """K(x, x_train) v at other inputs, shape (m, c): what kernel regression predicts with coefficients v.

        Raises:
            ValueError: v is not one number per training sample and output.
        """
        if v.shape != self.structure.shape:
            raise ValueError(f"v must have shape {self.structure.shape}, got {describe(v)}")
        params, f = _function(self.net)
        backward = lambda x, v: jax.vjp(lambda p: f(p, x), params)[1](v)[0]
        direction = _weighted(self.eta, _sum_batches(backward, self.batch_size, self.x, v))
        forward = lambda x: jax.jvp(lambda p: f(p, x), (params,), (direction,))[1]
        return _map_batches(forward, self.batch_size, x)


class GaussNewtonOperator(AbstractSymmetricOperator):
    """The Gauss-Newton matrix J^T H J in parameter space, H the Hessian of the loss in f.

    With rates it is sqrt(eta) J^T H J sqrt(eta), which has the eigenvalues of eta J^T H J and stays symmetric: those
    off 0 are also those of H^(1/2) K H^(1/2) with the eta-weighted NTK K.

    Arguments:
        net, x, eta, batch_size: as for `NTKOperator`.
        hessian: d^2 loss/d f_i d f_i of every sample, shape (n, c, c): `loss.hessian(f, y)`, which carries 1/n.

    Raises:
        ValueError: hessian does not have shape (n, c, c); and as for `NTKOperator`.
        TypeError: batch_size is not an integer.
    """

    net: Any
    x: Float[Array, "n ..."]
    hessian: Float[Array, "n out out"]
    eta: PyTree
    batch_size: int = eqx.field(static=True)  # a size

    def __init__(
        self,
        net: Any,
        x: Float[Array, "n ..."],
        hessian: Float[Array, "n out out"],
        *,
        eta: PyTree | None = None,
        batch_size: int | None = None,
    ):
        self.net, self.x, self.hessian = net, x, hessian
        self.eta = unit_rates(net) if eta is None else eta
        self.batch_size = _batch_size(net, x, batch_size)
        _check_hessian(net, x, hessian)

    @property
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        return _shapes(self.net)

    @property
    def positive(self) -> bool:
        return False  # for losses that are not convex in f

    def mv(self, v: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The product with a pytree shaped like the parameters."""
        params, f = _function(self.net)
        half = _weighted(jax.tree.map(jnp.sqrt, self.eta), v)

        def product(x, hessian):
            moved = jax.jvp(lambda p: f(p, x), (params,), (half,))[1]
            return jax.vjp(lambda p: f(p, x), params)[1](jnp.einsum("nab,nb->na", hessian, moved))[0]

        total = _sum_batches(product, self.batch_size, self.x, self.hessian)
        return _weighted(jax.tree.map(jnp.sqrt, self.eta), total)


class HessianOperator(AbstractSymmetricOperator):
    """The Hessian of a loss in parameter space: J^T H J + sum_i (dloss/df_i) d^2 f_i/dtheta^2.

    With rates it is sqrt(eta) (...) sqrt(eta), as for `GaussNewtonOperator`. The loss enters by its derivatives at the
    network's present outputs f, so that any loss serves, of centred networks too.

    Arguments:
        net, x, eta, batch_size: as for `NTKOperator`.
        gradient: d loss/d f, shape (n, c): `loss.gradient(f, y)`.
        hessian: d^2 loss/d f_i d f_i, shape (n, c, c): `loss.hessian(f, y)`.

    Raises:
        ValueError: gradient or hessian have another shape; and as for `NTKOperator`.
        TypeError: batch_size is not an integer.
    """

    net: Any
    x: Float[Array, "n ..."]
    gradient: Float[Array, "n out"]
    hessian: Float[Array, "n out out"]
    eta: PyTree
    batch_size: int = eqx.field(static=True)  # a size

    def __init__(
        self,
        net: Any,
        x: Float[Array, "n ..."],
        gradient: Float[Array, "n out"],
        hessian: Float[Array, "n out out"],
        *,
        eta: PyTree | None = None,
        batch_size: int | None = None,
    ):
        self.net, self.x, self.gradient, self.hessian = net, x, gradient, hessian
        self.eta = unit_rates(net) if eta is None else eta
        self.batch_size = _batch_size(net, x, batch_size)
        _check_hessian(net, x, hessian)
        if gradient.shape != hessian.shape[:2]:
            raise ValueError(f"gradient must be loss.gradient(f, y), shape {hessian.shape[:2]}, got {gradient.shape}")

    @property
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        return _shapes(self.net)

    @property
    def positive(self) -> bool:
        return False

    def mv(self, v: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The product with a pytree shaped like the parameters."""
        params, f = _function(self.net)
        half = _weighted(jax.tree.map(jnp.sqrt, self.eta), v)

        def product(x, gradient, hessian):
            now = f(params, x)

            def slope(p):
                out, back = jax.vjp(lambda q: f(q, x), p)
                # The gradient in f where out moves away from the present outputs, to first order.
                return back(gradient + jnp.einsum("nab,nb->na", hessian, out - now))[0]

            return jax.jvp(slope, (params,), (half,))[1]

        total = _sum_batches(product, self.batch_size, self.x, self.gradient, self.hessian)
        return _weighted(jax.tree.map(jnp.sqrt, self.eta), total)


def _function(net: Any) -> tuple[PyTree, Callable[[PyTree, Array], Array]]:
    """The trainable arrays, and the network as a function of them and a batch."""
    params, static = partition(net)
    return params, lambda p, x: jax.vmap(eqx.combine(p, static))(x)


def _shapes(net: Any) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), partition(net)[0])


def _weighted(eta: PyTree, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda e, leaf: e * leaf, eta, tree)


def _output(net: Any, x: Float[Array, "n ..."]) -> jax.ShapeDtypeStruct:
    return eqx.filter_eval_shape(net, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))


def _check_hessian(net: Any, x: Float[Array, "n ..."], hessian: Float[Array, "n out out"]) -> None:
    (c,) = _output(net, x).shape
    if hessian.shape != (x.shape[0], c, c):
        raise ValueError(f"hessian must be loss.hessian(f, y), shape {(x.shape[0], c, c)}, got {describe(hessian)}")


def _batch_size(net: Any, x: Float[Array, "n ..."], asked: int | None) -> int:
    """Samples at once: as asked, or as memory allows; then evened out, so that the last batch needs little padding."""
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"x is {describe(x)}, at least one sample is needed")
    out = _output(net, x)
    if len(getattr(out, "shape", ())) != 1:
        raise ValueError(f"net must map one sample to an array of shape (c,), got {describe(out)}")
    if asked is not None:
        most = require_size(asked, "batch_size")
    else:
        most = max(1, BATCH_MEMORY // max(1, _saved(net, x, 2) - _saved(net, x, 1)))
    batches = -(-x.shape[0] // most)
    return -(-x.shape[0] // batches)


def _saved(net: Any, x: Float[Array, "n ..."], samples: int) -> int:
    """Bytes that the backward pass of so many samples keeps of the forward pass."""
    params, f = _function(net)
    batch = jax.ShapeDtypeStruct((samples, *x.shape[1:]), x.dtype)
    backward = eqx.filter_eval_shape(lambda p, x: jax.vjp(lambda q: f(q, x), p)[1], params, batch)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward) if hasattr(leaf, "dtype"))


def _batches(array: Float[Array, "n ..."], size: int, *, repeat: bool) -> Float[Array, "batches size ..."]:
    """The rows in batches, the last filled up with copies of the first row (where any network is finite) or zeros."""
    missing = -array.shape[0] % size
    fill = jnp.broadcast_to(array[:1] if repeat else jnp.zeros_like(array[:1]), (missing, *array.shape[1:]))
    return jnp.concatenate([array, fill]).reshape(-1, size, *array.shape[1:])


def _sum_batches(fn: Callable[..., PyTree], size: int, x: Array, *weights: Array) -> PyTree:
    """The sum over batches of fn(x, *weights), which is linear in the weights taken together."""
    if x.shape[0] <= size:
        return fn(x, *weights)
    rows = (_batches(x, size, repeat=True), *(_batches(w, size, repeat=False) for w in weights))
    add = lambda total, row: (jax.tree.map(jnp.add, total, fn(*row)), None)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(fn, *(r[0] for r in rows)))
    return jax.lax.scan(add, zero, rows)[0]


def _map_batches(fn: Callable[[Array], Array], size: int, x: Array) -> Array:
    """The rows of fn(x), batch by batch."""
    if x.shape[0] <= size:
        return fn(x)
    rows = jax.lax.map(fn, _batches(x, size, repeat=True))
    return rows.reshape(-1, *rows.shape[2:])[: x.shape[0]]
