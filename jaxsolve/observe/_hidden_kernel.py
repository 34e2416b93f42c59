"""Kernels of hidden layers, for linear probes of their signals."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array, Float

from .._checks import describe
from .._core import Quantity, View
from ..nets._internal import Conv, Dense, run
from ._changes import require_chain
from ._observable import Observable
from ._test_kernel import require_test_set, test_inputs


@dataclasses.dataclass(frozen=True)
class _ReadHidden:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    layer: int
    test: bool

    def __call__(self, view: View) -> Float[Array, "n m"]:
        net = view.net
        require_chain(net, "the kernel of a hidden layer")
        matrices = [place for place, one in enumerate(net.layers) if isinstance(one, Dense | Conv)]
        if self.layer >= len(matrices):
            raise ValueError(f"layer must be one of the hidden ones, 1 to {len(matrices) - 1}, got {self.layer}")
        # All layers before the matrix that reads this hidden layer, so its activation is included.
        below = net.layers[: matrices[self.layer]]
        signals = lambda x: jax.vmap(lambda one: run(net, below, one).ravel())(x)
        columns = signals(view.problem.x)
        return (signals(test_inputs(view.problem)) if self.test else columns) @ columns.T


def _check(layer: object) -> int:
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise TypeError(f"layer must be an integer >= 1, got {describe(layer)}")
    if layer < 1:
        raise ValueError(f"layer must be >= 1, the number of weight arrays below, got {layer}")
    return int(layer)


def hidden_kernel(layer: int) -> Observable:
    """The Gram matrix z_i . z_j of a hidden layer, z being the signals after its activation, shape (n, n).

    `js.kernels.regression` with it is a linear probe of the layer. For trained deep linear networks,
    `js.theory.BalancedModes.hidden_kernel` predicts it (Atanasov et al., eqs. 43 and 54).

    Arguments:
        layer: the number of weight arrays below, from 1.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 1.0], observe=js.observe.hidden_kernel(1))
        >>> print(run.to_xarray()["hidden_kernel_1"].dims)
        ('t', 'sample', 'sample_2')

    Raises:
        TypeError: layer is not an integer.
        ValueError: layer is less than 1; when used, if the network has no such hidden layer, or its layers do not form
            a chain.
    """
    dims = ("sample", "sample_2")
    name = f"hidden_kernel_{_check(layer)}"
    return Observable(name, _ReadHidden(int(layer), test=False), Quantity.PARAMS, dims, "signal^2")


def hidden_cross_kernel(layer: int) -> Observable:
    """`hidden_kernel` between test and training points, shape (m, n), from which the probe predicts.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> test = jnp.ones((3, 2)), jnp.ones((3, 1))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=test)
        >>> watched = [js.observe.hidden_kernel(1), js.observe.hidden_cross_kernel(1)]
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 1.0], observe=watched)
        >>> probe = js.kernels.regression(run["hidden_kernel_1"][-1], problem.y)
        >>> probe.predict(run["hidden_cross_kernel_1"][-1]).shape
        (3, 1)

    Raises:
        TypeError, ValueError: as for `hidden_kernel`; also when used, if the problem has no test set.
    """
    dims = ("test_sample", "sample")
    name = f"hidden_cross_kernel_{_check(layer)}"
    read = _ReadHidden(int(layer), test=True)
    return Observable(name, read, Quantity.PARAMS, dims, "signal^2", require=require_test_set)
