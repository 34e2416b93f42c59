"""Errata of Atanasov, Bordelon & Pehlevan on f = a.W x: sections 2, 3 and 5, appendices A, B and H.

beta is the unit vector that the network learns, s its scale; the loss is half the mean of squares.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.integrate import cumulative_trapezoid, simpson, solve_ivp
from scipy.interpolate import CubicSpline
from scipy.linalg import expm

from .._core import Problem
from ._erratum import Erratum, matrix_row, Row, Rows, rows
from ._simulate import draw, follow, linear_problem, unit, velocity


PAPER = "Atanasov, Bordelon & Pehlevan, Neural Networks as Kernel Learners: The Silent Alignment Effect"
erratum = functools.partial(Erratum, PAPER)


# --- eq. 2 and appendix A: a kernel that turns


class _Turning(NamedTuple):
    """Predictions and kernels over time. The learning rate is eta; f' = eta K (y - f), eq. 1."""

    eta: float
    step: float
    f: Float[np.ndarray, "times 3"]  # on the training set
    f_new: Float[np.ndarray, "times 4"]  # on new inputs
    K: Float[np.ndarray, "times 3 3"]
    k: Float[np.ndarray, "times 4 3"]
    y: Float[np.ndarray, "3"]


def _samples() -> tuple[Float[np.ndarray, "..."], ...]:
    """W, a, x, y."""
    return 0.5 * draw(60, 4, 3), 0.5 * draw(61, 4), draw(62, 3, 3), 1.5 * draw(63, 3)


def _turning() -> _Turning:
    eta, times = 0.4, 501
    w, a, x, y = _samples()
    new = draw(64, 4, 3)
    ts = np.linspace(0, 10, times)
    W, A = follow(linear_problem((w, a[None, :]), x, y[:, None], (3 * eta, 3 * eta)), ts)
    beta = (A @ W)[:, 0]
    M = np.swapaxes(W, 1, 2) @ W + np.sum(A[:, 0] ** 2, axis=1)[:, None, None] * np.eye(3)[None]
    return _Turning(eta, ts[1], beta @ x.T, beta @ new.T, x @ M @ x.T, new @ M @ x.T, y)


def _learned(run: _Turning, prefactor: float, ordered: bool) -> Float[np.ndarray, "4"]:
    """f on the new inputs by eq. 2, with the exponential ordered in time or not."""
    return run.f_new[0] + prefactor * (_ordered(run) if ordered else _not_ordered(run))


def _ordered(run: _Turning) -> Float[np.ndarray, "4"]:
    """int k_t Delta dt with Delta' = -eta K(t) Delta from y - f_0."""
    ts = run.step * np.arange(len(run.K))
    both = CubicSpline(ts, np.concatenate([run.K, run.k], axis=1))

    def speed(t, state):
        moved = both(t) @ state[:3]
        return np.concatenate([-run.eta * moved[:3], moved[3:]])

    start = np.concatenate([run.y - run.f[0], np.zeros(4)])
    return solve_ivp(speed, (0, ts[-1]), start, rtol=1e-10, atol=1e-12).y[3:, -1]


def _not_ordered(run: _Turning) -> Float[np.ndarray, "4"]:
    """int k_t exp(-eta int_0^t K) (y - f_0) dt."""
    integral = cumulative_trapezoid(run.K, dx=run.step, axis=0, initial=0)
    damped = expm(-run.eta * integral) @ (run.y - run.f[0])
    return np.asarray(simpson(np.einsum("tij,tj->ti", run.k, damped), dx=run.step, axis=0))


NEW = [f"new input {index + 1}" for index in range(4)]


def _prefactor() -> Rows:
    run = _turning()
    return rows(NEW, run.f_new[-1], _learned(run, 1.0, True), _learned(run, run.eta, True))


def _time_order() -> Rows:
    run = _turning()
    return rows(NEW, run.f_new[-1], _learned(run, run.eta, False), _learned(run, run.eta, True))


