"""Errata of Atanasov, Bordelon & Pehlevan on the kernels of balanced deep linear networks: appendices D and G."""

import numpy as np
from jaxtyping import Float

from ._chain import balanced, frame, OUT, SIZE
from ._errata_atanasov_two_layers import PAPER
from ._erratum import compared, deviating, Erratum, matrix_error, Measurement
from ._simulate import draw, kernel


S = np.array([1.4])
RATES = np.array([2.0, 0.7, 1.3])


def _spike() -> Measurement:
    L, ts = 3, np.array([0.0, 1.0, 3.0])
    modes, ratios = frame(1)[:, :2].T, []
    for chain in balanced([0.5], RATES).follow(S, ts):
        driving = kernel(chain.weights, modes, chain.eta)[:, 0, :, 0]
        ratios.append(driving[0, 0] / driving[1, 1] - 1)
    printed = np.sum(RATES[0] / RATES[1:])
    return compared([f"A/B, t = {t:g}" for t in ts], ratios, np.full(3, printed), np.full(3, L - 1.0))


def _prefactor(rates: Float[np.ndarray, " layers"], l: int) -> float:
    """prod over l' != l of eta_l'/eta_L."""
    return float(np.prod(np.delete(rates, l - 1) / rates[-1]))


def _final_kernel() -> Measurement:
    L, modes, labels, columns = 3, frame(1)[:, :2].T, [], []
    for name, rates in (("equal rates", np.ones(3)), ("rates 2, 0.7, 1.3", RATES)):
        chain = balanced([0.6], rates).follow(S, [0.0, 60.0])[1]
        A, B = sum(_prefactor(rates, l) for l in (2, 3)), _prefactor(rates, 1)
        G = np.prod(np.sqrt(rates / rates[-1]))
        truth = np.diag(kernel(chain.weights, modes, chain.trained)[:, 0, :, 0])
        for place, value, share in zip(("beta, beta", "v, v"), truth, (A + B, B), strict=True):
            columns.append([value, S[0] ** (2 * L - 2) * share, (S[0] / G) ** (2 * (L - 1) / L) * share])
            labels.append(f"K({place}), {name}")
    return compared(labels, *zip(*columns, strict=True))


def _layer_kernel() -> Measurement:
    L, x, beta, labels, errors = 3, 2 * draw(103, 4, SIZE), frame(1)[:, 0], [], []
    chain = balanced([0.6], np.ones(L)).follow(S, [0.0, 60.0])[1]
    signal, y = x, S[0] * x @ beta
    for l in (1, 2):
        signal = signal @ chain.weights[l - 1].T
        truth = signal @ signal.T
        printed = np.outer(y, y) * (y @ y) ** (l / L - 1)  # (y y^T)^(l/L)
        corrected = np.linalg.norm(x @ beta) ** (2 - 2 * l / L) * printed
        errors.append([matrix_error(printed, truth), matrix_error(corrected, truth)])
        labels.append(f"layer {l}")
    return deviating(labels, *zip(*errors, strict=True))


def _many_outputs() -> Measurement:
    L, s, modes = 3, np.array([1.4, 0.8]), frame(1)[:, :2]
    labels, errors = [], []
    for name, rates in (("equal rates", np.ones(3)), ("rates 2, 0.7, 1.3", RATES)):
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
            labels.append(f"{name}, t = {t}")
            errors.append([matrix_error(printed, truth), matrix_error(corrected, truth)])
    return deviating(labels, *zip(*errors, strict=True))


ERRATA = (
    Erratum(
        PAPER,
        "eqs. 34 to 37 and 10",
        "`A/B = sum_{l>1} eta_1/eta_l`, right for the kernel as the paper defines it, `sum_l <d_l f, d_l f'>`; but the "
        "prose concludes that faster first layers give more alignment",
        "`A/B = L - 1` at any rates, for the kernel `sum_l eta_l <d_l f, d_l f'>` that drives f",
        "The equations are no error, but f is driven by the kernel that weights every layer with its rate.",
        "spike of the driving kernel, L = 3, rates 2, 0.7, 1.3",
        _spike,
    ),
    Erratum(
        PAPER,
        "eq. 42",
        "`K = s^(2L-2) x^T [A beta beta^T + B I] x'`",
        "`K = (s/G)^(2(L-1)/L) x^T [A beta beta^T + B I] x'`, `G = prod_l sqrt(eta_l/eta_L)`",
        "At convergence `G u^L = s`.",
        "the kernel after training along beta and along v orthogonal to it, L = 3, s = 1.4",
        _final_kernel,
    ),
    Erratum(
        PAPER,
        "eq. 43, last line",
        "`K_l = (y y^T)^(l/L)`",
        "`K_l = |X^T beta|^(2-2l/L) (y y^T)^(l/L)`",
        "The two agree only if `|X^T beta| = 1`.",
        "relative error of the matrix `K_l` after training",
        _layer_kernel,
    ),
    Erratum(
        PAPER,
        "eq. 53",
        "the term l = 1 has `sum_beta u_beta^0 r_1 r_1^T`; output vectors `r_L`",
        "it has the identity `I_D`; output vectors `r_{L+1}`; every term the factor `prod_{l' != l} eta_l'/eta_L`",
        "No layer stands below the first, so nothing projects its input on the learned modes.",
        "relative error of the kernel, C = 2, D = 6, L = 3 (printed form with the right output vectors)",
        _many_outputs,
    ),
)
