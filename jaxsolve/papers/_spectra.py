"""The spectrum of the difference of two Wishart matrices, which two errata need."""

import numpy as np
from jaxtyping import Float


def difference_edges(up: float, down: float) -> Float[np.ndarray, "2"]:
    """The ends of the spectrum of A A^T - W W^T for large square A, W with entries of variance up/n and down/n.

    Free probability: z(G) = up/(1 - up G) - down/(1 + down G) + 1/G is stationary at the ends.
    """
    share = np.linspace(0, 1, 200_001)[1:-1]
    z = lambda G: up / (1 - up * G) - down / (1 + down * G) + 1 / G
    return np.array([np.max(z(-share / down)), np.min(z(share / up))])
