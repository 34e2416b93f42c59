"""The initial state of an infinitely wide network, as samples of its neurons."""

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
    """Randomly drawn neurons whose linear averages equal those at infinite width.

    The sources of a layer are orthonormal over its neurons, and each neuron has a twin with opposite sources from
    above. Therefore f = 0 at the start, and a linear network has no sampling error.

    Arguments:
        form: the normal form.
        inputs, outputs: their numbers.
        room: number of directions of one matrix, plus one more block and a spare one.
        samples: number of neurons, at least twice the room.
        key: random key of the draws.
        dtype: dtype of all arrays.
    """
    half = samples // 2

    def orthonormal(key: Key[Array, ""]) -> Float[Array, "room half"]:
        q, r = jnp.linalg.qr(jr.normal(key, (half, room), dtype))
        # With the diagonal of r made positive, q is uniformly distributed (Mezzadri 2007), whatever signs LAPACK
        # chooses. Rows have mean square 1.
        return half**0.5 * (q * jnp.sign(jnp.diag(r))[None]).T

    # Sequential, because XLA has been seen to hang on many factorizations at once.
    drawn = jax.lax.map(orthonormal, jr.split(key, 2 * form.hidden))
    below, above = drawn[: form.hidden], drawn[form.hidden :]
    same = [jnp.concatenate([one, one], axis=1) for one in below]
    opposite = [jnp.concatenate([one, -one], axis=1) for one in above]
    return _network(form, same, opposite, inputs, outputs)


def linear_network(form: NormalForm, inputs: int, outputs: int, room: int, dtype: Any) -> Network:
    """The exact start of a linear network: signals are combinations of sources, so sources can serve as neurons.

    Arguments:
        form: the normal form.
        inputs, outputs: their numbers.
        room: as for `sampled_network`.
        dtype: dtype of all arrays.
    """
    room = max(room, inputs + 1, outputs)
    sources = (2 * room) ** 0.5 * jnp.eye(2 * room, dtype=dtype)
    return _network(form, [sources[:room]] * form.hidden, [sources[room:]] * form.hidden, inputs, outputs)


def _network(form: NormalForm, below: list[Array], above: list[Array], inputs: int, outputs: int) -> Network:
    sigma, (room, size), dtype = safe_sqrt(form.variance), below[0].shape, below[0].dtype
    nothing, moved = no_directions(room, size, dtype), jnp.zeros((room, room), dtype)
    # A matrix pairs the lower sources of the layer above it with the upper sources of the layer below it.
    hidden = tuple(Matrix(nothing, nothing, *pair, moved) for pair in zip(below[1:], above[:-1], strict=True))
    first, spare = sigma[0] * below[0][:inputs], sigma[0] * below[0][-1]
    return Network(first, hidden, sigma[-1] * above[-1][:outputs], spare)
