"""Observables of the weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import nets
from .._checks import describe
from .._core import Quantity, View
from .._numerics import safe_sqrt
from ..dynamics._internal import dmft
from ._observable import Observable


def _matrices(view: View) -> tuple[Float[Array, "out in"], ...]:
    net = view.problem.net
    if not isinstance(net, nets.AbstractDense):
        raise ValueError(
            "weight_norms, weight_distances and layer_alignment are for the dense networks of js.nets, such as "
            f"nets.MLP, whose weights jaxsolve knows; got {type(net).__module__}.{type(net).__name__}. For other "
            "networks write observe.Observable(name, lambda view: ..., ...) with view.params"
        )
    return view.params.weights


def _norms(view: View):
    return jnp.stack([jnp.linalg.norm(w) for w in _matrices(view)])


def _distances(view: View):
    now, start = _matrices(view), view.problem.params
    # The norm has no derivative at 0, where every run starts.
    return jnp.stack([safe_sqrt(jnp.sum((w - w0) ** 2)) for w, w0 in zip(now, start.weights, strict=True)])


def _alignment(view: View):
    given = view.given("layer_alignment")
    if given is not None:
        return given
    if view.params is None:
        raise ValueError(
            "layer_alignment is 0 between hidden layers in the limit of infinite width, where it is known of two-layer "
            "networks only; kernel_alignment() and feature_kernel(layer) serve deep ones"
        )
    weights = _matrices(view)
    # The signed zeta is that of two layers without biases; whether inputs lie on a line is found there.
    line = view.problem.x if len(weights) == 2 and not view.problem.net.biases else None
    pairs = zip(weights[:-1], weights[1:], strict=True)
    return jnp.stack([dmft.two_layer_alignment(below, above, line) for below, above in pairs])


def weight_norms() -> Observable:
    """|W_l| (Frobenius) of every weight matrix.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.weight_norms()(view).shape
        (2,)
    """
    return Observable("weight_norms", _norms, Quantity.PARAMS, ("layer",), "weight")


def weight_distances() -> Observable:
    """|W_l - W_l(0)| (Frobenius) of every weight matrix. Weights in float32 resolve 1e-6 |W_l(0)|.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(js.observe.weight_distances()(view))  # at the start
        [0. 0.]
    """
    return Observable("weight_distances", _distances, Quantity.PARAMS, ("layer",), "weight")


def layer_alignment() -> Observable:
    """zeta of every pair of adjacent layers: |W_{l+1} W_l|/(|W_{l+1}||W_l|).

    For two-layer networks of any activation with one output, no biases, and inputs on a line: the signed
    zeta = u.v/(|u||v|), v = W n, of Xu & Liu Ziyin (eq. 20), n being the direction of the longest input.

    `RichLimit` knows it of two-layer networks. Between hidden layers it falls like 1/sqrt(width).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(jnp.all(js.observe.layer_alignment()(view) <= 1)))
        True
    """
    return Observable("layer_alignment", _alignment, Quantity.PARAMS, ("pair",))


@dataclasses.dataclass(frozen=True)
class _ReadConserved:
    # A class, not a closure: equal for equal indices, so that a fresh observable does not recompile.
    index: int

    def __call__(self, view: View):
        net = view.problem.net
        quantities = net.conserved(view.params, view.problem.eta) if isinstance(net, nets.AbstractNetwork) else ()
        if not 0 <= self.index < len(quantities):
            raise ValueError(f"this network has {len(quantities)} conserved quantities, but index is {self.index}")
        value = quantities[self.index].value
        # One square matrix whatever the layers are, as the dims of the observable say.
        return jax.scipy.linalg.block_diag(*value) if value.ndim == 3 else jnp.diag(value) if value.ndim == 1 else value


@dataclasses.dataclass(frozen=True)
class _ConservedScale:
    index: int

    def __call__(self, view: View):
        return view.problem.net.conserved(view.params, view.problem.eta)[self.index].scale


def conserved(index: int = 0) -> Observable:
    """The conserved quantity of adjacent layers `index` and `index + 1`, counted from the input, shape (h, h).

    Between linear layers a matrix; between layers joined by a homogeneous activation one number per neuron, on the
    diagonal; of a transformer one block per head. See `net.conserved`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(js.observe.conserved()(view).shape)
        (4, 4)

    Raises:
        ValueError: when used, the network has no such quantity.
        TypeError: index is not an integer.
    """
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        raise TypeError(f"index must be an integer >= 0, got {describe(index)}")
    reader = _ReadConserved(int(index))
    dims = ("neuron", "neuron_2")
    return Observable(
        f"conserved_{index}", reader, Quantity.PARAMS, dims, "weight^2 / eta", scale=_ConservedScale(int(index))
    )