def _error_sign() -> Rows:
    w, a, x, y = _samples()
    eta = 0.4
    w_dot, a_dot = velocity(linear_problem((w, a[None, :]), x, y[:, None], (3 * eta, 3 * eta)))
    truth = -(x @ w_dot.T @ a + x @ w.T @ a_dot[0])
    moved = eta * x @ (w.T @ w + a @ a * np.eye(3)) @ x.T @ (y - x @ w.T @ a)
    return rows([f"sample {index + 1}" for index in range(3)], truth, moved, -moved)


# --- whitened data, small start: eqs. 7, 18, 19, 27, 28

IN, WIDTH = 25, 10


class _TwoLayerWeights(NamedTuple):
    beta: Float[np.ndarray, " in"]  # the target's direction
    w: Float[np.ndarray, "width in"]
    a: Float[np.ndarray, " width"]

    @property
    def q(self) -> float:
        return (self.a @ self.a + np.sum((self.w @ self.beta) ** 2)) / 2

    @property
    def r(self) -> float:
        return float(self.a @ self.w @ self.beta)


def _small(seed: int, sigma: float) -> _TwoLayerWeights:
    """W_ij ~ N(0, sigma^2/D), a_i ~ N(0, sigma^2/N)."""
    w, a = draw(seed, WIDTH, IN) / np.sqrt(IN), draw(seed + 100, WIDTH) / np.sqrt(WIDTH)
    return _TwoLayerWeights(unit(draw(seed + 200, IN)), sigma * w, sigma * a)


def _whitened(
    start: _TwoLayerWeights, s: float, eta: float = 1.0, spread: Float[np.ndarray, " in"] | None = None
) -> Problem:
    """Data with covariance I, or with these variances along the axes."""
    x = np.sqrt(IN) * (np.eye(IN) if spread is None else np.diag(np.sqrt(spread)))
    return linear_problem((start.w, start.a[None, :]), x, s * (x @ start.beta)[:, None], (eta, eta))


def _follow(
    start: _TwoLayerWeights, s: float, ts: Any, **options: Any
) -> tuple[Float[np.ndarray, "times width in"], Float[np.ndarray, "times width"]]:
    W, A = follow(_whitened(start, s, **options), ts)
    return W, A[:, 0]


def _early_kernel() -> Rows:
    s, start, ts = 1.3, _small(84, 1e-3), np.array([0.0, 0.5, 1.0, 2.0])
    W, a = _follow(start, s, ts)
    w0, beta = start.w @ start.beta, start.beta
    M = np.swapaxes(W, 1, 2) @ W + np.sum(a**2, axis=1)[:, None, None] * np.eye(IN)[None]
    rank_one = np.outer(beta, beta) + np.eye(IN)
    for t, truth in zip(ts, M, strict=True):
        up, turn = np.cosh(s * t), np.sinh(s * t)
        moved = start.w + np.outer(start.a * turn + w0 * (up - 1), beta)
        grown = start.a * up + w0 * turn
        printed = start.q * np.cosh(2 * s * t) * rank_one + M[0]
        yield matrix_row(f"$s t = {s * t:.2g}$", truth, printed, moved.T @ moved + grown @ grown * np.eye(IN))


def _orthogonal_growth() -> Rows:
    s, eta, start, ts = 1.3, 0.4, _small(71, 1e-3), np.array([0.0, 0.5, 1.0, 2.0])
    v = unit(draw(72, IN) - start.beta * (draw(72, IN) @ start.beta))
    for t, w_t, a_t in zip(ts, *_follow(start, s, ts, eta=eta), strict=True):
        w_dot, a_dot = velocity(_whitened(_TwoLayerWeights(start.beta, w_t, a_t), s, eta))
        truth, r = 2 * (w_t @ v) @ (w_dot @ v) + 2 * a_t @ a_dot[0], a_t @ w_t @ start.beta
        yield Row(rf"$\eta s t = {eta * s * t:.2g}$", truth, 2 * r, 2 * eta * s * r)


