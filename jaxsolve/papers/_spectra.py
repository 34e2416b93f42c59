"""The spectrum of the difference of two Wishart matrices, which two errata need."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar


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
