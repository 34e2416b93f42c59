"""The closed equations of infinitely wide linear networks, solved as they are published: by a fixed point."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxsolve.dynamics.wide.dmft import NormalForm


class Layer(NamedTuple):
    """Matrices over (time, index) of a hidden layer: <h h>, <g g>, and the responses of h to r and of g to u."""

    h: np.ndarray
    g: np.ndarray
    a: np.ndarray
    b: np.ndarray


def fixed_point(
    form: NormalForm,
    weights: np.ndarray,
    gram: np.ndarray,
    push: Callable[[np.ndarray], np.ndarray],
    outputs: int,
    *,
    response: float = 1.0,
) -> tuple[np.ndarray, list[Layer]]:
    """Outputs and hidden layers, of Bordelon & Pehlevan (2022): iterated until they stand still."""
    variance, rate = np.asarray(form.variance), np.asarray(form.rate)
    weights, count, depth = np.asarray(weights), len(weights), len(rate) - 1
    t, i, o = count, len(gram), outputs
    flat = lambda kernel: kernel.reshape(kernel.shape[0] * kernel.shape[1], -1)
    bottom = np.broadcast_to(gram[None, :, None], (t, i, t, i))
    top = np.broadcast_to(np.eye(o)[None, :, None], (t, o, t, o))
    nothing = Layer(np.zeros((t, i, t, i)), np.zeros((t, o, t, o)), np.zeros((t, i, t, o)), np.zeros((t, o, t, i)))
    layers = [nothing._replace(h=bottom), *[nothing] * depth, nothing._replace(g=top)]
    f, cross = np.zeros((t, i, o)), np.zeros((t, i, t, o))
    for _ in range(8 * t):
        q = push(f)
        for l in range(1, depth + 1):
            below, above = layers[l - 1], layers[l + 1]
            c = rate[l - 1] * np.einsum("ts,tisj,sja->tisa", weights, below.h, q)
            c = c + response * variance[l - 1] * below.a
            d = rate[l] * np.einsum("ts,tasb,sjb->tasj", weights, above.g, q) + response * variance[l] * above.b
            u, r, c, d = flat(variance[l - 1] * below.h), flat(variance[l] * above.g), flat(c), flat(d)
            one, two = np.linalg.inv(np.eye(t * i) - c @ d), np.linalg.inv(np.eye(t * o) - d @ c)
            h, g = one @ (u + c @ r @ c.T) @ one.T, two @ (r + d @ u @ d.T) @ two.T
            layers[l] = Layer(
                h.reshape(t, i, t, i),
                g.reshape(t, o, t, o),
                (one @ c).reshape(t, i, t, o),
                (two @ d).reshape(t, o, t, i),
            )
            cross = (one @ (u @ d.T + c @ r) @ two.T).reshape(t, i, t, o)
        f = np.einsum("tito->tio", cross)
    return f, layers[1:-1]
