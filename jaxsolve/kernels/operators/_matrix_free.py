"""Symmetric operators of a network, as products with vectors: no kernel, Jacobian or Hessian is formed.

Samples go through the network in batches, so memory grows with the batch size and not with the number of samples.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._checks import describe, real_array, require_key, require_kind
from ..._numerics import hashable, Inputs, samples_in
from ...nets import partition
from ..finite._batches import choose_batch_size, function, map_batches, output, sum_batches
from ..finite._empirical import unit_rates
from ..finite._inputs import check_inputs, check_rates


class AbstractSymmetricOperator(eqx.Module):
    """A symmetric linear map on arrays, or pytrees of arrays, of one structure.

    Example:
        >>> class Diagonal(js.kernels.AbstractSymmetricOperator):
        ...     entries: jax.Array
        ...
        ...     @property
        ...     def structure(self):
        ...         return jax.ShapeDtypeStruct(self.entries.shape, self.entries.dtype)
        ...
        ...     def mv(self, v):
        ...         return self.entries * v
        >>> pairs = js.kernels.top_eigenpairs(Diagonal(jnp.arange(8.0)), 2, key=jax.random.key(0))
        >>> print(pairs.values)
        [7. 6.]
    """

    @property
    @abc.abstractmethod
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the vectors it acts on."""

    @abc.abstractmethod
    def mv(self, v: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The product with a vector."""

    @property
    def size(self) -> int:
        """The number of entries in a vector."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.structure))

    def flat(self) -> tuple[Callable[[Array], Array], Callable[[Array], PyTree], Any]:
        """The product on flat vectors, the function that unravels a flat vector, and the dtype."""
        zero, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.structure))
        return lambda v: ravel_pytree(self.mv(unravel(v)))[0], unravel, zero.dtype


def check_operator(operator: Any, key: Any) -> None:
    """Raises TypeError or ValueError if this is not an operator, or not a random key."""
    accepted = "a symmetric operator such as kernels.NTKOperator(net, x)"
    require_kind(operator, AbstractSymmetricOperator, "operator", accepted)
    require_key(key)


class NTKOperator(AbstractSymmetricOperator):
    """The empirical NTK sum_l eta_l <df/dtheta_l, df/dtheta_l> of `js.kernels.empirical`, on a training set.

    K v = J (eta J^T v): one backward and one forward derivative per batch of samples.

    Arguments:
        net: a network, or any Equinox module that maps one sample to shape (c,).
        x: inputs, shape (n, ...).
        eta: learning rates, a pytree with a scalar for every trainable array, such as `js.nets.rates(net)`. None takes
            1 everywhere, for the plain NTK.
        batch_size: the number of samples that go through the network at once. None takes as many as keep the values
            saved for the backward pass below 64 MiB. On CPU, XLA is slow at batched channel-first convolutions (jax
            issue 12868), but not at channel-last ones.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> operator = js.kernels.NTKOperator(net, jnp.eye(2))
        >>> product = operator.mv(jnp.ones((2, 1)))
        >>> bool(jnp.allclose(product, js.kernels.empirical(net, jnp.eye(2)).ntk.sum((2, 3))))
        True

    Raises:
        ValueError: x is empty, net does not return shape (c,), or batch_size is below 1.
        TypeError: batch_size is not an integer.
    """

    net: Any
    x: Inputs
    eta: PyTree
    batch_size: int = eqx.field(static=True)  # a size

    def __init__(self, net: Any, x: Inputs, *, eta: PyTree | None = None, batch_size: int | None = None):
        self.net, self.x = net, x
        self.eta = _rates(net, x, eta)
        self.batch_size = choose_batch_size(net, x, batch_size)

    @property
    def structure(self) -> jax.ShapeDtypeStruct:
        out = output(self.net, self.x)
        return jax.ShapeDtypeStruct((samples_in(self.x), *out.shape), out.dtype)

    @hashable
    def mv(self, v: Float[Array, "n out"]) -> Float[Array, "n out"]:
        """K v, shape (n, c)."""
        return _kernel_product(self, self.x, self._coefficients(v))

    @hashable
    def cross(self, x: Inputs, v: Float[Array, "n out"]) -> Float[Array, "m out"]:
        """K(x, x_train) v at other inputs, shape (m, c): the prediction of kernel regression with coefficients v.

        Raises:
            ValueError: v is not one number per training sample and output, or the network does not accept x.
            TypeError: v is not an array of real numbers.
        """
        check_inputs(self.net, self.x, x, names=("x_train", "x"))
        return _kernel_product(self, x, self._coefficients(v))

    def _coefficients(self, v: Any) -> Array:
        v = real_array(v, "v")
        if v.shape != self.structure.shape:
            raise ValueError(f"v must have shape {self.structure.shape}, got {describe(v)}")
        return v


