"""Deep linear networks whose layers are given by their singular values, along frames that fit together."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._core import Problem
from ._simulate import draw, follow, Layers, linear_problem


SIZE, DEPTH, OUT = 6, 4, 2  # inputs and neurons, weight matrices, outputs


class Chain(NamedTuple):
    """L <= 4 trained layers; the others are identities at the rate 0, so that all L share one program."""

    weights: Layers
    eta: tuple[float, ...]

    @property
    def trained(self) -> tuple[float, ...]:
        """The rates of the plain NTK: 1 for every trained layer."""
        return tuple(float(rate > 0) for rate in self.eta)

    @property
    def product(self) -> Float[np.ndarray, "out in"]:
        """The matrix that the network applies, shape (out, in)."""
        W_1, W_2, W_3, W_4 = self.weights
        return W_4 @ W_3 @ W_2 @ W_1

    def problem(self, s: Float[np.ndarray, " modes"]) -> Problem:
        """Learning sum_alpha s_alpha z_alpha r_1^T from whitened data."""
        x = np.sqrt(SIZE) * np.eye(SIZE)
        target = np.eye(OUT)[:, : len(s)] @ np.diag(s) @ frame(1)[:, : len(s)].T
        return linear_problem(self.weights, x, x @ target.T, self.eta)

    def follow(self, s: Float[np.ndarray, " modes"], ts: Any) -> "list[Chain]":
        """The flow of that problem at the times ts."""
        saved = follow(self.problem(s), ts)
        return [self._replace(weights=tuple(layer[index] for layer in saved)) for index in range(len(ts))]


def frame(l: int) -> Float[np.ndarray, "neurons neurons"]:
    """The orthonormal columns r_l; r_1 of the first mode is beta."""
    return np.linalg.qr(draw(90 + l, SIZE, SIZE))[0]


def chain_of(values: Float[np.ndarray, "layers modes"], eta: Float[np.ndarray, " layers"]) -> Chain:
    """W_l = sum_alpha values[l, alpha] r_{l+1} r_l^T, the outputs' frame being the identity.

    Arguments:
        values: singular values, shape (L, modes).
        eta: rates, shape (L,).
    """
    L, modes = values.shape
    frames = [*(frame(l) for l in range(1, L + 1)), np.eye(OUT)]
    layers = [frames[l + 1][:, :modes] @ np.diag(values[l]) @ frames[l][:, :modes].T for l in range(L)]
    idle = DEPTH - L
    rates = (*eta[:-1], *(0.0,) * idle, eta[-1])
    return Chain((*layers[:-1], *(np.eye(SIZE),) * idle, layers[-1]), tuple(map(float, rates)))


def balanced(u: Any, eta: Any) -> Chain:
    """Singular values sqrt(eta_l/eta_L) u_alpha: W_{l+1}^T W_{l+1}/eta_{l+1} = W_l W_l^T/eta_l."""
    u, eta = np.asarray(u, float), np.asarray(eta, float)
    return chain_of(np.sqrt(eta / eta[-1])[:, None] * u[None, :], eta)
