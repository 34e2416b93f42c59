"""Observables of the weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .. import nets
from .._checks import describe
from .._core import Problem, Quantity, View
from .._numerics import safe_sqrt, scaled
from ..dynamics._internal import dmft
from ._layer_pairs import layer_pairs, LayerPair, squared_product
from ._layers import layer_names, layers_of, TappedProgram, values
from ._observable import Observable


def _matrices(view: View, *params: PyTree) -> list[list[Array]]:
    """The weights of every layer, for each set of parameters."""
    program = layers_of(view.problem)
    slots = [item.weights for item in program.products]
    held = [values(program, one, view.problem.x, slots) for one in params]
    return [[of[slot].astype(view.problem.dtype) for slot in slots] for of in held]


def _norms(view: View):
    (now,) = _matrices(view, view.params)
    return jnp.stack([jnp.linalg.norm(w) for w in now])


def _distances(view: View):
    pairs = zip(*_matrices(view, view.params, view.problem.params), strict=True)
    # The norm has no derivative at 0, where every run starts.
    return jnp.stack([safe_sqrt(jnp.sum((w - w0) ** 2)) for w, w0 in pairs])


def _alignment(view: View):
    given = view.given("layer_alignment")
    if given is not None:
        return given
    if view.params is None:
        raise ValueError(
            "layer_alignment is 0 between hidden layers in the limit of infinite width, where it is known for "
            "two-layer networks only; for deep ones use kernel_alignment() or feature_kernel(layer)"
        )
    return jnp.stack(alignments(view.problem, view.params, *_pairs(view.problem)))


def _pairs(problem: Problem) -> tuple[TappedProgram, list[LayerPair]]:
    program = layers_of(problem)
    pairs = layer_pairs(program)
    if not pairs:
        raise ValueError(
            "layer_alignment needs two layers of which one reads the units of the other; none were found among "
            f"{', '.join(item.name for item in program.products)}"
        )
    return program, pairs


def _names(problem: Problem) -> tuple[str, ...]:
    return tuple(pair.name for pair in _pairs(problem)[1])


def alignments(
    problem: Problem, params: PyTree, program: TappedProgram, pairs: list[LayerPair]
) -> list[Float[Array, ""]]:
    """The zeta of each pair of layers at these parameters."""
    held = values(program, params, problem.x, {slot for pair in pairs for slot in (pair.below, pair.above)})
    arrays, first = len(jax.tree.leaves(params)), program.products[0]
    # Only two layers without biases have a signed zeta; `dmft` checks whether the inputs lie on a line.
    alone = arrays == len(program.products) == 2 and first.data == arrays and problem.out_size == len(pairs) == 1
    line = problem.x if alone and isinstance(problem.x, jax.Array) and problem.x.ndim == 2 else None
    both = ((one.astype(problem.dtype) for one in pair.matrices(held)) for pair in pairs)
    return [_aligned(below, above, line) for below, above in both]


def _aligned(
    below: Float[Array, "units in"], above: Float[Array, "out units"], line: Float[Array, "n in"] | None
) -> Float[Array, ""]:
    if line is not None:
        return dmft.two_layer_alignment(below, above, line)
    below, above = scaled(below)[0], scaled(above)[0]  # the ratio is scale-free; squares could round to zero
    return safe_sqrt(squared_product(below, above)) / (jnp.linalg.norm(below) * jnp.linalg.norm(above))


def weight_norms() -> Observable:
    """The Frobenius norm |W_l| of the weights of every layer, shape (layers,).

    Works for any network. A layer is a product with parameters, found in the network's program: a matrix or a
    convolution. Its weights are those that enter the product. Biases, gains and embedding lookups are not layers. A
    matrix that is used twice counts twice.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.weight_norms()(view).shape
        (2,)

    Raises:
        ValueError: when used, if no products with parameters are found in the network.
    """
    return Observable("weight_norms", _norms, Quantity.PARAMS, ("layer",), "weight", names=layer_names)


def weight_distances() -> Observable:
    """|W_l - W_l(0)| (Frobenius) of every layer's weights, shape (layers,). Float32 resolves 1e-6 |W_l(0)|.

    Layers and errors: as for `weight_norms`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(js.observe.weight_distances()(view))  # at the start
        [0. 0.]
    """
    return Observable("weight_distances", _distances, Quantity.PARAMS, ("layer",), "weight", names=layer_names)


def layer_alignment() -> Observable:
    """zeta = |W_m W_l|/(|W_m||W_l|) for every layer l and layer m that reads its units, shape (pairs,); 0 to 1.

    Works for any network: layers are products with parameters, found in its program. In a chain, adjacent layers form
    the pairs. Along a residual stream, a layer is paired with every layer whose output reaches it without passing
    through another layer.

    The papers define zeta for matrices. The units of a convolution are its channels, at any pixel: the weights below
    form a matrix of shape (out, in k k), those above one of (out k k, in), and a matrix that reads flattened images one
    of (out pixels, in). So zeta measures whether the layer above reads the channels that the layer below writes. As in
    the papers, the operations in between (activations, norms, pooling) are left out.

    For two-layer networks with any activation, one output, no biases, and inputs on a line, it is the signed
    zeta = u.v/(|u||v|), v = W n, of Xu & Liu Ziyin (eq. 20), where n is the direction of the longest input.

    `RichLimit` provides it for two-layer networks. Between hidden layers it falls like 1/sqrt(width).

    Example:
        >>> net = js.nets.ConvNet(
        ...     in_shape=(1, 4, 4), out_size=1, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((2, 1, 4, 4)), jnp.ones((2, 1)))
        >>> zeta = js.observe.layer_alignment()(js.View(problem, jnp.zeros(()), problem.params))
        >>> zeta.shape, bool(jnp.all(zeta <= 1))
        ((4,), True)

    Raises:
        ValueError: when used, if no such pair is found. Pairs are left out if the upper layer is a grouped convolution
            or if the units are rearranged in between, as by shuffling or concatenation.
    """
    return Observable("layer_alignment", _alignment, Quantity.PARAMS, ("pair",), names=_names)


@dataclasses.dataclass(frozen=True)
class _ReadConserved:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    index: int

    def __call__(self, view: View):
        net = view.problem.net
        quantities = net.conserved(view.params, view.problem.eta) if isinstance(net, nets.AbstractNetwork) else ()
        if not 0 <= self.index < len(quantities):
            raise ValueError(f"this network has {len(quantities)} conserved quantities, but index is {self.index}")
        value = quantities[self.index].value
        # Always one square matrix, as the observable's dims are fixed.
        return jax.scipy.linalg.block_diag(*value) if value.ndim == 3 else jnp.diag(value) if value.ndim == 1 else value


@dataclasses.dataclass(frozen=True)
class _ConservedScale:
    index: int

    def __call__(self, view: View):
        return view.problem.net.conserved(view.params, view.problem.eta)[self.index].scale


def conserved(index: int = 0) -> Observable:
    """The conserved quantity of adjacent layers `index` and `index + 1`, counted from the input, shape (h, h).

    A full matrix between linear layers; a diagonal with one entry per neuron between layers joined by a homogeneous
    activation; one block per head for a transformer. See `net.conserved`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(js.observe.conserved()(view).shape)
        (4, 4)

    Raises:
        ValueError: when used, if the network has no such quantity.
        TypeError: index is not an integer.
    """
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        raise TypeError(f"index must be an integer >= 0, got {describe(index)}")
    reader = _ReadConserved(int(index))
    dims = ("neuron", "neuron_2")
    return Observable(
        f"conserved_{index}", reader, Quantity.PARAMS, dims, "weight^2 / eta", scale=_ConservedScale(int(index))
    )
