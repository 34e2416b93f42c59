"""Errata of Atanasov, Bordelon & Pehlevan on learning in deep linear networks: section 4, appendices C and D.1, G.2.

L counts weight matrices; u is the singular value of the last one, c that of their product.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from ._chain import balanced, Chain, chain_of, DEPTH, frame, SIZE
from ._errata_atanasov_two_layers import PAPER
from ._erratum import compared, Erratum, Measurement
from ._simulate import draw, time_of_loss, unit, velocity


S = np.array([1.4])
U0 = 0.35


def _learned(L: int, ts: Any, u0: float = U0) -> Float[np.ndarray, " times"]:
    """c(t) for equal rates."""
    return np.array([chain.product[0] @ frame(1)[:, 0] for chain in balanced([u0], np.ones(L)).follow(S, ts)])


def _readout_speed() -> Measurement:
    L, ts = 3, np.array([0.0, 1.0, 2.0])
    truth, u = [], []
    for chain in balanced([U0], np.ones(L)).follow(S, ts):
        w, w_dot = chain.weights[-1][0], velocity(chain.problem(S))[-1][0]
        truth.append(unit(w) @ w_dot)
        u.append(np.linalg.norm(w))
    u = np.array(u)
    rest = S[0] - u**L
    return compared([f"t = {t:g}" for t in ts], truth, u ** (2 * L - 2) * rest, u ** (L - 1) * rest)


def _mode_speed() -> Measurement:
    Ls, ts = np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.0])

    def solved(factor):
        """c at ts[1:]."""
        speed = lambda _, c: factor * c ** (2 - 2 / Ls) * (S[0] - c)
        return solve_ivp(speed, (0, ts[-1]), U0**Ls, "DOP853", ts[1:], rtol=1e-12, atol=1e-14).y

    truth = [_learned(int(L), ts)[1:] for L in Ls]
    labels = [f"L = {L:g}, t = {t:g}" for L in Ls for t in ts[1:]]
    return compared(labels, np.ravel(truth), solved(1.0).ravel(), solved(Ls).ravel())


def _early_growth() -> Measurement:
    labels, columns = [], []
    for L in (3, 4):
        u0 = 0.03
        c0, power = u0**L, -(L - 2) / L
        t = 0.5 * c0**power / ((L - 2) * S[0])  # half-way to where the approximation diverges
        printed, corrected = ((c0**power - rate * S[0] * t) ** (1 / power) for rate in ((L - 2) / L, L - 2))
        columns.append([_learned(L, [0.0, t], u0)[1] / c0, printed / c0, corrected / c0])
        labels.append(f"c/c_0, L = {L}")
    return compared(labels, *zip(*columns, strict=True))


def _half_times() -> Measurement:
    s, sigmas = np.ones(1), np.array([1e-2, 1e-3, 1e-4])
    starts = [balanced([sigma], np.ones(2)) for sigma in sigmas]
    truth = [time_of_loss(start.problem(s), 1 / 8) for start in starts]
    log = np.log(1 / sigmas**2)
    return compared([f"sigma = {sigma:g}" for sigma in sigmas], truth, log, log / 2)


def _learning_time() -> Measurement:
    labels, columns = [], []
    for L, sigma in ((3, 1e-2), (3, 1e-3), (4, 0.1), (4, 0.03)):
        chain = balanced([sigma], np.ones(L))
        half = time_of_loss(chain.problem(S), S[0] ** 2 / 8)
        unit_of_time = sigma ** (2 - L) / S[0]
        printed = sigma ** (-L - 2) * L / (L - 2) / S[0]
        columns.append([half / unit_of_time, printed / unit_of_time, 1 / (L - 2)])
        labels.append(f"t s sigma^(L-2), L = {L}, sigma = {sigma:g}")
    return compared(labels, *zip(*columns, strict=True))


def _alignment_speed() -> Measurement:
    s, beta = np.array([3.0]), frame(1)[:, 0]
    v = frame(1)[:, 1]
    scale = 1e-3
    layers = tuple(scale * draw(seed, SIZE, SIZE) for seed in (100, 101))
    last = np.concatenate([scale * draw(102, 1, SIZE), np.zeros((1, SIZE))])
    chain = Chain((*layers, np.eye(SIZE), last), (1.0, 1.0, 0.0, 1.0))
    W = layers[0]
    W_dot = velocity(chain.problem(s))[0]
    along, across = W @ beta, W @ v
    squares = along @ along, across @ across
    truth = (2 * along @ (W_dot @ beta) * squares[1] - squares[0] * 2 * across @ (W_dot @ v)) / squares[1] ** 2
    form = 2 * along @ (layers[1].T @ last[0]) / squares[1]
    return compared(["L = 3, sigma = 1e-3"], [truth], [form], [s[0] * form])


def _singular_side() -> Measurement:
    L, labels, columns = 3, [], []
    chain = balanced([U0], np.ones(L)).follow(S, [0.0, 1.0])[1]
    for l in (1, 2):
        left, _, right = np.linalg.svd(chain.weights[l - 1])
        _, _, above = np.linalg.svd(chain.weights[(1, DEPTH - 1)[l - 1]])
        columns.append([1.0, abs(right[0] @ above[0]), abs(left[:, 0] @ above[0])])
        labels.append(f"overlap with r_{l + 1}")
    return compared(labels, *zip(*columns, strict=True))


def _finite_start() -> Measurement:
    """Singular values offset by sigma^2 g_l from those of the last layer, as wide Gaussian starts would be."""
    g, s, last, labels, columns = np.array([0.35, -0.25, 0.75, 0.0]), 1.7, 0.4, [], []
    for sigma in (0.1, 0.2):
        values = np.sqrt(last**2 + sigma**2 * g)[:, None]
        chain = chain_of(values, np.ones(DEPTH)).follow(np.array([s]), [0.0, 40.0])[1]
        root, total = s ** (1 / DEPTH), np.sum(g)
        printed = s**2 - total * sigma**2 / (2 * DEPTH * root)
        columns.append([np.linalg.norm(chain.weights[-1]) ** 2, printed, root**2 - total * sigma**2 / DEPTH])
        labels.append(f"u^2, sigma = {sigma:g}")
    return compared(labels, *zip(*columns, strict=True))


ERRATA = (
    Erratum(
        PAPER,
        "sections 3.1.2 and 4.2",
        "learning begins at `t = (1/s) log(s/sigma^2)`; modes at `(1/s_alpha) log(s_alpha/u_0^2)`",
        "`t = (1/2s) log(s/sigma^2)`; modes at `(1/(2 s_alpha)) log(s_alpha/u_0^2)`",
        "In the solution given there, `u^2` grows like `e^(2st)`.",
        "time at which f is half-way, from an aligned start of scale sigma, L = 2, s = 1",
        _half_times,
    ),
    Erratum(
        PAPER,
        "text at eq. 33",
        "`r_{l+1}` is the right singular vector of `W^l`",
        "`r_{l+1}` is the left singular vector of `W^l`",
        "`W^l = u r_{l+1} r_l^T`, as the next sentence has it.",
        "overlap of that singular vector with the right one of the layer above, which must be 1",
        _singular_side,
    ),
    Erratum(
        PAPER,
        "eq. 38",
        "`du/dt = u^(2L-2) (s - u^L)`",
        "`du/dt = u^(L-1) (s - u^L)`",
        "The sentence after it has the right exponent.",
        "speed of the last layer, L = 3",
        _readout_speed,
    ),
    Erratum(
        PAPER,
        "eq. 39, section 4.1.1, figure 4",
        "`dc/dt = c^(2-2/L) (s - c)`",
        "`dc/dt = L c^(2-2/L) (s - c)`",
        "The chain rule for `c = u^L` brings a factor L, which for L = 2 is that of appendix B.3.",
        "`c(t)` for L = 2, 3, 4 from u = 0.35",
        _mode_speed,
    ),
    Erratum(
        PAPER,
        "eq. 40",
        "`c = [c_0^(-(L-2)/L) - ((L-2)/L) s t]^(-L/(L-2))`",
        "`c = [c_0^(-(L-2)/L) - (L-2) s t]^(-L/(L-2))`",
        "The factor L of eq. 39.",
        "growth of c half-way to the divergence of the corrected form",
        _early_growth,
    ),
    Erratum(
        PAPER,
        "text below eq. 40",
        "time to learn `t = (1/s) (L/(L-2)) sigma^(-L-2)`",
        "`t = (1/s) (1/(L-2)) sigma^(-(L-2))`",
        "A sign is lost in the exponent, and the factor L is that of eq. 39; both forms are for sigma -> 0.",
        "half time in units of `sigma^(2-L)/s`",
        _learning_time,
    ),
    Erratum(
        PAPER,
        "eq. 41",
        "`2 beta^T W^1T ... w_L/|W^1 v|^2`",
        "`2 s beta^T W^1T ... w_L/|W^1 v|^2`",
        "A factor s is missing; the order in sigma is right.",
        "the derivative at a random small start, s = 3",
        _alignment_speed,
    ),
    Erratum(
        PAPER,
        "eq. 59",
        "`u^2 = s^2 - g sigma^2/(2 L s^(1/L))`",
        "`u^2 = s^(2/L) - g sigma^2/L`",
        "The leading term must solve `u^L = s`; the correction printed is that of u, not of its square.",
        "`u^2` of the last layer after training, L = 4, s = 1.7",
        _finite_start,
    ),
)
