"""Where gradient flow is only piecewise smooth."""

from collections.abc import Iterator

from .. import losses, nets
from .._problem import Problem


def kinked(problem: Problem) -> bool:
    """Whether the velocity is known to have kinks or jumps: of the activation, or of the loss."""
    if isinstance(problem.loss, losses.Hinge | losses.QuadraticHinge):
        return True
    if not isinstance(problem.net, nets.AbstractLayered):
        return False
    return any(layer.activation.kinked for layer in _applied(problem.net.layers))


def _applied(layers: nets.Layers) -> Iterator[nets.Apply]:
    for layer in layers:
        if isinstance(layer, nets.Residual):
            yield from _applied((*layer.branch, *layer.shortcut))
        elif isinstance(layer, nets.Apply):
            yield layer