def _full_training() -> Rows:
    s = 1.0
    for seed in range(8):
        start = _small(80 + seed, 1e-3)
        q, r = start.q, start.r
        t = np.log(2 * s / q) / (2 * s)  # halfway by the printed form
        W, a = _follow(start, s, [0.0, t])
        w_t, a_t = W[1] @ start.beta, a[1]
        up, down = np.exp(2 * s * t), np.exp(-2 * s * t)
        printed = np.array([np.sinh(2 * s * t), np.cosh(2 * s * t)]) * 2 * s / (up - 1 + 2 * s / q)
        scale = s / ((q + r) * (up - 1) + 2 * s)
        corrected = scale * np.array([(q + r) * up - (q - r) * down, (q + r) * up + (q - r) * down])
        labels = [f"${name}$, seed {seed}, $r_0/q_0 = {r / q:.2g}$" for name in "rq"]
        yield from rows(labels, [a_t @ w_t, (a_t @ a_t + w_t @ w_t) / 2], printed, corrected)


# --- eq. 25


def _anisotropic() -> Rows:
    spread, s = np.linspace(1.0, 6.0, IN), 1.0
    for seed in (75, 76):
        start = _small(seed, 1e-8)
        towards = spread * start.beta
        b = float(towards @ towards)
        W, a = _follow(start, s, [0.0, np.log(1e5) / (s * np.sqrt(b))], spread=spread)
        coefficient = np.sum((W[1] @ towards) ** 2) / b**2 / (a[1] @ a[1])
        yield Row(f"coefficient, seed {seed}", coefficient, 1 / np.sqrt(b), 1 / b)


# --- eq. 11


def _laziness() -> Rows:
    """Both sides at the same weights for two sizes of y: |grad f| and |grad^2 f| drop out of the growth."""
    w, a, x, direction = 1e-3 * draw(77, 4, 3), 1e-3 * draw(78, 4), draw(79, 3, 3), unit(draw(80, 3))
    sizes, speeds, losses = np.array([1.0, 3.0, 10.0]), [], []
    for size in sizes:
        y = size * direction
        w_dot, a_dot = velocity(linear_problem((w, a[None, :]), x, y[:, None], (3.0, 3.0)))
        residual = y - x @ w.T @ a
        loss_dot = -residual @ (x @ w_dot.T @ a + x @ w.T @ a_dot[0])
        # grad f(x_mu) = (W x_mu, a x_mu^T), so this is |d grad f/dt| over all samples.
        moving = np.sqrt(np.sum((x @ w_dot.T) ** 2) + a_dot[0] @ a_dot[0] * np.sum(x**2))
        losses.append(residual @ residual / 2)
        speeds.append(moving * losses[-1] / abs(loss_dot))
    speeds, losses = np.array(speeds) / speeds[0], np.array(losses) / losses[0]
    return rows([rf"$\lvert y \rvert = {size:g}$" for size in sizes], speeds, 1 / losses, losses / sizes)


