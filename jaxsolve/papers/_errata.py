"""All errata, by paper and subject."""

from ._errata_atanasov_deep import ERRATA as _DEEP
from ._errata_atanasov_random import ERRATA as _RANDOM
from ._errata_atanasov_two_layers import ERRATA as _TWO_LAYERS
from ._errata_geiger import ERRATA as _GEIGER
from ._errata_kunin_layers import ERRATA as _LAYERS
from ._errata_kunin_neuron import ERRATA as _NEURON
from ._errata_xu import ERRATA as _XU
from ._erratum import Checked, Erratum


ALL_ERRATA: tuple[Erratum, ...] = _XU + _NEURON + _LAYERS + _TWO_LAYERS + _DEEP + _RANDOM + _GEIGER


def errata() -> tuple[Checked, ...]:
    """Recomputes all errors found in the papers, in about 50 seconds.

    Each erratum is measured against integration of the weights or a direct computation; the keys of all random
    numbers are fixed.

    Example:
        >>> for found in js.papers.errata():  # doctest: +SKIP
        ...     print(found.erratum.equation, found.printed_error)

    Raises:
        ValueError: JAX is in single precision.
    """
    return tuple(erratum.check() for erratum in ALL_ERRATA)
