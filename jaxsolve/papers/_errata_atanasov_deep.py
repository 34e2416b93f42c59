"""Errata of Atanasov, Bordelon & Pehlevan on deep linear networks: section 4, appendices C, D and G.

L counts weight matrices; u is the singular value of the last one, c the singular value of their product.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from .._core import Problem
from ._errata_atanasov_two_layers import erratum
from ._erratum import matrix_row, Row, Rows, rows
from ._simulate import draw, follow, kernel, Layers, linear_problem, time_of_loss, unit, velocity


# --- networks whose layers are given by singular values along matching frames

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
        """The flow of `problem` at the times ts."""
        saved = follow(self.problem(s), ts)
        return [self._replace(weights=tuple(layer[index] for layer in saved)) for index in range(len(ts))]


def frame(l: int) -> Float[np.ndarray, "neurons neurons"]:
    """The orthonormal columns r_l; r_1 of the first mode is beta."""
    return np.linalg.qr(draw(90 + l, SIZE, SIZE))[0]


def chain_of(values: Float[np.ndarray, "layers modes"], eta: Float[np.ndarray, " layers"]) -> Chain:
    """W_l = sum_alpha values[l, alpha] r_{l+1} r_l^T, with the identity as the frame of the outputs.

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


# --- learning

S = np.array([1.4])
U0 = 0.35


def _learned(L: int, ts: Any, u0: float = U0) -> Float[np.ndarray, " times"]:
    """c(t) for equal rates."""
    return np.array([chain.product[0] @ frame(1)[:, 0] for chain in balanced([u0], np.ones(L)).follow(S, ts)])


def _readout_speed() -> Rows:
    L, ts = 3, np.array([0.0, 1.0, 2.0])
    for t, chain in zip(ts, balanced([U0], np.ones(L)).follow(S, ts), strict=True):
        w, w_dot = chain.weights[-1][0], velocity(chain.problem(S))[-1][0]
        u = np.linalg.norm(w)
        rest = S[0] - u**L
        yield Row(f"$t = {t:g}$", unit(w) @ w_dot, u ** (2 * L - 2) * rest, u ** (L - 1) * rest)


def _mode_speed() -> Rows:
    Ls, ts = np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.0])

    def solved(factor):
        """c at ts[1:]."""
        speed = lambda _, c: factor * c ** (2 - 2 / Ls) * (S[0] - c)
        return solve_ivp(speed, (0, ts[-1]), U0**Ls, "DOP853", ts[1:], rtol=1e-12, atol=1e-14).y

    truth = [_learned(int(L), ts)[1:] for L in Ls]
    labels = [f"$L = {L:g}$, $t = {t:g}$" for L in Ls for t in ts[1:]]
    return rows(labels, np.ravel(truth), solved(1.0).ravel(), solved(Ls).ravel())


def _early_growth() -> Rows:
    for L in (3, 4):
        u0 = 0.03
        c0, power = u0**L, -(L - 2) / L
        t = 0.5 * c0**power / ((L - 2) * S[0])  # halfway to where the approximation diverges
        printed, corrected = ((c0**power - rate * S[0] * t) ** (1 / power) for rate in ((L - 2) / L, L - 2))
        yield Row(f"$c/c_0$, $L = {L}$", _learned(L, [0.0, t], u0)[1] / c0, printed / c0, corrected / c0)


def _half_times() -> Rows:
    s = np.ones(1)
    for sigma in (1e-2, 1e-3, 1e-4):
        log = np.log(1 / sigma**2)
        yield Row(rf"$\sigma = {sigma:g}$", time_of_loss(balanced([sigma], np.ones(2)).problem(s), 1 / 8), log, log / 2)


def _learning_time() -> Rows:
    for L, sigma in ((3, 1e-2), (3, 1e-3), (4, 0.1), (4, 0.03)):
        chain = balanced([sigma], np.ones(L))
        half = time_of_loss(chain.problem(S), S[0] ** 2 / 8)
        unit_of_time = sigma ** (2 - L) / S[0]
        printed = sigma ** (-L - 2) * L / (L - 2) / S[0]
        said = rf"$t s \sigma^{{L-2}}$, $L = {L}$, $\sigma = {sigma:g}$"
        yield Row(said, half / unit_of_time, printed / unit_of_time, 1 / (L - 2))


def _alignment_speed() -> Rows:
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
    yield Row(r"$L = 3$, $\sigma = 10^{-3}$", float(truth), form, s[0] * form)


def _singular_side() -> Rows:
    L = 3
    chain = balanced([U0], np.ones(L)).follow(S, [0.0, 1.0])[1]
    for l in (1, 2):
        left, _, right = np.linalg.svd(chain.weights[l - 1])
        _, _, above = np.linalg.svd(chain.weights[(1, DEPTH - 1)[l - 1]])
        yield Row(f"overlap with $r_{l + 1}$", 1.0, abs(right[0] @ above[0]), abs(left[:, 0] @ above[0]))