ERRATA = (
    erratum(
        "eq. 2, prefactor",
        r"$f(t) = f_0 + \int k_t \exp(-\eta \int K) (y - f_0) dt$",
        r"$f(t) = f_0 + \eta \int k_t \mathcal{T} \exp(-\eta \int K) (y - f_0) dt$, $\mathcal{T}$ ordering in time",
        "Eq. 1 has the learning rate in front of $k_t$.",
        r"$f(x)$ on new inputs at $\eta = 0.4$ (printed form with the exponential ordered)",
        _prefactor,
    ),
    erratum(
        "eq. 2, exponential",
        r"$\exp(-\eta \int_0^t K(t') dt')$",
        r"$\mathcal{T} \exp(-\eta \int_0^t K(t') dt')$, ordered in time",
        "Kernels of different times do not commute once features are learned.",
        "$f(x)$ on new inputs (printed form with the right prefactor)",
        _time_order,
    ),
    erratum(
        "eqs. 7 and 19",
        r"$M = q_0 \cosh(2 \eta s t) [\beta \beta^\top + I] + M_0$",
        r"$M = W^\top W + \lvert a \rvert^2 I$ with $W = W_0 + (a_0 \sinh + w_0 (\cosh - 1)) \beta^\top$, "
        r"$a = a_0 \cosh + w_0 \sinh$, $w_0 = W_0 \beta$, argument $\eta s t$; "
        r"approximately $q_0 (\cosh(2 \eta s t) - 1) [\beta \beta^\top + I] + M_0$",
        r"The printed form is wrong already at $t = 0$, where it adds $q_0 [\beta \beta^\top + I]$ to $M_0$.",
        r"relative error of the matrix $M$, $D = 25$, $N = 10$, $\sigma = 10^{-3}$",
        _early_kernel,
    ),
    erratum(
        "eq. 11",
        r"$\lvert \nabla^2 f \rvert/(L \lvert \nabla f \rvert^2)$",
        r"$\lvert \nabla^2 f \rvert L/(\lvert y \rvert \lvert \nabla f \rvert^2)$",
        r"The loss $L$ belongs in the numerator, as in eq. 62; eq. 61 needs $\lvert y \rvert^2$, which brings the "
        r"$1/\lvert y \rvert$.",
        r"growth of $\lvert d \nabla f/dt \rvert L/(\lvert \nabla f \rvert \lvert dL/dt \rvert)$ with "
        r"$\lvert y \rvert$ at given weights",
        _laziness,
    ),
    erratum(
        "appendix A, unnumbered",
        r"$d\Delta/dt = \epsilon K_0 \Delta$ and $h' K \Delta$",
        r"$d\Delta/dt = -\epsilon K_0 \Delta$ and $-h' K \Delta$",
        "Errors decay; eqs. 12 and 13 have the signs right.",
        "$d(y - f)/dt$ on the training set",
        _error_sign,
    ),
    erratum(
        "eq. 18",
        r"$\frac{d}{dt} v^\top M v = 2 v^\top [\beta \beta^\top W + \beta^\top W^\top a I] v = 2 r$",
        r"$\frac{d}{dt} v^\top M v = 2 \eta s v^\top [\beta a^\top W + \beta^\top W^\top a I] v = 2 \eta s r$",
        r"The factor $\eta s$ is missing, and $\beta^\top W$ in the first term must be $a^\top W$.",
        r"the derivative along the flow, $\eta = 0.4$, $s = 1.3$",
        _orthogonal_growth,
    ),
    erratum(
        "eq. 25",
        r"$M = \Sigma \beta \beta^\top \Sigma/\sqrt{\beta^\top \Sigma^2 \beta} + I$",
        r"$M = \Sigma \beta \beta^\top \Sigma/(\beta^\top \Sigma^2 \beta) + I$",
        "$v_2 = b^{-1/2}$ enters squared.",
        r"the coefficient of $\Sigma \beta \beta^\top \Sigma$ in the growing kernel",
        _anisotropic,
    ),
    erratum(
        "eqs. 27 and 28",
        r"$r = 2 s \sinh(2st)/Z$ and $q = 2 s \cosh(2st)/Z$ with $Z = e^{2st} - 1 + 2s/q_0$",
        r"$r, q = s [(q_0 + r_0) e^{2st} \mp (q_0 - r_0) e^{-2st}]/[(q_0 + r_0)(e^{2st} - 1) + 2s]$",
        r"They neglect $r_0$ against $q_0$, which shifts time by $-\frac{1}{2s} \ln(1 + r_0/q_0)$; "
        r"$r_0/q_0$ has standard deviation $2/(\sqrt{D} (1 + N/D))$.",
        r"$r$ and $q$ half-way through learning, $D = 25$, $N = 10$, $\sigma = 10^{-3}$, eight seeds",
        _full_training,
    ),
)
