"""The mechanisms by which a two-layer linear network on a line learns, determined by its start.

Xu & Liu Ziyin, "Three Mechanisms of Feature Learning in a Linear Network", sections 2.2 and 2.3: the layers align or
disalign, and their norms grow or shrink.
"""

import enum
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._checks import describe
from ..._numerics import nonzero, safe_hypot
from ._reduced_line import ReducedLine


class Alignment(enum.IntEnum):
    """The change of the angle between the layers: the sign of the change of zeta.

    Example:
        >>> js.theory.Alignment(1).label
        'layers align'
    """

    DISALIGN = -1
    NEITHER = 0
    ALIGN = 1

    @property
    def label(self) -> str:
        """The name in words."""
        return {-1: "layers disalign", 0: "layers keep their alignment", 1: "layers align"}[int(self)]


class Rescaling(enum.IntEnum):
    """The change of the norms of both layers, numbered as the paper's cases.

    Example:
        >>> js.theory.Rescaling(3).label
        'norms first shrink, then grow'
    """

    GROW = 1
    SHRINK = 2
    SHRINK_THEN_GROW = 3
    CONSTANT = 4

    @property
    def label(self) -> str:
        """The name in words."""
        return {1: "norms grow", 2: "norms shrink", 3: "norms first shrink, then grow", 4: "norms stay"}[int(self)]


class Mechanisms(NamedTuple):
    """The mechanisms by which one start learns. All entries have the shape of the given `ReducedLine`.

    Attributes:
        alignment: codes of `Alignment`; `Alignment(int(code)).label` is the name of one.
        rescaling: codes of `Rescaling`.
        turn: the time at which f = 0 and the norms are smallest, if they first shrink and then grow; else inf.
        zeta_start, zeta_end: the alignment of the layers at t = 0 and at t = inf.
    """

    alignment: Int[Array, "..."]
    rescaling: Int[Array, "..."]
    turn: Float[Array, "..."]
    zeta_start: Float[Array, "..."]
    zeta_end: Float[Array, "..."]


def mechanisms(line: ReducedLine) -> Mechanisms:
    r"""Returns if the layers align, disalign or neither, and which of the four cases of rescaling holds.

    The alignment $\zeta$ rises iff y > f(0) and falls iff y < f(0) (eq. 24), unless the layers are parallel and stay so
    (eq. 22). The squared norms grow while (y - f) f > 0 (eq. 26):

    1. y > f(0) >= 0 or y < f(0) <= 0: they grow.
    2. 0 <= y < f(0) or f(0) < y <= 0: they shrink. They also do on the way into the saddle (P = 0 < y or Q = 0 > y),
       where the turning point of case 3 is at t = inf.
    3. f(0) < 0 < y or y < 0 < f(0): they shrink until f = 0, that is $\xi^2 = \sqrt{Q/P}$, then grow.
    4. y = f(0), or a network that cannot move: nothing changes.

    With R = sqrt(y^2 + k^2 P Q) and U = |f(0)|/(k (P + Q)/2 + k sqrt(P Q)), case 3 turns at
    t = artanh(R U/(|y| + k sqrt(P Q) U))/(k R), in gradient-flow time.

    Values within rounding of f(0) = 0, of y = f(0) or of parallel layers count as exact.

    Arguments:
        line: a start, such as `js.theory.TwoLayerLine().reduce(problem)`. `alignment` and `rescaling` have no
            derivatives.

    Returns:
        The codes `alignment` and `rescaling`, the time `turn` of f = 0 (else inf), `zeta_start` and `zeta_end`.

    Example:
        >>> line = js.theory.ReducedLine.from_pq(P=1.0, Q=1.0, phi=0.0, k=1.0, y=2.0)  # f(0) = 0 < y
        >>> found = js.theory.mechanisms(line)
        >>> js.theory.Alignment(int(found.alignment)).label, js.theory.Rescaling(int(found.rescaling)).label
        ('layers align', 'norms grow')

    Reference:
        @inproceedings{xu2025three, title={Three Mechanisms of Feature Learning in a Linear Network},
          author={Yizhou Xu and Liu Ziyin}, booktitle={ICLR}, year={2025}, note={arXiv 2401.07085}}

    Raises:
        TypeError: line is not a `ReducedLine`.
    """
    if not isinstance(line, ReducedLine):
        raise TypeError(
            f"mechanisms needs a ReducedLine, got {describe(line)}; use mechanisms(TwoLayerLine().reduce(problem))"
        )
    y, f = line.y, line.k * line.product
    tolerance = 8 * float(np.finfo(f.dtype).eps)
    lengths = safe_hypot(line.product, line.gram)  # |a||b|, which sets the rounding of a.b
    f = jnp.where(jnp.abs(line.product) <= tolerance * lengths, 0, f)
    gap = y - f
    # f is a sum of terms that may be much larger; where it counts as 0, it is exact.
    rounding = tolerance * jnp.maximum(jnp.abs(y), jnp.where(f == 0, 0, line.k * lengths))
    gap = jnp.where(jnp.abs(gap) <= rounding, 0, gap)
    gap = jnp.where((line.k == 0) | (line.total == 0), 0, gap)

    opposed = (y * jnp.sign(f) < 0) & (gap != 0)
    into_saddle = opposed & (line.root_pq == 0)
    turns = opposed & ~into_saddle
    outward = gap * jnp.where(f == 0, jnp.sign(y), jnp.sign(f)) > 0
    rescaling = jnp.select(
        [gap == 0, turns, outward],
        [_code(Rescaling.CONSTANT), _code(Rescaling.SHRINK_THEN_GROW), _code(Rescaling.GROW)],
        _code(Rescaling.SHRINK),
    )
    # A layer that is zero at the start does not count as parallel: it becomes so at once, and zeta jumps from 0 to +-1.
    stay_parallel = (line.gram <= tolerance * lengths) & (line.product != 0) & ~turns
    alignment = jnp.where(stay_parallel, 0, jnp.sign(gap)).astype(jnp.int32)
    return Mechanisms(alignment, rescaling, _turn(line, turns), line.zeta(0.0), line.zeta(jnp.inf))


def _code(case: Rescaling) -> Int[Array, ""]:
    return jnp.asarray(int(case), jnp.int32)


def _turn(line: ReducedLine, turns: Array) -> Float[Array, "..."]:
    """The time of f = 0, as log(1 + ...)/(2 k R), where every sum has positive terms, so nothing cancels."""
    one = jnp.ones_like(line.k * line.total)
    # 1 where there is no turn, so that derivatives stay finite behind the last `where`.
    read = lambda value: jnp.where(turns, jnp.abs(value), one)
    k, y, f = read(line.k), read(line.y), read(line.k * line.product)
    K, mean = read(line.k * line.root_pq), read(line.k * line.total)
    R = safe_hypot(y, K)
    # z = R U/(|y| + K U): z/(1 - z) = R f/(|y| G) with G = K + mean - |y| f/(R + K), written without differences.
    G = K * (1 + K / (mean + f) + (f / (R + K)) * (1 + K / (R + y)))
    time = jnp.log1p(2 * (R / y) * (f / nonzero(G))) / (2 * k * R)
    return jnp.where(turns, time, jnp.inf)
