"""Errata of Kunin et al. on linear networks with many neurons or layers.

f = A^T W x with beta = W^T A; Delta = eta_w A A^T - eta_a W W^T is conserved.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Bool, Float

from ._errata_atanasov_random import difference_edges
from ._errata_kunin_neuron import erratum
from ._erratum import counted, Row, Rows, rows
from ._simulate import draw, follow, linear_problem, unit, velocity


class Sizes(NamedTuple):
    """Inputs d, neurons h, outputs c, and the conserved delta."""

    d: int
    h: int
    c: int
    delta: float

    @property
    def label(self) -> str:
        return rf"$d = {self.d}$, $h = {self.h}$, $c = {self.c}$, $\delta = {self.delta:g}$"

    @property
    def possible(self) -> bool:
        """The corrected condition for Delta = delta I."""
        return self.h <= (self.c if self.delta > 0 else self.d)


# --- which sizes allow Delta = delta I

LARGEST = 4


def _attained(sizes: tuple[Sizes, ...]) -> Bool[np.ndarray, " cases"]:
    """True where A A^T - W W^T = delta I has a solution, by least squares; smaller sizes are padded with zeros."""
    mask = lambda rows, columns: np.outer(np.arange(LARGEST) < rows, np.arange(LARGEST) < columns).astype(float)
    masks = tuple(
        jnp.asarray(np.stack([mask(s.h, side) for s, side in zip(sizes, sides, strict=True)]))
        for sides in ([s.c for s in sizes], [s.d for s in sizes])
    )
    wanted = jnp.asarray(np.stack([s.delta * np.diag(np.diag(mask(s.h, s.h))) for s in sizes]))
    start = tuple(jnp.asarray(draw(seed, LARGEST, LARGEST)) for seed in (20, 21))

    @jax.jit
    @jax.vmap
    def least(masks, wanted):
        def residual(layers, _):
            A, W = (layer * mask for layer, mask in zip(layers, masks, strict=True))
            return A @ A.T - W @ W.T - wanted

        solver = optx.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
        end = optx.least_squares(residual, solver, start, max_steps=100, throw=False).value
        return jnp.linalg.norm(residual(end, None))

    return np.asarray(least(masks, wanted)) < 1e-3


def _dimensions() -> Rows:
    shapes = ((4, 2, 4), (2, 3, 3), (3, 3, 2), (2, 4, 4), (3, 2, 3), (4, 3, 4))
    sizes = tuple(Sizes(*shape, delta) for shape in shapes for delta in (1.0, -1.0))
    for s, attained in zip(sizes, _attained(sizes), strict=True):
        yield Row(s.label, attained, s.h <= min(s.d, s.c), s.possible)


# --- singular values of beta

ETA_W, ETA_A = 2.5, 0.8


def _padded(matrix: Float[np.ndarray, "..."], rows: int, columns: int) -> Float[np.ndarray, "rows columns"]:
    padded = np.zeros((rows, columns))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


class Moving(NamedTuple):
    """Singular values lambda of beta, their velocity from the flow of the weights, and u^T G v."""

    values: Float[np.ndarray, " modes"]
    velocity: Float[np.ndarray, " modes"]
    force: Float[np.ndarray, " modes"]


def _modes(sizes: Sizes, seed: int) -> Moving:
    """The modes at t = 0.3. Neurons, inputs and outputs of zeros stay zero, so all sizes share one program."""
    d, h, c, delta = sizes
    free, rows = draw(seed, h, d if delta > 0 else c), np.linalg.qr(draw(seed + 50, c if delta > 0 else d, h))[0].T
    near, far = (ETA_W, ETA_A) if delta > 0 else (ETA_A, ETA_W)
    values, vectors = np.linalg.eigh((abs(delta) * np.eye(h) + far * free @ free.T) / near)
    tied = vectors @ np.diag(np.sqrt(values)) @ vectors.T @ rows  # near tied tied^T - far free free^T = |delta| I
    W, A = (free, tied.T) if delta > 0 else (tied, free.T)
    full = (_padded(W, LARGEST, LARGEST), _padded(A, LARGEST, LARGEST))
    target = _padded(draw(seed + 100, d, c), LARGEST, LARGEST)
    inputs = _padded(np.eye(d), LARGEST, LARGEST)
    rates = (LARGEST * ETA_W, LARGEST * ETA_A)
    later = tuple(layer[1] for layer in follow(linear_problem(full, inputs, inputs @ target, rates), [0.0, 0.3]))
    W_dot, A_dot = velocity(linear_problem(later, inputs, inputs @ target, rates))
    W, A = later
    beta, moved = W.T @ A.T, W_dot.T @ A.T + W.T @ A_dot.T
    left, values, right = np.linalg.svd(beta[:d, :c])
    count = min(d, c)
    project = lambda matrix: np.diag(left.T @ matrix[:d, :c] @ right.T)[:count]
    return Moving(values, project(moved), project(inputs @ (beta - target)))


def _mirror_law(mode: Moving, delta: float, product: float) -> Float[np.ndarray, " modes"]:
    """Theorem B.6, eqs. 118 and 119: lambda' = -sqrt(delta^2 + 4 product lambda^2) u^T G v."""
    return -np.sqrt(delta**2 + 4 * product * mode.values**2) * mode.force


