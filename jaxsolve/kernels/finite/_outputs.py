"""The pairs of outputs that a kernel keeps, and their layout."""

import enum

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Outputs(enum.Enum):
    """The pairs of outputs (a, b) of a kernel K[i, a, j, b] that are kept."""

    ALL = "all pairs, shape (n, c, m, c)"
    DIAGONAL = "a = b, shape (c, n, m)"
    TRACE = "the sum over a = b, shape (n, m)"

    def gram(self, one: Float[Array, "n out k"], two: Float[Array, "m out k"]) -> Float[Array, "..."]:
        """sum_k one[i, a, k] two[j, b, k]."""
        if self is Outputs.DIAGONAL:
            return jnp.einsum("nak,mak->anm", one, two)
        # Written as one matrix product: for an einsum, XLA copies both factors first.
        size = one.shape[2] if self is Outputs.ALL else one.shape[1] * one.shape[2]
        product = one.reshape(-1, size) @ two.reshape(-1, size).T
        return product.reshape(self.shape(one.shape[0], two.shape[0], one.shape[1]))

    def times(self, pairs: Float[Array, "n m"], kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """A kernel times one number per pair of samples."""
        return pairs[{Outputs.ALL: np.s_[:, None, :, None], Outputs.DIAGONAL: None, Outputs.TRACE: ...}[self]] * kernel

    def rows(self, out_size: int) -> int:
        """The number of rows of the kernel that each sample has."""
        return out_size if self is Outputs.ALL else 1

    def shape(self, n: int, m: int, out_size: int) -> tuple[int, ...]:
        """The shape of a kernel between n and m samples."""
        return {
            Outputs.ALL: (n, out_size, m, out_size),
            Outputs.DIAGONAL: (out_size, n, m),
            Outputs.TRACE: (n, m),
        }[self]

    def of(self, kernel: Float[Array, "n out m out"]) -> Float[Array, "..."]:
        """The part of a kernel with all pairs that is kept."""
        formulas = {Outputs.ALL: "namb->namb", Outputs.DIAGONAL: "nama->anm", Outputs.TRACE: "nama->nm"}
        return jnp.einsum(formulas[self], kernel)

    @property
    def sample_axes(self) -> tuple[int, int]:
        """The axes of the two samples."""
        return {Outputs.ALL: (0, 2), Outputs.DIAGONAL: (1, 2), Outputs.TRACE: (0, 1)}[self]

    @property
    def exchanged(self) -> tuple[int, ...]:
        """The order of axes that exchanges both sides: K[j, b, i, a]."""
        return {Outputs.ALL: (2, 3, 0, 1), Outputs.DIAGONAL: (0, 2, 1), Outputs.TRACE: (1, 0)}[self]
