"""The learning regime of a wide two-layer linear network with unbalanced layers, from its shape alone.

Kunin et al., "Get rich quick: exact solutions reveal how unbalanced initializations promote rapid feature learning",
section 4 (arXiv 2406.06158).
"""

import enum

import numpy as np
from jaxtyping import ArrayLike, Real

from ..._checks import concrete, describe, is_real, require_size


class UnbalancedRegime(enum.Enum):
    """The regime of a wide two-layer linear network with unbalanced layers.

    Example:
        >>> print([regime.value for regime in js.theory.UnbalancedRegime])
        ['lazy', 'rich', 'rich after a delay']
    """

    LAZY = "lazy"
    RICH = "rich"
    DELAYED_RICH = "rich after a delay"


def unbalanced_regime(in_size: int, width: int, out_size: int, delta: Real[ArrayLike, ""]) -> UnbalancedRegime:
    """The regime of f(x) = A^T W x when all delta_k are large compared with the learned map, by their sign.

    With delta_k = eta_w |a_k|^2 - eta_a |w_k|^2 >> 0 (upstream) the read-out A hardly moves, and the first layer alone
    can fit any map if A^T A has full rank, that is if width >= out_size. With delta_k << 0 (downstream) the read-out
    alone can, if width >= in_size. If so, training is lazy; otherwise the rest is learned later, in the rich regime. In
    a funnel (in_size > width >= out_size), upstream starts are therefore lazy and downstream starts rich after a delay.
    An inverted funnel is the other way round, and a network wider than both ends is lazy with either sign. At delta = 0
    the kernel moves from the beginning: rich.

    The paper states this for width >= min(in_size, out_size). For narrower networks, which cannot fit every map, the
    same argument says that neither sign is lazy, unless the target has low rank.

    Arguments:
        in_size, width, out_size: d, h and c.
        delta: the common sign of all delta_k; only its sign counts.

    Example:
        >>> funnel = [js.theory.unbalanced_regime(10, 5, 2, delta) for delta in (-1.0, 0.0, 1.0)]
        >>> print([regime.value for regime in funnel])
        ['rich after a delay', 'rich', 'lazy']

    Raises:
        ValueError: a size is less than 1, or delta is NaN.
        TypeError: a size is not an integer, or delta is not a number.
    """
    in_size, width, out_size = (
        require_size(size, name) for size, name in ((in_size, "in_size"), (width, "width"), (out_size, "out_size"))
    )
    known = concrete(delta)
    if known is None or known.ndim or not is_real(known):
        raise TypeError(f"delta must be a number: all delta_k have one sign, got {describe(delta)}")
    if np.isnan(known):
        raise ValueError("delta must be a number, whose sign is that of all delta_k, got nan")
    if known == 0:
        return UnbalancedRegime.RICH
    needed = out_size if known > 0 else in_size
    return UnbalancedRegime.LAZY if width >= needed else UnbalancedRegime.DELAYED_RICH
