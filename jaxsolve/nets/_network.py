"""The interface that every network offers to the rest of the library."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._checks import require_settings
from ._scaling import Scaling


class Conserved(eqx.Module):
    """A conserved quantity of gradient flow: the difference of two terms that grow together.

    Both terms have the same shape: (h, h) between adjacent linear layers; (h,), one number per neuron, between layers
    joined by a homogeneous activation; (heads, h, h) in a transformer. See also `js.observe.conserved`, which follows
    it along a run.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> params, _ = js.nets.partition(net)
        >>> (quantity,) = net.conserved(params, js.nets.rates(net))
        >>> u, w = net.weights[1], net.weights[0]
        >>> bool(jnp.allclose(quantity.value, u.T @ u - w @ w.T, atol=1e-5))
        True
    """

    outgoing: Float[Array, "..."]
    incoming: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        """The conserved quantity, outgoing - incoming."""
        return self.outgoing - self.incoming

    @property
    def scale(self) -> Float[Array, ""]:
        """The size of both terms together, to compare a drift with."""
        return jnp.linalg.norm(self.outgoing) + jnp.linalg.norm(self.incoming)


class AbstractNetwork(eqx.Module):
    """A network: maps one sample to its outputs, shape (out_size,), including the factor gamma.

    The trainable arrays are those with a rate in `rates`; every other leaf is a hyperparameter. A network made of known
    layers is easier to write as a `js.nets.AbstractLayered`, which derives the rest from its `layers`.

    Example:
        >>> class Line(js.nets.AbstractNetwork):  # f(x) = gamma a . x
        ...     scaling: js.nets.Scaling
        ...     a: jax.Array
        ...     in_shape = property(lambda self: self.a.shape)
        ...     out_size = property(lambda self: 1)
        ...     def __call__(self, x):
        ...         return self.scaling.gamma * (self.a @ x)[None]
        ...     def rates(self):
        ...         return Line(None, self.scaling.eta[0])
        ...     def conserved(self, params, eta):
        ...         return ()
        >>> net = Line(js.nets.Scaling([1.0], sigma=[1.0], eta=[0.5]), jnp.ones(3))
        >>> net(jnp.ones(3)).tolist()
        [3.0]
    """

    scaling: eqx.AbstractVar[Scaling]

    @property
    @abc.abstractmethod
    def in_shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    @abc.abstractmethod
    def out_size(self) -> int:
        """The number of outputs c."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, " out"]:
        """The output for one sample."""

    @abc.abstractmethod
    def rates(self) -> PyTree:
        """A pytree shaped like the network: eta at every trainable array, None everywhere else."""

    @abc.abstractmethod
    def conserved(self, params: PyTree, eta: PyTree) -> tuple[Conserved, ...]:
        """The quantities that gradient flow conserves at these parameters and rates, one per pair of adjacent layers.

        Empty where nothing is known to be conserved.
        """


class Fixed(eqx.Module):
    """Arrays in a network that do not train, such as its initial weights.

    Attributes:
        arrays: a pytree of arrays.
    """

    arrays: PyTree


def rates(net: Any) -> PyTree:
    """The learning rate of every trainable array of a network, None at every other leaf.

    A module that is not an `AbstractNetwork` trains all its floating-point arrays at eta = 1, except those of an
    `eqx.nn.State`; Python floats in its fields do not train, as under `eqx.filter_grad`. Networks of `js.nets` inside
    it (but not a stack of them in one) keep their rates, and their hyperparameters do not train.

    Raises:
        TypeError: a `jax.tree_util.Partial` binds a Python number, which jax.grad would train but jaxsolve would not.

    Example:
        >>> scaling = js.nets.Scaling([1.0, 1.0], sigma=[1.0, 1.0], eta=[1.0, 0.5])
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=scaling, key=jax.random.key(0))
        >>> [float(eta) for eta in js.nets.rates(net).weights]
        [1.0, 0.5]
    """
    return _rates(net, lambda leaf: jax.device_put(np.ones((), jnp.result_type(leaf))))  # compiles nothing


def _rates(net: Any, one: Callable[[Any], Any]) -> PyTree:
    """The rates of a network, with `one(leaf)` at arrays that have no rate of their own."""
    require_settings(net, "this network")
    if isinstance(net, jax.tree_util.Partial):
        _refuse_numbers(net)

    def rate(part: Any) -> PyTree:
        if _stands_still(part):
            return jax.tree.map(lambda _: None, part)
        if _is_whole(part):
            return part.rates()
        return one(part) if eqx.is_inexact_array(part) else None

    return jax.tree.map(rate, net, is_leaf=lambda part: _is_whole(part) or _stands_still(part))


def _stands_still(part: Any) -> bool:
    return isinstance(part, eqx.nn.State | Fixed)


def _refuse_numbers(net: Any) -> None:
    """Raises TypeError for Python numbers outside of modules, which would silently not train."""
    is_module = lambda part: isinstance(part, eqx.Module)
    for path, leaf in jax.tree_util.tree_leaves_with_path(net, is_leaf=is_module):
        if isinstance(leaf, float | complex) and not isinstance(leaf, np.generic):
            raise TypeError(
                f"the Partial holds the number {leaf} at {jax.tree_util.keystr(path)}, which would not train: give "
                "jnp.asarray of it, or js.nets.Function(f, params), or close over it in f to leave it as it is"
            )


def networks_in(net: Any) -> list["AbstractNetwork"]:
    """The networks of `js.nets` in a module: the module itself, or those inside it."""
    return list(filter(_is_whole, jax.tree.leaves(net, is_leaf=_is_whole)))


def _is_whole(part: Any) -> bool:
    """True for one network with its hyperparameters; False for its parameters alone and for a stack of networks."""
    eta = getattr(part.scaling, "eta", None) if isinstance(part, AbstractNetwork) else None
    return eta is not None and jnp.ndim(eta) == 1


def partition(net: Any) -> tuple[PyTree, PyTree]:
    """Splits a network into its trainable arrays and all the rest; `eqx.combine` recombines them.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> params, rest = js.nets.partition(net)
        >>> [leaf.shape for leaf in jax.tree.leaves(params)]
        [(3, 2), (1, 3)]
    """
    # None is not a leaf of a tree, but has to count as one here: it marks what does not train.
    trained = jax.tree.map(
        lambda rate: rate is not None, _rates(net, lambda _: True), is_leaf=lambda leaf: leaf is None
    )
    params, rest = eqx.partition(net, trained)
    # As JAX arrays: NumPy's may have wider dtypes.
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, params
    ), rest