POSSIBLE = (
    Sizes(2, 2, 4, 1.5),
    Sizes(2, 3, 4, 1.5),
    Sizes(4, 3, 2, -1.5),
    Sizes(4, 2, 2, -1.5),
    Sizes(3, 2, 4, 1.5),
    Sizes(4, 2, 3, -1.5),
)


def _hypotheses() -> Rows:
    for seed, s in enumerate(POSSIBLE):
        mode = _modes(s, 30 + seed)
        holds = np.max(np.abs(mode.velocity - _mirror_law(mode, s.delta, ETA_W * ETA_A))) < 1e-6
        yield Row(s.label, holds, s.h == min(s.d, s.c), s.h >= min(s.d, s.c) and s.possible)


def _mirror_rates() -> Rows:
    for seed, sizes in enumerate(POSSIBLE[:4]):
        mode = _modes(sizes, 30 + seed)
        labels = [f"{sizes.label}, mode {index + 1}" for index in range(len(mode.values))]
        laws = (_mirror_law(mode, sizes.delta, product) for product in (1.0, ETA_W * ETA_A))
        yield from rows(labels, mode.velocity, *laws)


# --- Assumption B.2


def _naturally_satisfied() -> Rows:
    n, up, down = 400, 2.0, 1.0
    A, W = (np.sqrt(variance / n) * draw(seed, n, n) for seed, variance in ((40, up), (41, down)))
    spectrum, (low, high) = np.linalg.eigvalsh(A @ A.T - W @ W.T), difference_edges(up, down)
    yield Row(rf"smallest eigenvalue of $\Delta$, $n = {n}$", spectrum[0], up - down, low)
    yield Row("largest eigenvalue", spectrum[-1], up - down, high)
    yield Row("mean eigenvalue", float(spectrum.mean()), up - down, up - down)


# --- Lemma B.8


def _deep_norm() -> Rows:
    d, h, L, delta, ts = 5, 4, 2, -0.7, np.array([0.0, 0.3, 1.0, 3.0])
    a = 0.5 * draw(50, h)
    values, vectors = np.linalg.eigh(np.outer(a, a) - delta * np.eye(h))  # W_L W_L^T
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    weights = root @ np.linalg.qr(draw(51, d, h))[0].T, root, a[None, :]
    target = 1.5 * unit(draw(52, d))
    W_1, W_2, a_t = follow(linear_problem(weights, np.eye(d), target[:, None], np.full(L + 1, float(d))), ts)
    beta = (a_t @ W_2 @ W_1)[:, 0]
    aa = np.sum(a_t[:, 0] ** 2, axis=1)
    return rows([f"$t = {t:g}$" for t in ts], np.sum(beta**2, axis=1), aa * (aa - delta) ** d, aa * (aa - delta) ** L)


ERRATA = (
    erratum(
        "remark at Assumption B.2",
        r"for any $\delta$, $\Delta = \delta I$ requires $h \le \min(d, c)$",
        r"$\delta > 0$ requires $h \le c$, $\delta < 0$ requires $h \le d$",
        "A multiple of the identity has full rank, and only the layer that dominates must reach it.",
        "whether a solution exists (1) or not (0), by least squares; errors are shares of the cases",
        _dimensions,
        counted,
    ),
    erratum(
        "Assumption B.2",
        r"$\Delta = \delta I$ with $\delta = \sigma_a^2 - \sigma_w^2$ is naturally satisfied by Gaussian layers, "
        "$d = h = c$",
        r"only the mean: the eigenvalues of $\Delta$ fill the support of a free difference of Marchenko-Pastur laws",
        r"At aspect ratio 1 the spectrum of $A A^\top - W W^\top$ does not narrow as the network grows.",
        r"eigenvalues at $\sigma_a^2 = 2$, $\sigma_w^2 = 1$",
        _naturally_satisfied,
    ),
    erratum(
        "Theorem B.6, remark on its hypotheses",
        r"they hold only for $h = \min(d, c)$",
        r"$h \ge \min(d, c)$, and $h \le c$ if $\delta > 0$, $h \le d$ if $\delta < 0$: also some $h > \min(d, c)$",
        r"The law needs a neuron for every singular value and $\Delta = \delta I$, no more.",
        "whether the law holds (1) or not (0) for the flow of the weights; errors are shares of the cases",
        _hypotheses,
        counted,
    ),
    erratum(
        "eq. 119",
        r"$q'' = 1/\sqrt{\delta^2 + 4 x^2}$",
        r"$q'' = 1/\sqrt{\delta^2 + 4 \eta_a \eta_w x^2}$",
        "The printed entropy holds for rates of 1.",
        "velocity of the singular values at rates 0.8 and 2.5, against that of the weights",
        _mirror_rates,
    ),
    erratum(
        "Lemma B.8",
        r"$\lvert \beta \rvert^2 = \lvert a \rvert^2 (\lvert a \rvert^2 - \delta)^d$",
        r"$\lvert \beta \rvert^2 = \lvert a \rvert^2 (\lvert a \rvert^2 - \delta)^L$",
        "The exponent counts the $L$ layers below $a$, not the inputs.",
        r"$\lvert \beta(t) \rvert^2$ along the flow, $L = 2$, $d = 5$",
        _deep_norm,
    ),
)
