"""A one-layer transformer."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from .._checks import require_size
from ._activations import Activation, find_activation
from ._build import build
from ._init import AbstractInit, Gaussian, Weights
from ._network import AbstractNetwork, Conserved
from ._padded import require_unpadded
from ._scaling import Scaling, ScalingRule


_EXPANSION = 4  # neurons of the dense part, in widths
EMBED, PLACE, QUERY, KEYS, VALUE, OUTPUT, EXPAND, CONTRACT, READ = range(9)


class Transformer(AbstractNetwork):
    r"""One layer of attention and one dense layer, read out at the last token.

    One-hot tokens $x_t$ are embedded as $h_t = E x_t + p_t$. With k heads of d/k features each,
    $h_t \leftarrow h_t + O [\sum_s \mathrm{softmax}_s(q_t \cdot k_s \sqrt{k/d})\, v_s]$, where every token attends to
    all tokens; then $h_t \leftarrow h_t + C \sigma(B h_t)$ with 4 d neurons, and $f = \gamma U h_T$. There are no
    biases and no normalizations.

    Its nine weight arrays are, in the order of the scaling: token embedding (d, v), positions (d, T), query, key, value
    and output of the attention (d, d), expansion (4 d, d), contraction (d, 4 d), read-out (c, d). For the scaling
    rules, the fan_in of the two embeddings is v and T.

    Arguments:
        in_shape: (T, v), tokens of one sample and size of the alphabet.
        out_size: outputs c.
        width_size: d, a multiple of `heads`.
        activation: a name, an `Activation` or any elementwise function.
        scaling: a `Scaling` of nine weight arrays, or a rule such as `Scaling.ntk()`.
        key: a JAX random key.

    Other Arguments:
        heads: k.
        init: the initial weights: `Gaussian` or `Given`.
        dtype: of the weights; the default float if None.

    Example:
        >>> net = js.nets.Transformer(
        ...     in_shape=(3, 8), out_size=7, width_size=16, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> data = js.data.modular_addition(7, 20, key=jax.random.key(1))
        >>> jax.vmap(net)(data.x).shape
        (20, 7)

    Reference:
        @inproceedings{vaswani2017attention, author={Ashish Vaswani and Noam Shazeer and Niki Parmar and others},
          title={Attention is all you need}, booktitle={NeurIPS}, year={2017}}

    Raises:
        ValueError, TypeError: a size, the activation, the scaling or the init is not as described above, or heads do
            not divide width_size.
    """

    weights: Weights
    scaling: Scaling
    activation: Activation = eqx.field(static=True)  # a function
    heads: int = eqx.field(static=True)  # a shape

    def __init__(
        self,
        *,
        in_shape: tuple[int, int],
        out_size: int,
        width_size: int,
        activation: Any = "relu",
        heads: int = 1,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        self.activation = find_activation(activation)
        if not isinstance(in_shape, tuple | list) or len(in_shape) != 2:
            raise ValueError(f"in_shape must be (tokens, symbols), two integers, got {in_shape!r}")
        tokens, symbols = (require_size(size, "in_shape") for size in in_shape)
        width, out_size = require_unpadded(width_size, "width_size"), require_unpadded(out_size, "out_size")
        self.heads = require_size(heads, "heads")
        if width % self.heads:
            raise ValueError(f"heads must divide width_size, got {self.heads} heads and width_size {width}")
        square, wide = (width, width), _EXPANSION * width
        shapes = [(width, symbols), (width, tokens), *[square] * 4, (wide, width), (width, wide), (out_size, width)]
        made = {"scaling": scaling, "init": init, "key": key, "dtype": dtype}
        parts = build(shapes, self.activation, bias=False, chain=False, on_data=(EMBED, PLACE), **made)
        self.weights, self.scaling = parts.weights, parts.scaling

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.weights[PLACE].shape[1], self.weights[EMBED].shape[1]

    @property
    def out_size(self) -> int:
        return self.weights[READ].shape[0]

    def __call__(self, x: Float[Array, "tokens symbols"]) -> Float[Array, " out"]:
        """The output for one sample of one-hot tokens."""
        w = [self.scaling.multiplier[index] * weight for index, weight in enumerate(self.weights)]
        h = x @ w[EMBED].T + w[PLACE].T
        by_head = lambda index: (h @ w[index].T).reshape(len(x), self.heads, -1)
        query, keys, value = (by_head(index) for index in (QUERY, KEYS, VALUE))
        # Tokens t attend to tokens s; k indexes the heads, d the features of a head.
        scores = jnp.einsum("tkd,skd->kts", query, keys) / math.sqrt(query.shape[2])
        attended = jnp.einsum("kts,skd->tkd", jax.nn.softmax(scores, axis=2), value)
        h = h + attended.reshape(len(x), -1) @ w[OUTPUT].T
        # Only the last token is read out, so the dense part need not see the others.
        last = h[-1] + w[CONTRACT] @ self.activation(w[EXPAND] @ h[-1])
        return self.scaling.gamma * w[READ] @ last

    def rates(self) -> PyTree:
        rates = tuple(self.scaling.eta[index] for index in range(len(self.weights)))
        empty = jax.tree.map(lambda _: None, self)
        return eqx.tree_at(lambda net: net.weights, empty, rates, is_leaf=lambda leaf: leaf is None)

    def conserved(self, params: PyTree, eta: PyTree) -> tuple[Conserved, ...]:
        """Per head Q Q^T/eta_Q - K K^T/eta_K and O^T O/eta_O - V V^T/eta_V, and one number per neuron.

        The last needs a homogeneous activation.
        """
        # Q -> A Q, K -> A^-T K leaves the scores of a head unchanged, and O -> O A, V -> A^-1 V its output. These
        # symmetries of linear pairs give the conserved matrices.
        per_head = lambda index: params.weights[index].reshape(self.heads, -1, params.weights[index].shape[1])
        gram = lambda rows, index: jnp.einsum("kid,kjd->kij", rows, rows) / eta.weights[index]
        out = jnp.swapaxes(params.weights[OUTPUT], 0, 1).reshape(self.heads, -1, params.weights[OUTPUT].shape[0])
        found = (
            Conserved(gram(per_head(QUERY), QUERY), gram(per_head(KEYS), KEYS)),
            Conserved(gram(out, OUTPUT), gram(per_head(VALUE), VALUE)),
        )
        if not self.activation.homogeneous:
            return found
        outgoing = jnp.sum(params.weights[CONTRACT] ** 2, axis=0) / eta.weights[CONTRACT]
        incoming = jnp.sum(params.weights[EXPAND] ** 2, axis=1) / eta.weights[EXPAND]
        return (*found, Conserved(outgoing, incoming))
