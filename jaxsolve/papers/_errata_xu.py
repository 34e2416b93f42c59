"""Errata of Xu & Liu Ziyin: three statements of the first version (arXiv 2401.07085v1).

The text they were read from has lost most formulas; an erratum says so where it infers what the prose refers to.
"""

import functools

import numpy as np
from jaxtyping import Float

from .._core import Problem
from ._erratum import counted, Erratum, Row, Rows, rows
from ._simulate import draw, follow, linear_problem, unit


PAPER = "Xu & Liu Ziyin, When Does Feature Learning Happen? (arXiv 2401.07085v1; later: Three Mechanisms ...)"
erratum = functools.partial(Erratum, PAPER)
ALONG = np.array([-1.0, 0.5, 2.0, 1.0])  # positions of the data on their line
RHO = np.sqrt(np.mean(ALONG**2))  # Proposition 1: the flow is that of the one point x = rho n
DIRECTION = unit(np.array([1.0, -2.0, 2.0]))
ETA_W, ETA_U = 0.6, 1.4
K = RHO * np.sqrt(ETA_U * ETA_W)


def _on_line(
    w: Float[np.ndarray, "width 3"],
    u: Float[np.ndarray, " width"],
    y: float,
    eta: tuple[float, float] = (ETA_W, ETA_U),
) -> Problem:
    """The network on data on a line whose reduced target is y."""
    x = ALONG[:, None] * DIRECTION[None, :]
    return linear_problem((w, u[None, :]), x, y / RHO * ALONG[:, None], eta)


def _xi(P: float, Q: float, y: float, t: Float[np.ndarray, " times"]) -> Float[np.ndarray, " times"]:
    """Theorem 1, eq. 8: the only function of time."""
    R = np.sqrt(y**2 + K**2 * P * Q)
    decay = np.exp(-2 * K * R * t)
    up, down = (1 + decay + share / R * (1 - decay) for share in (y + K * Q, K * P - y))
    return np.sqrt(up / down)


def _orthogonal_output() -> Rows:
    w, u, y = draw(0, 5, 3), draw(1, 5), 1.3
    ts = np.array([0.0, 0.1, 0.3, 1.0, 3.0])
    off = np.cross(DIRECTION, np.array([0.3, 1.0, 0.5]))
    w_t, u_t = follow(_on_line(w, u, y), ts)
    truth = np.einsum("toi,tij,j->t", u_t, w_t, off)
    p, q = (u / np.sqrt(ETA_U) + sign * (w @ DIRECTION) / np.sqrt(ETA_W) for sign in (1, -1))
    xi = _xi(np.sum(p**2) / 2, np.sum(q**2) / 2, y, ts)
    moved = np.sqrt(ETA_U) / 2 * (p[None, :] * xi[:, None] + q[None, :] / xi[:, None])
    return rows([f"$t = {t:g}$" for t in ts], truth, np.full(len(ts), truth[0]), moved @ (w @ off))


def _saddle() -> Rows:
    u = draw(2, 5)
    sideways = draw(3, 5)[:, None] * np.cross(DIRECTION, np.array([0.3, 1.0, 0.5]))[None, :]
    for name, sign, y in (
        ("$P = 0$, $y > 0$", -1, 1.3),
        ("$P = 0$, $y < 0$", -1, -1.3),
        ("$Q = 0$, $y < 0$", 1, -1.3),
        ("$Q = 0$, $y > 0$", 1, 1.3),
    ):
        w = sign * np.sqrt(ETA_W / ETA_U) * u[:, None] * DIRECTION[None, :] + sideways
        # By this time decaying parts are gone, and rounding errors have not yet grown away from the saddle.
        w_t, u_t = follow(_on_line(w, u, y), [0.0, 10 / (K * abs(y))])
        f = RHO * float(u_t[1, 0] @ w_t[1] @ DIRECTION)
        yield Row(name, (y - f) / y, y > 0 if sign < 0 else np.nan, sign * y < 0)


def _alignment(ratio: float) -> float:
    """zeta after training, with eta_u/eta_w = ratio."""
    problem = _on_line(draw(0, 5, 3), draw(1, 5), 1.3, (ratio**-0.5, ratio**0.5))
    w_t, u_t = follow(problem, [0.0, 10.0])
    return float(unit(u_t[1, 0]) @ unit(w_t[1] @ DIRECTION))


def _alignment_and_rates() -> Rows:
    equal = _alignment(1.0)
    for ratio in (0.01, 0.1, 10.0, 100.0):
        same = abs(_alignment(ratio) - equal) < 1e-8
        yield Row(rf"$\zeta$ with $\eta_u/\eta_w = {ratio:g}$ ends as with 1", same, False, True)


ERRATA = (
    erratum(
        "section 2.1, below eq. 16",
        'prose: "the output of the model in the subspace where there is no data remains constant", '
        "$f(x', t) = f(x', 0)$ for $x'$ orthogonal to the data",
        r"$f(x', t) = \gamma \sum_i u_i(t) w_i(0) \cdot x'$",
        "The first layer does not move along $x'$, but the second layer moves, and the output is their product.",
        "$f(x', t)$ against integration of the weights",
        _orthogonal_output,
    ),
    erratum(
        "section 2.2, below eq. 24",
        r'prose on the change of $\zeta$ (inferred): "the dependence on the learning rate becomes quite strong once we '
        r'use different learning rates on the two layers", linear in $\eta_u/\eta_w$',
        r"at the end $\zeta$ does not depend on the rates, nor does the condition of eq. 24, $y > f(0)$",
        r"$\lvert u \rvert^2 \lvert v \rvert^2 - (u \cdot v)^2$ is conserved at any rates, so $\zeta$ is a function of "
        "$f$ alone: only the pace depends on the rates.",
        r"whether $\zeta$ ends as it does with equal rates, to 1e-8; the error is the share of wrong answers",
        _alignment_and_rates,
        counted,
    ),
    erratum(
        "Proposition 1 (appendix, eqs. 44 to 48)",
        'an omission: of one degenerate case, read as $P = 0$, the prose says that "the gradient flow will converge to '
        'the trivial saddle point" for one sign of $y$, inferred to be $y > 0$; of $Q = 0$ it says nothing',
        "$Q = 0$ is the mirror case: there the flow ends in the saddle if $y < 0$",
        r"For $Q = 0$ and $y < 0$ the limit $\alpha_+$ of eq. 12 is 0, so $\xi \to 0$ and both layers vanish.",
        "remaining residual $(y - f)/y$ at the end: 1 in the saddle, 0 when fitted (no number where nothing is said)",
        _saddle,
    ),
)
