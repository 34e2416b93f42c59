"""Observables of the change of weights since the start: its size, and its alignment with the layers' inputs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core import Problem, Quantity, View
from .._numerics import norm, scaled
from ._groups import find_groups, relative_sizes
from ._layers import layer_names, layers_of, Product, values
from ._observable import Observable


def _size(view: View) -> Float[Array, " groups"]:
    start = view.problem.params
    change = jax.tree.map(jnp.subtract, view.params, start)
    return relative_sizes(change, start, find_groups(start))


def _alignment(view: View) -> Float[Array, " layers"]:
    problem = view.problem
    program = layers_of(problem)
    before, now = (values(program, params, problem.x) for params in (problem.params, view.params))
    return jnp.stack(
        [_aligned(item, now[item.weights] - before[item.weights], now[item.data]) for item in program.products]
    )


def _aligned(item: Product, change: Array, data: Array) -> Float[Array, ""]:
    """|dW h|/(|dW| |h|), with norms over all entries; an entry of h counts as often as the product reads it."""
    change, data = scaled(change)[0], scaled(data)[0]  # the ratio is scale-free; squares could overflow
    ordered = lambda one, two: (one, two) if item.step.inputs[0] == item.weights else (two, one)
    (read,) = item.step.call(*ordered(jnp.ones_like(change), data**2))
    (moved,) = item.step.call(*ordered(change, data))
    # Every output of the product reads each square once.
    met = jnp.sqrt(jnp.sum(read) / _outputs(item, change))
    return norm(moved) / (norm(change) * met)


def _outputs(item: Product, weights: Array) -> float:
    """The number of outputs that read one entry of the data, or of one patch of the data."""
    params: dict[str, Any] = item.step.params
    if item.step.name == "dot_general":
        contracted, batched = params["dimension_numbers"]
        side = item.step.inputs.index(item.weights)
        inner = [weights.shape[axis] for axis in (*contracted[side], *batched[side])]
        size = 1
        for length in inner:
            size *= length
        return weights.size / size
    return weights.shape[params["dimension_numbers"].rhs_spec[0]] / params["feature_group_count"]


def update_size() -> Observable:
    """|theta_l - theta_l(0)|/|theta_l(0)| for every group of parameters, shape (groups,).

    inf for a group that starts at 0 and moves. A group is a module of the network that holds arrays; if there are more
    than 16, modules are merged into the larger modules that contain them.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> doubled = jax.tree.map(lambda w: 2 * w, problem.params)
        >>> print(js.observe.update_size()(js.View(problem, jnp.zeros(()), doubled)))
        [1. 1.]
    """
    return Observable("update_size", _size, Quantity.PARAMS, ("group",), names=_groups)


def _groups(problem: Problem) -> tuple[str, ...]:
    return find_groups(problem.params).names


def update_alignment() -> Observable:
    r"""$|\Delta W_l h_l|/(|\Delta W_l||h_l|)$ for every layer, $\Delta W_l = W_l - W_l(0)$, shape (layers,).

    h_l is the layer's current input on all training samples. 1 if the update has rank one and all inputs lie along its
    direction; $1/\sqrt{d}$ if the update is independent of its d inputs. It determines how the change of a layer's
    outputs grows with the width. NaN if the weights have not moved. A layer is a product with parameters, found in the
    network's program: a matrix or a convolution, of any network that treats samples separately.

    Source: the alignment of Everett et al. 2024, arXiv:2407.05872, section 3, as a ratio instead of an exponent.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.array([[1.0, 0.0]]), jnp.array([[1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [1.0], observe=js.observe.update_alignment())
        >>> print(run["update_alignment"][0, 0].round(6))  # of one sample every gradient is of its direction
        1.0

    Raises:
        ValueError: when used, if the network has a state, or no products with parameters are found in it.
    """
    return Observable("update_alignment", _alignment, Quantity.PARAMS, ("layer",), names=layer_names)
