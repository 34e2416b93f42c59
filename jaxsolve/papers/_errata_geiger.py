"""Erratum of Geiger et al.: how far the kernel of a lazy network moves."""

import functools

import numpy as np

from ._erratum import Erratum, Row, Rows
from ._simulate import draw, follow, linear_problem


PAPER = "Geiger, Spigler, Jacot & Wyart, Disentangling feature and lazy learning (arXiv 1906.08034)"
erratum = functools.partial(Erratum, PAPER)
WIDTHS, STARTS, ALPHA = (16, 4096), 100, 1000.0


def _kernel_change(width: int, start: int) -> float:
    """|K - K_0|/K_0 of two linear layers on the input 1, after a flow of alpha (f - f_0) to the target 1."""
    w, u = draw(2 * start, width), draw(2 * start + 1, width)
    k = width**-0.5  # under the loss over alpha^2, f goes to f_0 + 1/alpha
    problem = linear_problem((w[:, None], u[None, :]), [[k]], [[k * (u @ w) + 1 / ALPHA]], (1.0, 1.0))
    w_t, u_t = follow(problem, [0.0, 30.0])
    norms = np.sum(w_t**2, axis=(1, 2)) + np.sum(u_t**2, axis=(1, 2))
    return abs(norms[-1] / norms[0] - 1)


def _exponent() -> Rows:
    sizes = [np.mean([_kernel_change(width, start) ** 2 for start in range(STARTS)]) ** 0.5 for width in WIDTHS]
    slope = np.log(sizes[1] / sizes[0]) / np.log(WIDTHS[1] / WIDTHS[0])
    yield Row("exponent of $h$", slope, -0.5, -1.0)


ERRATA = (
    erratum(
        "section 5, below eq. 9",
        r"in the lazy regime $\lvert K - K_0 \rvert/\lvert K_0 \rvert \sim 1/(\sqrt{h} \alpha)$",
        r"$\lvert K - K_0 \rvert/\lvert K_0 \rvert \sim 1/(h \alpha)$ for smooth activations, as long as $\alpha$ is "
        "large",
        r"The first order in the change of the weights sums over neurons of random sign, which removes another "
        r"$\sqrt{h}$.",
        f"exponent of $h$ in the root mean square over {STARTS} starts of two linear layers on one input, widths "
        rf"{WIDTHS[0]} and {WIDTHS[1]}, $\alpha = {ALPHA:g}$",
        _exponent,
    ),
)
