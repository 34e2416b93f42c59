"""The samples and parameters whose derivatives are not finite, for error messages."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from ..._numerics import Inputs
from ...nets import partition


# The number of names or indices that a message lists.
LISTED = 5


class NonFinite(NamedTuple):
    """The places where a network has outputs, or derivatives by its parameters, that are NaN or infinite.

    Attributes:
        outputs: indices of samples with such an output.
        samples: indices of samples with such a derivative, including those of `outputs`.
        parameters: names of the parameters with such a derivative.
    """

    outputs: tuple[int, ...]
    samples: tuple[int, ...]
    parameters: tuple[str, ...]

    def words(self, name: str = "x") -> str:
        """A statement of what was found, with `name` for the samples; empty if all is finite."""
        if self.outputs:
            return f"the outputs of {_listed(self.outputs, name)} are NaN or infinite"
        if not self.samples:
            return ""
        return (
            f"the derivatives of {_listed(self.samples, name)} by {_some(self.parameters)} are NaN or infinite, though "
            "the outputs are not: as of x/|x| or sqrt(x) at 0. Leave those samples out, or guard the operation on both "
            "sides: jnp.where(safe, f(jnp.where(safe, x, 1)), 0)"
        )


@eqx.filter_jit
def _finite(net: Any, x: Inputs) -> tuple[Bool[Array, " n"], PyTree[Bool[Array, " n"]]]:
    params, static = partition(net)

    def of_sample(sample: PyTree[Array]) -> tuple[Array, PyTree]:
        f, pull = jax.vjp(lambda p: eqx.combine(p, static)(sample).reshape(-1), params)
        # If one output's derivative is not finite, neither is the derivative of the sum over outputs.
        gradient = pull(jnp.ones_like(f))[0]
        return jnp.all(jnp.isfinite(f)), jax.tree.map(lambda leaf: jnp.all(jnp.isfinite(leaf)), gradient)

    return jax.lax.map(of_sample, x)  # one by one: a batch would hold one gradient per sample


def nonfinite_derivatives(net: Any, x: Inputs) -> NonFinite:
    """Finds where derivatives of a network are not finite; costs one gradient per sample.

    Arguments:
        net: a network that takes one sample, with finite parameters.
        x: inputs, shape (n, ...).
    """
    outputs, gradient = jax.tree.map(np.asarray, _finite(net, x))
    paths = jax.tree_util.tree_leaves_with_path(gradient)
    fine = np.all([leaf for _, leaf in paths], axis=0)
    names = [jax.tree_util.keystr(path).removeprefix(".") for path, leaf in paths if not leaf.all()]
    places = lambda found: tuple(np.flatnonzero(~found).tolist())
    return NonFinite(places(outputs), places(fine & outputs), tuple(names))


def _listed(indices: tuple[int, ...], name: str) -> str:
    return _some(tuple(f"{name}[{index}]" for index in indices))


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