class GaussNewtonOperator(AbstractSymmetricOperator):
    """The Gauss-Newton matrix J^T H J in parameter space, where H is the Hessian of the loss in f.

    With rates it is sqrt(eta) J^T H J sqrt(eta), which is symmetric and has the eigenvalues of eta J^T H J. Its nonzero
    eigenvalues are also those of H^(1/2) K H^(1/2) with the eta-weighted NTK K.

    Arguments:
        net, x, eta, batch_size: as for `NTKOperator`.
        hessian: d^2 loss/d f_i d f_i for every sample, shape (n, c, c): `loss.hessian(f, y)`, which carries 1/n.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> x, y, loss = jnp.eye(2), jnp.ones((2, 1)), js.losses.MSE()
        >>> operator = js.kernels.GaussNewtonOperator(net, x, loss.hessian(jax.vmap(net)(x), y))
        >>> v = js.nets.partition(net)[0]
        >>> print(operator.size, operator.mv(v).weights[0].shape)
        12 (4, 2)

    Raises:
        ValueError: hessian does not have shape (n, c, c); or as for `NTKOperator`.
        TypeError: batch_size is not an integer.
    """

    net: Any
    x: Inputs
    hessian: Float[Array, "n out out"]
    eta: PyTree
    batch_size: int = eqx.field(static=True)  # a size

    def __init__(
        self,
        net: Any,
        x: Inputs,
        hessian: Float[Array, "n out out"],
        *,
        eta: PyTree | None = None,
        batch_size: int | None = None,
    ):
        self.net, self.x, self.hessian = net, x, real_array(hessian, "hessian")
        self.eta = _rates(net, x, eta)
        self.batch_size = choose_batch_size(net, x, batch_size)
        _check_hessian(net, x, self.hessian)

    @property
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        return _shapes(self.net)

    @hashable
    def mv(self, v: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The product with a pytree shaped like the parameters."""
        return _gauss_newton_product(self, v)


class HessianOperator(AbstractSymmetricOperator):
    """The Hessian of a loss in parameter space: J^T H J + sum_i (dloss/df_i) d^2 f_i/dtheta^2.

    With rates it is sqrt(eta) (...) sqrt(eta), as for `GaussNewtonOperator`. The loss enters only through its
    derivatives at the current outputs f, so any loss works, and so do centered networks.

    Arguments:
        net, x, eta, batch_size: as for `NTKOperator`.
        gradient: d loss/d f, shape (n, c): `loss.gradient(f, y)`.
        hessian: d^2 loss/d f_i d f_i, shape (n, c, c): `loss.hessian(f, y)`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> x, y, loss = jnp.eye(2), jnp.ones((2, 1)), js.losses.MSE()
        >>> f = jax.vmap(net)(x)
        >>> operator = js.kernels.HessianOperator(net, x, loss.gradient(f, y), loss.hessian(f, y))
        >>> sharpness = js.kernels.top_eigenpairs(operator, 1, key=jax.random.key(1)).values[0]
        >>> bool(sharpness > 0)
        True

    Raises:
        ValueError: gradient or hessian has another shape; or as for `NTKOperator`.
        TypeError: batch_size is not an integer.
    """

    net: Any
    x: Inputs
    gradient: Float[Array, "n out"]
    hessian: Float[Array, "n out out"]
    eta: PyTree
    batch_size: int = eqx.field(static=True)  # a size

    def __init__(
        self,
        net: Any,
        x: Inputs,
        gradient: Float[Array, "n out"],
        hessian: Float[Array, "n out out"],
        *,
        eta: PyTree | None = None,
        batch_size: int | None = None,
    ):
        gradient, hessian = real_array(gradient, "gradient"), real_array(hessian, "hessian")
        self.net, self.x, self.gradient, self.hessian = net, x, gradient, hessian
        self.eta = _rates(net, x, eta)
        self.batch_size = choose_batch_size(net, x, batch_size)
        _check_hessian(net, x, hessian)
        if gradient.shape != hessian.shape[:2]:
            raise ValueError(f"gradient must be loss.gradient(f, y), shape {hessian.shape[:2]}, got {gradient.shape}")

    @property
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        return _shapes(self.net)

    @hashable
    def mv(self, v: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The product with a pytree shaped like the parameters."""
        return _hessian_product(self, v)


# Outside `jax.jit`, a loop over batches would be recompiled for every product.


@eqx.filter_jit
def _kernel_product(operator: NTKOperator, x: Inputs, v: Array) -> Array:
    params, f = function(operator.net)
    backward = lambda x, v: jax.vjp(lambda p: f(p, x), params)[1](v)[0]
    # eta J^T v is a sum over batches; each batch of J times this sum is a batch of K v.
    direction = _weighted(operator.eta, sum_batches(backward, operator.batch_size, operator.x, v))
    forward = lambda x: jax.jvp(lambda p: f(p, x), (params,), (direction,))[1]
    return map_batches(forward, operator.batch_size, x)


@eqx.filter_jit
def _gauss_newton_product(operator: GaussNewtonOperator, v: PyTree) -> PyTree:
    params, f = function(operator.net)
    half = _weighted(jax.tree.map(jnp.sqrt, operator.eta), v)

    def product(x, hessian):
        moved = jax.jvp(lambda p: f(p, x), (params,), (half,))[1]
        return jax.vjp(lambda p: f(p, x), params)[1](jnp.einsum("nab,nb->na", hessian, moved))[0]

    # Rows that pad a batch have H = 0 and add nothing.
    total = sum_batches(product, operator.batch_size, operator.x, operator.hessian)
    return _weighted(jax.tree.map(jnp.sqrt, operator.eta), total)


@eqx.filter_jit
def _hessian_product(operator: HessianOperator, v: PyTree) -> PyTree:
    params, f = function(operator.net)
    half = _weighted(jax.tree.map(jnp.sqrt, operator.eta), v)

    def product(x, gradient, hessian):
        now = f(params, x)

        def slope(p):
            out, back = jax.vjp(lambda q: f(q, x), p)
            # The gradient in f, to first order, after the outputs have moved from `now` to `out`.
            return back(gradient + jnp.einsum("nab,nb->na", hessian, out - now))[0]

        # Forward over reverse: the derivative of the gradient along v is the Hessian times v (Pearlmutter 1994).
        return jax.jvp(slope, (params,), (half,))[1]

    total = sum_batches(product, operator.batch_size, operator.x, operator.gradient, operator.hessian)
    return _weighted(jax.tree.map(jnp.sqrt, operator.eta), total)


def _rates(net: Any, x: Any, eta: PyTree | None) -> PyTree:
    """The given rates, or 1 everywhere, after checks of network, inputs and rates."""
    if callable(net) and not jax.tree.leaves(eqx.filter(net, eqx.is_array)):
        output(net, x)  # for a function, an error about its output is clearer than one about its lack of arrays
    check_inputs(net, x, None, names=("x", "x2"))
    if eta is None:
        return unit_rates(net)
    check_rates(net, eta)
    return eta


def _shapes(net: Any) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), partition(net)[0])


def _weighted(eta: PyTree, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda e, leaf: e * leaf, eta, tree)


def _check_hessian(net: Any, x: Inputs, hessian: Float[Array, "n out out"]) -> None:
    (c,) = output(net, x).shape
    n = samples_in(x)
    if hessian.shape != (n, c, c):
        raise ValueError(f"hessian must be loss.hessian(f, y), shape {(n, c, c)}, got {describe(hessian)}")
