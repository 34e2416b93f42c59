"""The cosine between a layer and the task: how far the layer has turned to it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import nets
from .._checks import describe
from .._core import Problem, Quantity, View
from .._numerics import in_words, nonzero, norm, one_of, scaled
from ._observable import Observable


@dataclasses.dataclass(frozen=True)
class _ReadCosine:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    layer: int

    def __call__(self, view: View):
        weights = view.params.weights
        # The cosine is scale-free; without scaling, fourth powers of small weights would round to zero.
        w, directions = scaled(weights[self.layer])[0], _rows(view, self.layer)
        size = norm(directions @ directions.T) * norm(w @ w.T)
        # <W^T W, B^T B> = |W B^T|^2 and |W^T W| = |W W^T|, so that no matrix of inputs by inputs is formed.
        return jnp.sum((w @ directions.T) ** 2) / nonzero(size)


def _rows(view: View, layer: int) -> Float[Array, "out in"]:
    """The direction of the least-norm linear map to the targets, pulled back through the layers to a layer's input."""
    task = scaled(least_map(view.problem))[0]
    # Only the direction counts; products of many small weights would round to zero.
    for w in view.params.weights[:layer]:
        task = scaled(task @ scaled(w)[0].T)[0]
    return task


@dataclasses.dataclass(frozen=True)
class _HasLayer:
    layer: int

    def __call__(self, problem: Problem) -> None:
        """Raises ValueError for a problem without this layer."""
        net = problem.net
        if not isinstance(net, nets.AbstractDense) or len(net.in_shape) != 1:
            raise ValueError(
                "layer_cosine is for the dense networks of js.nets on inputs that are vectors; got "
                f"{type(net).__name__} and inputs {in_words(one_of(problem.x))}"
            )
        if self.layer >= len(net.weights):
            raise ValueError(
                f"layer_cosine({self.layer}) counts from 0, and this network has {len(net.weights)} layers"
            )


def least_map(problem: Problem) -> Float[Array, "out in"]:
    """The least-norm linear map B that best fits y = B x, shape (c, d).

    For one output, its direction is the beta of Atanasov et al.: the part of the target in the span of the inputs.
    """
    return jnp.linalg.lstsq(problem.x, problem.y)[0].T


def layer_cosine(layer: int = 0) -> Observable:
    """<W^T W, B^T B>/(|W^T W||B^T B|) for one layer and the task B: 1 if the layer reads only what the targets need.

    B is the least-norm linear map to the targets. For one output it is beta^T, and this is the cosine of W^T W and beta
    beta^T (Atanasov et al., figure 4). For a layer above the first, B is pulled back through the layers below.

    Arguments:
        layer: index of the layer, counted from the input, from 0.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=2, width_size=4, scaling=js.nets.Scaling.standard(sigma=1e-3), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 100.0], observe=js.observe.layer_cosine())
        >>> print(bool(run["layer_cosine_0"][0] < 0.95), run["layer_cosine_0"][1].round(3))
        True 1.0

    Raises:
        TypeError: layer is not an integer.
        ValueError: layer is negative; when used, if the network is not dense or has no such layer.
    """
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise TypeError(f"layer must be an integer >= 0, got {describe(layer)}")
    if layer < 0:
        raise ValueError(f"layer must be >= 0, counted from the input, got {layer}")
    found, layer = Quantity.PARAMS, int(layer)
    return Observable(f"layer_cosine_{layer}", _ReadCosine(layer), found, (), require=_HasLayer(layer))