def _finite_start() -> Rows:
    """Singular values offset by sigma^2 g_l from those of the last layer, as for wide Gaussian initializations."""
    g, s, last = np.array([0.35, -0.25, 0.75, 0.0]), 1.7, 0.4
    for sigma in (0.1, 0.2):
        values = np.sqrt(last**2 + sigma**2 * g)[:, None]
        chain = chain_of(values, np.ones(DEPTH)).follow(np.array([s]), [0.0, 40.0])[1]
        root, total = s ** (1 / DEPTH), np.sum(g)
        printed = s**2 - total * sigma**2 / (2 * DEPTH * root)
        corrected = root**2 - total * sigma**2 / DEPTH
        yield Row(rf"$u^2$, $\sigma = {sigma:g}$", np.linalg.norm(chain.weights[-1]) ** 2, printed, corrected)


# --- kernels

RATES = np.array([2.0, 0.7, 1.3])
CASES = {"equal rates": np.ones(3), "rates 2, 0.7, 1.3": RATES}


def _spike() -> Rows:
    L, ts, modes = 3, np.array([0.0, 1.0, 3.0]), frame(1)[:, :2].T
    for t, chain in zip(ts, balanced([0.5], RATES).follow(S, ts), strict=True):
        driving = kernel(chain.weights, modes, chain.eta)[:, 0, :, 0]
        yield Row(f"$A/B$, $t = {t:g}$", driving[0, 0] / driving[1, 1] - 1, np.sum(RATES[0] / RATES[1:]), L - 1)


def _prefactor(rates: Float[np.ndarray, " layers"], l: int) -> float:
    """prod over l' != l of eta_l'/eta_L."""
    return float(np.prod(np.delete(rates, l - 1) / rates[-1]))


def _final_kernel() -> Rows:
    L, modes = 3, frame(1)[:, :2].T
    for name, rates in CASES.items():
        chain = balanced([0.6], rates).follow(S, [0.0, 60.0])[1]
        A, B = sum(_prefactor(rates, l) for l in (2, 3)), _prefactor(rates, 1)
        G = np.prod(np.sqrt(rates / rates[-1]))
        truth = np.diag(kernel(chain.weights, modes, chain.trained)[:, 0, :, 0])
        for place, value, share in zip((r"\beta, \beta", "v, v"), truth, (A + B, B), strict=True):
            printed, corrected = S[0] ** (2 * L - 2) * share, (S[0] / G) ** (2 * (L - 1) / L) * share
            yield Row(f"$K({place})$, {name}", value, printed, corrected)


def _layer_kernel() -> Rows:
    L, x, beta = 3, 2 * draw(103, 4, SIZE), frame(1)[:, 0]
    chain = balanced([0.6], np.ones(L)).follow(S, [0.0, 60.0])[1]
    signal, y = x, S[0] * x @ beta
    for l in (1, 2):
        signal = signal @ chain.weights[l - 1].T
        truth = signal @ signal.T
        printed = np.outer(y, y) * (y @ y) ** (l / L - 1)  # (y y^T)^(l/L)
        corrected = np.linalg.norm(x @ beta) ** (2 - 2 * l / L) * printed
        yield matrix_row(f"layer {l}", truth, printed, corrected)


def _many_outputs() -> Rows:
    L, s, modes = 3, np.array([1.4, 0.8]), frame(1)[:, :2]
    for name, rates in CASES.items():
        for t, chain in zip((0, 2), balanced([0.6, 0.5], rates).follow(s, [0.0, 2.0]), strict=True):
            truth = kernel(chain.weights, np.eye(SIZE), chain.trained)
            u = np.linalg.norm(chain.weights[-1], axis=1)
            printed, corrected = np.zeros_like(truth), np.zeros_like(truth)
            for l in range(1, L + 1):
                out = np.eye(OUT) if l == L else np.diag(u ** (2 * L - 2 * l))
                into = modes @ np.diag(u ** (2 * l - 2)) @ modes.T
                printed += np.einsum("ab,ij->iajb", out, into)
                below = np.eye(SIZE) if l == 1 else into
                corrected += _prefactor(rates, l) * np.einsum("ab,ij->iajb", out, below)
            yield matrix_row(f"{name}, $t = {t}$", truth, printed, corrected)


