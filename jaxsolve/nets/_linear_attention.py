"""Linear attention, which learns in-context regression."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from .._checks import require_size
from ._activations import linear
from ._build import build
from ._init import AbstractInit, Gaussian, Given, Matrices
from ._linear import TwoLayerLinear
from ._network import AbstractNetwork, Conserved
from ._scaling import Scaling, ScalingRule


class LinearAttention(AbstractNetwork):
    r"""One layer of attention without softmax, read out at the entry that holds the answer to the last token.

    A sample holds the tokens $(x_1, y_1), \dots, (x_N, y_N), (x_q, 0)$. Weights that act on what the answer does not
    need are zero (gradient flow leaves them there). Linear attention then reduces to one of these, with
    $b = \frac1N \sum_n y_n x_n$:

    $$f = \gamma \sum_h m_2 v_h\; b^\top m_1 U_h\, x_q \quad\text{or}\quad
    f = \gamma \sum_h m_3 v_h\; (m_1 K_h b) \cdot (m_2 Q_h x_q).$$

    On the left, keys and queries are merged into one matrix per head: `two_layer`, a two-layer linear network whose
    inputs are the products of entries of $b$ and $x_q$. On the right, each head has keys and queries of size `rank`.
    Weight arrays, in the order of the scaling: $U$ (H, D^2) and $v$ (1, H); or $K$ and $Q$ (H rank, D), and $v$.

    Arguments:
        in_shape: (N + 1, D + 1): the tokens of one sample, and the numbers of one token. N only lets `js.Problem` check
            the data: the weights serve sequences of any length.
        heads: H.
        rank: features of the keys and queries of a head; None merges the two.
        scaling: a `Scaling` of two (merged) or three weight arrays, or a rule such as `Scaling.ntk()`.
        key: a JAX random key.

    Other Arguments:
        init: the initial weights: any initialization for dense networks if merged; else `Gaussian` or `Given`.
        dtype: of the weights; the default float if None.

    Example:
        >>> data = js.data.in_context_moments(jnp.array([0.4, 0.3, 0.2]), 31)
        >>> net = js.nets.LinearAttention(
        ...     in_shape=(2, 4), heads=5, rank=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> [w.shape for w in net.weights], jax.vmap(net)(data.x).shape
        ([(5, 3), (5, 3), (1, 5)], (10, 1))

    Reference:
        @inproceedings{zhang2025training, title={Training dynamics of in-context learning in linear attention},
          author={Yedi Zhang and Aaditya K. Singh and Peter E. Latham and Andrew Saxe}, booktitle={ICML}, year={2025},
          note={arXiv 2501.16265}}

    Raises:
        ValueError, TypeError: a size, the scaling or the init is not as described above.
    """

    weights: Matrices
    scaling: Scaling
    tokens: int = eqx.field(static=True)  # a shape
    in_size: int = eqx.field(static=True)  # a shape
    rank: int | None = eqx.field(static=True)  # a shape

    def __init__(
        self,
        *,
        in_shape: tuple[int, ...],
        heads: int,
        rank: int | None = None,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        if not isinstance(in_shape, tuple | list) or len(in_shape) != 2:
            raise ValueError(f"in_shape must be (N + 1, D + 1), two integers, got {in_shape!r}")
        self.tokens, numbers = (require_size(size, "each of in_shape", least=2) for size in in_shape)
        self.in_size, heads = numbers - 1, require_size(heads, "heads")
        self.rank = None if rank is None else require_size(rank, "rank")
        merged = self.rank is None
        into = [(heads, self.in_size**2)] if self.rank is None else [(heads * self.rank, self.in_size)] * 2
        made = {"scaling": scaling, "init": init, "key": key, "dtype": dtype}
        on_data = (0,) if merged else (0, 1)
        parts = build([*into, (1, heads)], linear, bias=False, chain=merged, on_data=on_data, **made)
        self.weights, self.scaling = parts.weights, parts.scaling

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.tokens, self.in_size + 1

    @property
    def heads(self) -> int:
        """The number of heads H."""
        return self.weights[-1].shape[1]

    @property
    def out_size(self) -> int:
        return 1

    def __call__(self, x: Float[Array, "tokens numbers"]) -> Float[Array, " out"]:
        """The answer to the last token of one sequence."""
        *into, value = (self.scaling.multiplier[index] * weight for index, weight in enumerate(self.weights))
        if self.rank is None:
            scores = into[0] @ self.features(x)
        else:
            keys, queries = (w @ one for w, one in zip(into, self.context(x), strict=True))
            scores = jnp.sum((keys * queries).reshape(self.heads, self.rank), axis=1)
        return self.scaling.gamma * value @ scores

    @staticmethod
    def context(x: Float[Array, "tokens numbers"]) -> tuple[Float[Array, " in"], Float[Array, " in"]]:
        """The two vectors by which a sequence enters: b, the mean of y x over the context, and x_q."""
        return x[:-1, -1] @ x[:-1, :-1] / (len(x) - 1), x[-1, :-1]

    def features(self, x: Float[Array, "tokens numbers"]) -> Float[Array, " features"]:
        """The products of the entries of b and x_q, shape (D^2,): the inputs of `two_layer`."""
        mean, query = self.context(x)
        return jnp.outer(mean, query).ravel()

    @property
    def two_layer(self) -> TwoLayerLinear:
        """The same network as a two-layer linear one acting on `features`, for closed forms; needs `rank=None`.

        Its problem is `js.Problem(net.two_layer, jax.vmap(net.features)(x), y)`, which `js.exact` supports.

        Raises:
            ValueError: keys and queries are separate.
        """
        if self.rank is not None:
            raise ValueError(
                "two_layer needs keys and queries that are merged into one matrix, LinearAttention(rank=None); this "
                f"network has separate ones of {self.rank} features"
            )
        return TwoLayerLinear(
            in_size=self.weights[0].shape[1],
            width_size=self.heads,
            scaling=self.scaling,
            init=Given(self.weights),
            key=jax.random.key(0),  # draws nothing
            dtype=self.weights[0].dtype,
        )

    def rates(self) -> PyTree:
        rates = tuple(self.scaling.eta[index] for index in range(len(self.weights)))
        empty = jax.tree.map(lambda _: None, self)
        return eqx.tree_at(lambda net: net.weights, empty, rates, is_leaf=lambda leaf: leaf is None)

    def conserved(self, params: PyTree, eta: PyTree) -> tuple[Conserved, ...]:
        """Merged: v^T v/eta_v - U U^T/eta_U. Separate: K K^T/eta_K - Q Q^T/eta_Q and v^2/eta_v - |K|^2/eta_K by head.

        If separate, each head has a (rank, rank) matrix and a number.
        """
        value = params.weights[-1] / jnp.sqrt(eta.weights[-1])
        if self.rank is None:
            return (Conserved(value.T @ value, params.weights[0] @ params.weights[0].T / eta.weights[0]),)
        by_head = (w.reshape(self.heads, self.rank, -1) for w in params.weights[:2])
        keys, queries = (
            jnp.einsum("hid,hjd->hij", w, w) / rate for w, rate in zip(by_head, eta.weights[:2], strict=True)
        )
        return Conserved(keys, queries), Conserved(value[0] ** 2, jnp.trace(keys, axis1=1, axis2=2))
