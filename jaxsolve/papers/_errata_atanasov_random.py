"""Errata of Atanasov, Bordelon & Pehlevan on averages over random data and weights: appendices E and G.2."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar, root_scalar

from ._errata_atanasov_two_layers import erratum
from ._erratum import Row, Rows, rows
from ._simulate import draw


# --- eq. 46

IN = 100


def _generalization(
    spectrum: Float[np.ndarray, " modes"], target: Float[np.ndarray, " modes"], samples: int, ridge: float
) -> tuple[float, float]:
    """sum_k target_k^2/(lambda_k P + kappa)^2/(1 - gamma), and kappa."""
    excess = lambda kappa: kappa - ridge - kappa * np.sum(spectrum / (spectrum * samples + kappa))
    kappa = root_scalar(excess, bracket=(ridge, ridge + np.sum(spectrum)), xtol=1e-15).root
    width = (spectrum * samples + kappa) ** 2
    gamma = samples * np.sum(spectrum**2 / width)
    return float(np.sum(target**2 / width) / (1 - gamma)), kappa


def _transfer() -> Rows:
    draws = 300
    for seed, (samples, A, alpha) in enumerate(((30, 0.0, 0.5), (50, 5.0, 0.8), (70, 20.0, 0.9), (30, 20.0, 0.5))):
        ridge, spectrum, target = 0.1, np.ones(IN), np.zeros(IN)
        spectrum[0] += A
        target[:2] = alpha, np.sqrt(1 - alpha**2)
        x = draw(110 + seed, draws, samples, IN)
        gram = (x * spectrum) @ np.swapaxes(x, 1, 2) + ridge * np.eye(samples)
        weights = spectrum * (np.swapaxes(x, 1, 2) @ np.linalg.solve(gram, (x @ target)[:, :, None]))[:, :, 0]
        measured = np.mean(np.sum((weights - target) ** 2, axis=1))
        form, kappa = _generalization(spectrum, target, samples, ridge)
        yield Row(rf"$P = {samples}$, $A = {A:g}$, $\alpha = {alpha:g}$", measured, form, kappa**2 * form)


# --- eqs. 56, 57, 59: Gaussian weights of variance sigma^2/N_l at sigma = 1

UNEVEN = (30, 50, 20, 40, 10)  # N_1, ..., N_{L+1}
EVEN = (20, 20, 20, 20, 20)


def difference_edges(up: float, down: float) -> Float[np.ndarray, "2"]:
    """The ends of the spectrum of A A^T - W W^T for large square A, W with entries of variance up/n and down/n.

    Free probability: z(G) = up/(1 - up G) - down/(1 + down G) + 1/G is stationary at the ends.
    """
    z = lambda G: up / (1 - up * G) - down / (1 + down * G) + 1 / G

    def extremum(sign: float, pole: float) -> float:
        """The extremum of z between G = 0 and a pole: the largest value on the left (sign -1), least on the right."""
        height = lambda share: sign * z(share * pole)
        found: Any = minimize_scalar(height, bounds=(0, 1), method="bounded", options={"xatol": 1e-10})
        return sign * found.fun

    return np.array([extremum(-1.0, -1 / down), extremum(1.0, 1 / up)])


def _equal_widths() -> Rows:
    edge = difference_edges(1.0, 1.0)[1]
    for n in (100, 200, 400):
        W, above = draw(120, n, n) / np.sqrt(n), draw(121, n, n) / np.sqrt(n)
        yield Row(f"largest eigenvalue, $N = {n}$", np.linalg.eigvalsh(W @ W.T - above.T @ above)[-1], 0, edge)


def _offsets(widths: tuple[int, ...]) -> Float[np.ndarray, " layers"]:
    """g_1, ..., g_L from the mean eigenvalue of W^l W^lT - W^{l+1}T W^{l+1}, averaged over 500 draws."""
    L, draws = len(widths) - 1, 500
    squares = [np.sum(draw(130 + l, draws, widths[l + 1], widths[l]) ** 2) / draws / widths[l] for l in range(L)]
    steps = [(squares[l] - squares[l + 1]) / widths[l + 1] for l in range(L - 1)]
    return np.append(np.cumsum(steps[::-1])[::-1], 0.0)


def _by_width(widths: tuple[int, ...], first: int, last: int) -> Float[np.ndarray, " layers"]:
    """L - l - sum over k from l + first to L + last of N_{k+1}/N_k, for l = 1, ..., L."""
    L = len(widths) - 1
    ratios = {k: widths[k] / widths[k - 1] for k in range(1, L + 1)}
    return np.array([L - l - sum(ratios[k] for k in range(l + first, L + last + 1)) for l in range(1, L + 1)])


def _offset() -> Rows:
    labels = [f"$g_{l}$" for l in range(1, len(UNEVEN))]
    return rows(labels, _offsets(UNEVEN), _by_width(UNEVEN, 0, -1), _by_width(UNEVEN, 1, 0))


def _total_offset() -> Rows:
    for name, widths in (("$g$, widths 30, 50, 20, 40, 10", UNEVEN), ("$g$, equal widths", EVEN)):
        yield Row(name, *(np.sum(g) for g in (_offsets(widths), _by_width(widths, 0, 0), _by_width(widths, 1, 0))))


ERRATA = (
    erratum(
        "eq. 46, and the display below eq. 48",
        r"$E_g = 1/(1 - \gamma) \sum_k \langle y \phi_k \rangle^2/(\lambda_k P + \kappa)^2$",
        r"$E_g = \kappa^2/(1 - \gamma) \sum_k \langle y \phi_k \rangle^2/(\lambda_k P + \kappa)^2$",
        r"Without samples $\gamma = 0$, and $E_g$ must be $\langle y^2 \rangle$.",
        "mean test error of kernel ridge regression over 300 draws, $D = 100$, ridge 0.1",
        _transfer,
    ),
    erratum(
        "eq. 56",
        r"$W^l W^{l\top} - W^{l+1\top} W^{l+1}$ concentrates on $\sigma^2 (1 - N_{l+2}/N_{l+1}) I$ for large widths",
        r"that is its mean; it concentrates only for $N_l \gg N_{l+1}$ and $N_{l+2} \gg N_{l+1}$; "
        r"at equal widths the spectrum fills $\pm ((1 + \sqrt{5})/2)^{5/2} \sigma^2$",
        "At a fixed ratio of widths the eigenvalues follow a free difference of Marchenko-Pastur laws.",
        r"largest eigenvalue at $\sigma = 1$ and equal widths, where the printed form gives 0",
        _equal_widths,
    ),
    erratum(
        "eq. 57",
        r"$g_l = L - l - \sum_{k=l}^{L-1} N_{k+1}/N_k$",
        r"$g_l = L - l - \sum_{k=l+1}^{L} N_{k+1}/N_k$",
        "The recursion of eq. 57 has the ratio $N_{l+2}/N_{l+1}$ at layer $l$.",
        "$g_l$ from the mean eigenvalues of 500 draws, widths 30, 50, 20, 40, 10",
        _offset,
    ),
    erratum(
        "eq. 59, $g$",
        r"$g = L(L-1)/2 - \sum_{l=1}^L \sum_{k=l}^L N_{k+1}/N_k$",
        r"$g = L(L-1)/2 - \sum_{l=1}^L \sum_{k=l+1}^L N_{k+1}/N_k$",
        "The sum over $g_l$ of eq. 57 corrected; as printed, $g$ is $-L$ for equal widths, where the text has 0.",
        "sum of the $g_l$ from the mean eigenvalues of 500 draws",
        _total_offset,
    ),
)
