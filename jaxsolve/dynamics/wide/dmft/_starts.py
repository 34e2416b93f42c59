"""The start of an infinitely wide network, in samples of its neurons."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from ...._numerics import safe_sqrt
from ._matrix import Matrix, no_directions
from ._network import Network
from ._normal_form import NormalForm


def sampled_network(
    form: NormalForm, inputs: int, outputs: int, room: int, samples: int, key: Key[Array, ""], dtype: Any
) -> Network:
    """Neurons that are draws, whose linear averages are those of infinite width.

    The sources of a layer are orthonormal among its neurons, and each neuron has a twin with opposite sources from
    above. So f = 0 at the start, and a linear network has no error at all.

    Arguments:
        form: hyperparameters.
        inputs, outputs: how many.
        room: directions of one matrix, with those of one block more, and one to spare.
        samples: neurons, at least twice the room.
        key: of the draws.
        dtype: of all arrays.
    """
    half = samples // 2

    def orthonormal(key: Key[Array, ""]) -> Float[Array, "room half"]:
        q, r = jnp.linalg.qr(jr.normal(key, (half, room), dtype))
        # With the diagonal of r made positive q is uniformly distributed (Mezzadri 2007), whatever signs LAPACK
        # chooses. Rows have mean square 1.
        return half**0.5 * (q * jnp.sign(jnp.diag(r))[None]).T

    # One after the other: XLA has been seen to wait for ever for many factorizations at once.
    drawn = jax.lax.map(orthonormal, jr.split(key, 2 * form.hidden))
    below, above = drawn[: form.hidden], drawn[form.hidden :]
    same = [jnp.concatenate([one, one], axis=1) for one in below]
    opposite = [jnp.concatenate([one, -one], axis=1) for one in above]
    return _network(form, same, opposite, inputs, outputs)


def linear_network(form: NormalForm, inputs: int, outputs: int, room: int, dtype: Any) -> Network:
    """The start of a linear network, exactly: signals are combinations of sources, so these may stand for neurons.

    Arguments:
        form: hyperparameters.
        inputs, outputs: how many.
        room: as for `sampled_network`.
        dtype: of all arrays.
    """
    room = max(room, inputs + 1, outputs)
    sources = (2 * room) ** 0.5 * jnp.eye(2 * room, dtype=dtype)
    return _network(form, [sources[:room]] * form.hidden, [sources[room:]] * form.hidden, inputs, outputs)


def _network(form: NormalForm, below: list[Array], above: list[Array], inputs: int, outputs: int) -> Network:
    sigma, (room, size), dtype = safe_sqrt(form.variance), below[0].shape, below[0].dtype
    nothing, moved = no_directions(room, size, dtype), jnp.zeros((room, room), dtype)
    # A matrix meets the sources from below of the layer above it, and those from above of the layer below it.
    hidden = tuple(Matrix(nothing, nothing, *pair, moved) for pair in zip(below[1:], above[:-1], strict=True))
    first, spare = sigma[0] * below[0][:inputs], sigma[0] * below[0][-1]
    return Network(first, hidden, sigma[-1] * above[-1][:outputs], spare)