ERRATA = (
    erratum(
        "sections 3.1.2 and 4.2",
        r"learning begins at $t = \frac{1}{s} \log(s/\sigma^2)$; modes at $\frac{1}{s_\alpha} \log(s_\alpha/u_0^2)$",
        r"$t = \frac{1}{2s} \log(s/\sigma^2)$; modes at $\frac{1}{2 s_\alpha} \log(s_\alpha/u_0^2)$",
        "In the solution given there, $u^2$ grows like $e^{2st}$.",
        r"time at which $f$ is half-way, from an aligned start of scale $\sigma$, $L = 2$, $s = 1$",
        _half_times,
    ),
    erratum(
        "text at eq. 33",
        "$r_{l+1}$ is the right singular vector of $W^l$",
        "$r_{l+1}$ is the left singular vector of $W^l$",
        r"$W^l = u r_{l+1} r_l^\top$, as the next sentence has it.",
        "overlap of that singular vector with the right one of the layer above, which must be 1",
        _singular_side,
    ),
    erratum(
        "eq. 38",
        "$du/dt = u^{2L-2} (s - u^L)$",
        "$du/dt = u^{L-1} (s - u^L)$",
        "The sentence after it has the right exponent.",
        "speed of the last layer, $L = 3$",
        _readout_speed,
    ),
    erratum(
        "eq. 39, section 4.1.1, figure 4",
        "$dc/dt = c^{2-2/L} (s - c)$",
        "$dc/dt = L c^{2-2/L} (s - c)$",
        "The chain rule for $c = u^L$ brings a factor $L$, which for $L = 2$ is that of appendix B.3.",
        "$c(t)$ for $L$ = 2, 3, 4 from $u = 0.35$",
        _mode_speed,
    ),
    erratum(
        "eq. 40",
        r"$c = [c_0^{-(L-2)/L} - \frac{L-2}{L} s t]^{-L/(L-2)}$",
        "$c = [c_0^{-(L-2)/L} - (L-2) s t]^{-L/(L-2)}$",
        "The factor $L$ of eq. 39.",
        "growth of $c$ half-way to the divergence of the corrected form",
        _early_growth,
    ),
    erratum(
        "text below eq. 40",
        r"time to learn $t = \frac{1}{s} \frac{L}{L-2} \sigma^{-L-2}$",
        r"$t = \frac{1}{s} \frac{1}{L-2} \sigma^{-(L-2)}$",
        r"A sign is lost in the exponent, and the factor $L$ is that of eq. 39; both forms are for $\sigma \to 0$.",
        r"half time in units of $\sigma^{2-L}/s$",
        _learning_time,
    ),
    erratum(
        "eq. 41",
        r"$2 \beta^\top W^{1\top} \cdots w_L/\lvert W^1 v \rvert^2$",
        r"$2 s \beta^\top W^{1\top} \cdots w_L/\lvert W^1 v \rvert^2$",
        r"A factor $s$ is missing; the order in $\sigma$ is right.",
        "the derivative at a random small start, $s = 3$",
        _alignment_speed,
    ),
    erratum(
        "eq. 59",
        r"$u^2 = s^2 - g \sigma^2/(2 L s^{1/L})$",
        r"$u^2 = s^{2/L} - g \sigma^2/L$",
        "The leading term must solve $u^L = s$; the correction printed is that of $u$, not of its square.",
        "$u^2$ of the last layer after training, $L = 4$, $s = 1.7$",
        _finite_start,
    ),
    erratum(
        "eqs. 34 to 37 and 10",
        r"$A/B = \sum_{l>1} \eta_1/\eta_l$, right for the kernel as the paper defines it, "
        r"$\sum_l \langle \partial_l f, \partial_l f' \rangle$; but the prose concludes that faster first layers give "
        "more alignment",
        r"$A/B = L - 1$ at any rates, for the kernel $\sum_l \eta_l \langle \partial_l f, \partial_l f' \rangle$ that "
        "drives $f$",
        "The equations are no error, but $f$ is driven by the kernel that weights every layer with its rate.",
        "spike of the driving kernel, $L = 3$, rates 2, 0.7, 1.3",
        _spike,
    ),
    erratum(
        "eq. 42",
        r"$K = s^{2L-2} x^\top [A \beta \beta^\top + B I] x'$",
        r"$K = (s/G)^{2(L-1)/L} x^\top [A \beta \beta^\top + B I] x'$, $G = \prod_l \sqrt{\eta_l/\eta_L}$",
        "At convergence $G u^L = s$.",
        r"the kernel after training along $\beta$ and along $v$ orthogonal to it, $L = 3$, $s = 1.4$",
        _final_kernel,
    ),
    erratum(
        "eq. 43, last line",
        r"$K_l = (y y^\top)^{l/L}$",
        r"$K_l = \lvert X^\top \beta \rvert^{2-2l/L} (y y^\top)^{l/L}$",
        r"The two agree only if $\lvert X^\top \beta \rvert = 1$.",
        "relative error of the matrix $K_l$ after training",
        _layer_kernel,
    ),
    erratum(
        "eq. 53",
        r"the term $l = 1$ has $\sum_\beta u_\beta^0 r_1 r_1^\top$; output vectors $r_L$",
        r"it has the identity $I_D$; output vectors $r_{L+1}$; every term the factor "
        r"$\prod_{l' \neq l} \eta_{l'}/\eta_L$",
        "No layer stands below the first, so nothing projects its input on the learned modes.",
        "relative error of the kernel, $C = 2$, $D = 6$, $L = 3$ (printed form with the right output vectors)",
        _many_outputs,
    ),
)
