"""The Jacobian of a network at one point, held as operands and cotangents of its parameters, and its products."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._numerics import HeldModule, Inputs
from ...nets import partition
from ._capture import Capture, capture, Record
from ._inputs import check_inputs
from ._outputs import Outputs
from ._structured import of_records
from ._use_gram import pull, push


class LayeredJacobian(eqx.Module):
    """J = df/dtheta of all outputs on a set of inputs, held as an operand and a cotangent for each use of a parameter.

    A product with J or its transpose is then one matrix product per use, half the work of automatic differentiation,
    and the NTK is a sum of Grams of the same arrays.

    Arguments:
        net: a network or any function of one sample that is a pytree, such as `js.nets.Function(f, params)`.
        x: inputs, shape (n, ...).

    Raises:
        ValueError: inputs do not fit the network, or the network does not map one sample.
        TypeError: net is not a network, or x is not an array.
    """

    held: HeldModule  # since loops carry only arrays, and the activation of an `eqx.nn.MLP` is another leaf
    records: list[Record]
    x: Inputs

    def __init__(self, net: Any, x: Inputs):
        check_inputs(net, x, None, names=("x", "x2"))
        self.held, self.x = HeldModule(net), x
        self.records = capture(net, x).records(x)

    @property
    def net(self) -> Any:
        """The network at the point."""
        return self.held.module

    @property
    def params(self) -> PyTree:
        """The parameters at the point."""
        return partition(self.net)[0]

    def push(self, v: PyTree[Float[Array, "..."]]) -> Float[Array, "n out"]:
        """J v for v shaped like the parameters."""
        moved = jax.tree.leaves(v)
        parts = zip(self._capture().uses, self.records, strict=True)
        found = [push(use, moved[leaf], record) for (leaf, use), record in parts]
        return sum(found[1:], found[0])

    def pull(self, q: Float[Array, "n out"]) -> PyTree[Float[Array, "..."]]:
        """J^T q, shaped like the parameters."""
        values, structure = jax.tree.flatten(self.params)
        total = [jnp.zeros_like(value) for value in values]
        for (leaf, use), record in zip(self._capture().uses, self.records, strict=True):
            # A leaf may have several uses; its derivative is their sum.
            own = pull(use, q, record, values[leaf].shape)
            total[leaf] = total[leaf] + own.astype(total[leaf].dtype)
        return jax.tree.unflatten(structure, total)

    def ntk(self, eta: PyTree) -> Float[Array, "n out n out"]:
        """The eta-weighted NTK of the inputs; symmetric to the last bit."""
        found = self._capture()
        return of_records(found, eta, self.records, found.constant(self.x), Outputs.ALL)

    def _capture(self) -> Capture:
        return capture(self.net, self.x)
