r"""Kernels of a balanced deep linear network with any number of outputs.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", appendices D.3 and
G. As in `_balanced_kernel`, W_l and eta_l stand for m_l W_l and m_l^2 eta_l. An output scale gamma multiplies f by
gamma and kernels by gamma^2.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe, require_finite, require_size
from ._balanced_kernel import mean_rate, read_mode, safe_power


class BalancedModes(eqx.Module):
    r"""The modes of a balanced linear network: $W_L \cdots W_1 = \sum_\alpha c_\alpha z_\alpha r_\alpha^\top$.

    Balance makes every matrix $W_l = \sqrt{\eta_l} \sum_\alpha v_\alpha r_{l+1}^\alpha r_l^{\alpha\top}$ with
    $v_\alpha^L \sqrt{\prod_l \eta_l} = c_\alpha$, for any widths and hidden directions.

    Arguments:
        values: c, shape (modes,), >= 0.
        left: z, orthonormal columns of shape (out, modes).
        right: r, orthonormal columns of shape (in, modes).
        eta: the rates of all L >= 2 weight matrices, from the input; > 0.

    Example:
        >>> targets = jnp.diag(jnp.array([4.0, 1.0]))
        >>> modes = js.theory.BalancedModes.from_map(targets, eta=jnp.ones(2))  # two layers, after training
        >>> print(modes.hidden_kernel(1).round(2))  # [targets^T targets]^(1/2)
        [[4. 0.]
         [0. 1.]]

    Raises:
        ValueError: shapes do not match, columns are not orthonormal, a value is negative or not finite, or a rate is
            not positive.
    """

    values: Float[Array, " modes"]
    left: Float[Array, "out modes"]
    right: Float[Array, "in modes"]
    eta: Float[Array, " matrices"]

    def __init__(self, values: Any, left: Any, right: Any, eta: Any):
        self.values, self.eta = read_mode(values, eta)
        self.left, self.right = (jnp.asarray(frame, self.values.dtype) for frame in (left, right))
        require_finite(self.values, "values")
        modes = self.values.shape[-1:]
        for name, frame in (("left", self.left), ("right", self.right)):
            if self.values.ndim != 1 or frame.ndim != 2 or frame.shape[1:] != modes:
                raise ValueError(
                    f"values must have shape (modes,) and {name} (size, modes), "
                    f"got {describe(self.values)} and {describe(frame)}"
                )
            known = concrete(frame)
            rounding = float(jnp.finfo(frame.dtype).eps) ** 0.5
            if known is not None and not np.allclose(known.T @ known, np.eye(modes[0]), rtol=0, atol=rounding):
                raise ValueError(
                    f"the columns of {name} must be orthonormal; BalancedModes.from_map finds such columns"
                )

    @staticmethod
    def from_map(matrix: Float[ArrayLike, "out in"], eta: Float[ArrayLike, " matrices"]) -> "BalancedModes":
        """The modes of a network whose weights have this product: after training, its targets' map (app. G.1)."""
        left, values, right = jnp.linalg.svd(jnp.asarray(matrix), full_matrices=False)
        return BalancedModes(values, left, right.T, eta)

    def kernel_matrix(self) -> Float[Array, "out in out in"]:
        r"""M of the eta-weighted NTK K(x, x')_{cc'} = x^T M_{c.c'.} x', which drives f (eq. 53, corrected, with rates).

        $M = (\prod_l \eta_l)^{1/L} \sum_l Z c^{2(L-l)/L} Z^\top \otimes R c^{2(l-1)/L} R^\top$. The first factor of the
        last matrix and the second factor of the first matrix are identities; the paper omits the latter.
        """
        return self._kernel(jnp.ones_like(self.eta))

    def plain_kernel_matrix(self) -> Float[Array, "out in out in"]:
        """M of the plain NTK (eta = 1 at every matrix): each term of `kernel_matrix` divided by its rate."""
        return self._kernel(1 / self.eta)

    def hidden_kernel(self, layer: int) -> Float[Array, "in in"]:
        r"""M of the NNGP kernel after `layer` matrices: the signals' inner products x^T M x' (eqs. 43, 54).

        $\prod_{k \le l} \eta_k (\prod_k \eta_k)^{-l/L} R c^{2l/L} R^\top$: $[\beta^\top\beta]^{l/L}$ at equal rates
        after training.

        Raises:
            ValueError, TypeError: layer is not one of 1 to L.
        """
        matrices = self.eta.shape[0]
        if require_size(layer, "layer") > matrices:
            raise ValueError(f"layer must be one of the {matrices} weight matrices, 1 to {matrices}, got {layer}")
        scale = jnp.prod(self.eta[:layer] / mean_rate(self.eta))
        return scale * _power(self.right, self.values, 2 * layer / matrices)

    def _kernel(self, weights: Float[Array, " matrices"]) -> Float[Array, "out in out in"]:
        last = self.eta.shape[0] - 1
        total = jnp.zeros((), self.values.dtype)
        for index in range(last + 1):
            back = _power(self.left, self.values, 2 * (last - index) / (last + 1))
            forward = _power(self.right, self.values, 2 * index / (last + 1))
            # Axes (output, input, output, input): what follows a matrix acts on outputs, what precedes it on inputs.
            total = total + weights[index] * (back[:, None, :, None] * forward[None, :, None, :])
        return mean_rate(self.eta) * total


def _power(frame: Float[Array, "size modes"], values: Float[Array, " modes"], exponent: float) -> Array:
    """F c^e F^T; the identity at e = 0, where no matrix is in between."""
    if exponent == 0:
        return jnp.eye(frame.shape[0], dtype=frame.dtype)
    return (frame * safe_power(values, exponent)[None, :]) @ frame.T
