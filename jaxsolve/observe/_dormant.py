"""The share of dormant units."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import one_number
from .._core import Problem, Quantity, View
from ._layers import layers_of, Product, TappedProgram, values
from ._observable import Observable


def _read(program: TappedProgram) -> list[Product]:
    """The layers that read hidden units, one layer for each set of units."""
    inner = {item.data: item for item in reversed(program.products) if not item.given}
    return sorted(inner.values(), key=lambda item: item.data)


def _activity(item: Product, data: Array) -> Float[Array, " units"]:
    """The mean of |h| over samples and positions, for every unit."""
    if item.step.name == "dot_general":
        contracted = item.step.params["dimension_numbers"][0]
        units = contracted[item.step.inputs.index(item.data)]
    else:
        units = (item.step.params["dimension_numbers"].lhs_spec[1],)
    others = tuple(axis for axis in range(data.ndim) if axis not in units)
    return jnp.mean(jnp.abs(data), axis=others).ravel()


@dataclasses.dataclass(frozen=True)
class _Dormant:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    threshold: float

    def __call__(self, view: View):
        program = layers_of(view.problem)
        held, layers = values(program, view.params, view.problem.x), _read(program)
        if not layers:
            raise ValueError("dormant_units needs a hidden layer: all layers of this network read its inputs")
        activities = [_activity(item, held[item.data]) for item in layers]
        return jnp.stack([jnp.mean(a <= self.threshold * jnp.mean(a), dtype=a.dtype) for a in activities])


def _names(problem: Problem) -> tuple[str, ...]:
    return tuple(item.name for item in _read(layers_of(problem)))


def dormant_units(*, threshold: float = 0.025) -> Observable:
    """The share of units whose mean |h| is at most `threshold` times their layer's mean, shape (hidden layers,).

    Units are the entries that a layer with parameters reads, or the channels if it is a convolution. The network's
    inputs do not count. A hidden layer is named after the parameters that read it.

    Source: Sokar et al. 2023, arXiv:2302.12902, definition 3.1, with their threshold.

    Arguments:
        threshold: 0 counts units that are 0 on all training samples.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> js.observe.dormant_units()(js.View(problem, jnp.zeros(()), problem.params)).shape
        (1,)

    Raises:
        ValueError: threshold is negative; when used, if the network has a state, or no hidden layers are found in it.
    """
    value = one_number(threshold, "threshold", zero=True)
    return Observable("dormant_units", _Dormant(float(value)), Quantity.PARAMS, ("hidden_layer",), names=_names)
