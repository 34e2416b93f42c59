"""Errata of Kunin et al. on the single hidden neuron f = a w.x, and of the code that draws its figures.

Throughout delta = eta_w a^2 - eta_a |w|^2, and the loss is half the sum of squares over samples.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from .. import kernels, nets
from .._core import Problem
from ._erratum import counted, Erratum, Row, Rows, rows
from ._simulate import draw, follow, kernel, linear_problem


PAPER = "Kunin et al., Get rich quick (arXiv 2406.06158v2)"
erratum = functools.partial(Erratum, PAPER)
CODE = "notebook `Single_Neuron`"
Vector = Float[np.ndarray, " d"]
Curve = Float[np.ndarray, " times"]


def _neuron(
    a: float, w: Vector, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], eta_a: float = 1.0, eta_w: float = 1.0
) -> Problem:
    return linear_problem((w[None, :], np.array([[a]])), x, y[:, None], (len(x) * eta_w, len(x) * eta_a))


def _follow(
    a: float, w: Vector, target: Vector, ts: Any, eta_a: float = 1.0, eta_w: float = 1.0
) -> tuple[Curve, Float[np.ndarray, "times d"]]:
    """a(t) and w(t) on whitened data: X = I, y = beta_*."""
    w_t, a_t = follow(_neuron(a, w, np.eye(2), target, eta_a, eta_w), ts)
    return a_t[:, 0, 0], w_t[:, 0]


# --- footnote 4


def _basins() -> Rows:
    target, count = np.array([2.0, 0.5]), 40
    rates, w0 = np.exp(1.2 * draw(10, count, 2)), draw(12, count, 2)
    # delta < 0, and a_0 pulls away from the basin that w_0 points to.
    share = np.tanh(np.abs(draw(11, count))) * -np.sign(w0 @ target)
    a0 = share * np.sqrt(rates[:, 0] / rates[:, 1]) * np.linalg.norm(w0, axis=1)
    for index, ((eta_a, eta_w), a, w) in enumerate(zip(rates, a0, w0, strict=True)):
        delta = eta_w * a**2 - eta_a * w @ w
        speed = np.sqrt(delta**2 + 4 * eta_a * eta_w * target @ target)
        a_t, _ = _follow(a, w, target, [0.0, 50 / speed], eta_a, eta_w)
        printed = w @ target + a / 2 * (delta + np.sqrt(delta**2 + 4 * target @ target)) > 0
        yield Row(f"start {index}", a_t[1] > 0, printed, eta_a * w @ target + a / 2 * (delta + speed) > 0)


# --- eq. 5


def _least(function: Callable[[float], float]) -> float:
    """The minimizer of a convex function of one variable."""
    found: Any = minimize_scalar(function, bounds=(-10, 10), method="bounded", options={"xatol": 1e-12})
    return found.x


def _implicit_bias() -> Rows:
    x, y = np.array([0.5, 1.0]), 1.1
    fit, free = y * x / (x @ x), np.array([-1.0, 0.5]) / np.linalg.norm(x)
    w0 = np.array([0.9, -0.4])
    for a0, eta_a, eta_w in ((0.4, 2.0, 0.5), (1.0, 0.2, 0.5), (1.2, 3.0, 2.0)):
        delta, beta0 = eta_w * a0**2 - eta_a * w0 @ w0, a0 * w0
        # A second sample of zeros, so that this run shares the program of the others.
        x_two, y_two = np.stack([x, np.zeros(2)]), np.array([y, 0.0])
        w_t, a_t = follow(_neuron(a0, w0, x_two, y_two, eta_a, eta_w), [0.0, 60.0])

        def potential(along, product, delta=delta, beta0=beta0):
            beta = fit + along * free
            kappa, kappa0 = (np.sqrt(delta**2 + 4 * product * b @ b) for b in (beta, beta0))
            psi = (kappa - 2 * delta) * np.sqrt(kappa + delta) / (3 * np.sqrt(product))
            return psi - np.sqrt(kappa0 - delta) * (beta0 @ beta) / np.linalg.norm(beta0)

        printed = _least(lambda along: potential(along, 1.0))  # noqa: B023
        corrected = _least(lambda along: potential(along, eta_a * eta_w))  # noqa: B023
        said = rf"$\eta_a = {eta_a:g}$, $\eta_w = {eta_w:g}$, $\delta = {delta:.2g}$"
        yield Row(said, a_t[1, 0, 0] * w_t[1, 0] @ free, printed, corrected)


# --- D.1


def _sphere_delta() -> Rows:
    for tau, alpha in ((0.1, 1.5), (0.7, 1.2), (2.0, 3.0)):
        scaling = nets.Scaling([1.0, 1.0], [tau / alpha, tau * alpha], [1.0, 1.0])
        net = nets.MLP(
            in_size=2, out_size=1, width_size=6, depth=1, scaling=scaling, init=nets.Sphere(), key=jax.random.key(13)
        )
        truth = np.mean(np.asarray(net.conserved(net, net.rates())[0].value))
        delta = tau**2 * (alpha**2 - alpha**-2)
        yield Row(rf"$\tau = {tau:g}$, $\alpha = {alpha:g}$", truth, np.sqrt(delta), delta)


# --- the notebook


def _kernel_distance() -> Rows:
    a0, w0, ts = 0.9, np.array([0.8, -0.9]), np.array([0.0, 0.3, 1.0, 3.0])
    a_t, w_t = _follow(a0, w0, np.array([-1.0, 0.5]), ts)
    at = [kernel((w[None, :], np.array([[a]])), np.eye(2), (1.0, 1.0)) for a, w in zip(a_t, w_t, strict=True)]
    truth = [float(kernels.distance(jnp.asarray(at[0]), jnp.asarray(later))) for later in at]

    def distance(squared_in_denominator):
        first, ww = w0 @ w0, np.sum(w_t**2, axis=1)
        overlap = 2 * a0**2 * a_t**2 + a0**2 * ww + a_t**2 * first + (w_t @ w0) ** 2
        norm0 = np.sqrt(2 * a0**4 + 2 * a0**2 * first + first**2)
        return 1 - overlap / norm0 / np.sqrt(2 * a_t**4 + 2 * squared_in_denominator * ww + ww**2)

    return rows([f"$t = {t:g}$" for t in ts], truth, distance(a0**2), distance(a_t**2))


def _code_a(a0: float, w0: Vector, target: Vector, t: Curve) -> Curve:
    """a(t) as `theory` computes it, without its assertion a > 0; NaN for delta = 0, which it rejects."""
    delta, s = a0**2 - w0 @ w0, np.linalg.norm(target)
    if abs(delta) < 1e-14:
        return np.full(len(t), np.nan)
    ratio = np.linalg.norm(w0) / a0
    zeta0 = np.cosh(np.arctanh(ratio)) if delta > 0 else np.sinh(np.arctanh(1 / ratio))
    nu0, S = (w0 / a0) @ target, np.sqrt(4 * s**2 + delta**2)
    Q = S * t / 2 + np.arctanh((delta + 2 * nu0) / S + 0j)
    gap = s**2 - nu0 * (delta + nu0)
    B = s**2 * (zeta0**2 - 1) - nu0**2 * zeta0**2 if delta > 0 else s**2 + (s**2 - nu0**2) * zeta0**2
    bracket = 4 * s**2 * gap * zeta0**2 - S**2 * B * np.exp(-delta * t)
    bracket = bracket - delta * gap * zeta0**2 * (delta * np.cosh(2 * Q) - S * np.sinh(2 * Q))
    root = np.sqrt(bracket / np.cosh(Q) ** 2 / (gap * zeta0**2) + 0j)
    zeta = 2 * s / root if delta > 0 else 2j * s / root
    return np.sqrt(abs(delta)) * zeta.real


def _closed_a(a0: float, w0: Vector, target: Vector, t: Curve) -> Curve:
    """a(t) = g H(t) with g^2 = delta/(H^2 - |N|^2): for either sign of a_0 and delta, and through a = 0 (rates 1)."""
    delta = a0**2 - w0 @ w0
    R = np.sqrt(delta**2 + 4 * target @ target)
    C = (2 * w0 @ target + delta * a0) / R

    def H_and_N(time):
        H = a0 * np.cosh(R * time / 2) + C * np.sinh(R * time / 2)
        parts = (((a0 + C) / 2, (delta + R) / 2), ((a0 - C) / 2, (delta - R) / 2))
        grown = np.sum([part * np.expm1(rate * time) / rate for part, rate in parts], axis=0)
        return H, np.exp(-delta * time / 2)[:, None] * (w0[None, :] + grown[:, None] * target[None, :])

    H, N = H_and_N(t)
    if abs(delta) > 1e-14:
        return H * np.sqrt(delta / (H**2 - np.sum(N**2, axis=1)))
    # At delta = 0 this is 0/0, with the limit g^-2 = 1 + 2 int_0^t |N|^2.
    nodes, shares = np.polynomial.legendre.leggauss(40)
    inner = H_and_N((t[:, None] * (nodes[None, :] + 1) / 2).ravel())[1].reshape(len(t), len(nodes), len(w0))
    return H / np.sqrt(1 + t * (np.sum(inner**2, axis=2) @ shares))


def _theory(starts: dict[str, tuple[float, Vector]]) -> Rows:
    target, ts = np.array([0.6, 0.8]), np.array([0.2, 1.0, 3.0])
    for name, (a0, w0) in starts.items():
        a_t, _ = _follow(a0, w0, target, np.append(0.0, ts))
        labels = [f"{name}, $t = {t:g}$" for t in ts]
        yield from rows(labels, a_t[1:], _code_a(a0, w0, target, ts), _closed_a(a0, w0, target, ts))


SIGNS = {
    r"$a_0 > 0$, $\delta > 0$": (1.2, np.array([0.5, 0.3])),
    r"$a_0 < 0$, $\delta > 0$": (-1.2, np.array([0.5, 0.3])),
    r"$a_0 < 0$, $\delta < 0$": (-0.4, np.array([-1.0, 0.3])),
    r"$a$ through 0, $\delta < 0$": (0.3, np.array([-1.0, -0.9])),
}
BALANCED = {r"$\delta = 0$": (0.5, np.array([-0.3, 0.4]))}


ERRATA = (
    erratum(
        "footnote 4",
        r"for $\delta < 0$ the flow ends with the sign of "
        r"$w_0 \cdot \beta_* + \frac{a_0}{2} (\delta + \sqrt{\delta^2 + 4 \lvert \beta_* \rvert^2})$",
        r"the sign of $\eta_a w_0 \cdot \beta_* + "
        r"\frac{a_0}{2} (\delta + \sqrt{\delta^2 + 4 \eta_a \eta_w \lvert \beta_* \rvert^2})$",
        "The printed test is the one for equal rates of 1; other rates move the surface between the basins.",
        "whether $a$ ends positive (1) or negative (0), 40 random starts and rates; errors are shares of the starts",
        _basins,
        counted,
    ),
    erratum(
        "eq. 5",
        r"$\Psi = (\kappa - 2 \delta) \sqrt{\kappa + \delta}/3$ with "
        r"$\kappa = \sqrt{\delta^2 + 4 \lvert \beta \rvert^2}$",
        r"$\Psi = (\kappa - 2 \delta) \sqrt{\kappa + \delta}/(3 \sqrt{\eta_a \eta_w})$ with "
        r"$\kappa = \sqrt{\delta^2 + 4 \eta_a \eta_w \lvert \beta \rvert^2}$",
        r"The printed potential holds for rates of 1; otherwise the rates enter through $\kappa$, "
        r"also in $\psi = \sqrt{\kappa_0 - \delta}$.",
        r"component of $\beta(\infty)$ orthogonal to the one data point",
        _implicit_bias,
    ),
    erratum(
        "appendix D.1",
        r"$\delta^2 = \tau^2 (\alpha^2 - \alpha^{-2})$",
        r"$\delta = \tau^2 (\alpha^2 - \alpha^{-2})$",
        r"With $\lvert w_k \rvert = \tau/\alpha$ and $a_k = \pm \alpha \tau$ the difference of squares is $\delta$ "
        r"itself; for $\alpha < 1$ the printed square is negative.",
        r"$\delta$ of a network initialized in this way",
        _sphere_delta,
    ),
    erratum(
        f"{CODE}, `kernel_distance`",
        r"norm of the later kernel: "
        r"$\sqrt{2 a_t^4 + 2 a_0^2 \lvert w_t \rvert^2 + \lvert w_t \rvert^4}$",
        r"$\sqrt{2 a_t^4 + 2 a_t^2 \lvert w_t \rvert^2 + \lvert w_t \rvert^4}$",
        "The second denominator takes $a$ of the start where that of the later time is needed; "
        "a figure of the paper is drawn with it.",
        "kernel distance between times 0 and $t$, against the empirical NTK",
        _kernel_distance,
    ),
    erratum(
        f"{CODE}, theory with $a < 0$",
        r"$\lvert a \rvert = \sqrt{\lvert \delta \rvert} \zeta$ with the positive root for $\zeta$; the code asserts "
        "$a_0 > 0$",
        r"$a = H \sqrt{\delta/(H^2 - \lvert N \rvert^2)}$, $H = a_0 \cosh(Rt/2) + C \sinh(Rt/2)$, "
        r"$C = (2 w_0 \cdot \beta_* + \delta a_0)/R$, $R = \sqrt{\delta^2 + 4 \lvert \beta_* \rvert^2}$",
        "The root loses the sign of $a$, so starts with $a_0 < 0$ are not covered; "
        "$H$ and $N$ obey a linear equation, and keep it.",
        "$a(t)$ from four starts (the assertion set aside)",
        functools.partial(_theory, SIGNS),
    ),
    erratum(
        rf"{CODE}, theory with $\delta = 0$",
        r"not supported: $\zeta$ divides by $\sqrt{\lvert \delta \rvert}$",
        r"$a = H/\sqrt{1 + 2 \int_0^t \lvert N \rvert^2}$",
        r"The limit of the corrected form at $\delta = 0$ is finite.",
        "$a(t)$ from a balanced start",
        functools.partial(_theory, BALANCED),
    ),
)
