"""The phase diagram of two-layer networks from their exponents: which scalings learn, and how.

Xu & Liu Ziyin, section 3: equation (28), Theorem 2, Corollaries 1 to 3 and Table 1.
"""

from math import isfinite
from typing import NamedTuple

from ..._checks import require_kind
from ..._core import Regime


Number = int | float


class Exponents(NamedTuple):
    """The exponents with which the hyperparameters of a two-layer network scale as kappa -> infinity.

    Attributes:
        d: the width is kappa^d.
        gamma: the output scale is kappa^gamma.
        u, w: the *variances* of the last and the first layer's initial weights are kappa^u and kappa^w.
        eta_u, eta_w: their learning rates are kappa^eta_u and kappa^eta_w.

    Example:
        >>> ntk = js.theory.Exponents(d=1, gamma=-0.5, u=0, w=0, eta_u=0, eta_w=0)
        >>> js.theory.phase(ntk).label
        'kernel'
    """

    d: Number
    gamma: Number
    u: Number
    w: Number
    eta_u: Number
    eta_w: Number

    @property
    def feature(self) -> Number:
        """Exponent of the feature-learning term of 1/t_c^2 (first entry of eq. 28)."""
        return 2 * self.gamma + self.eta_u + self.eta_w

    @property
    def kernel(self) -> Number:
        """Exponent of the square root of the kernel term of 1/t_c^2 (second entry of eq. 28)."""
        return 2 * self.gamma + self.d + max(self.u + self.eta_w, self.w + self.eta_u)


def phase(exponents: Exponents, *, zero_output: bool = False) -> Regime:
    """The regime in the limit kappa -> infinity.

    The larger of the two entries of eq. (28) decides: if negative, the network is frozen; if positive, unstable. At
    zero it learns. It is then in the kernel regime (Theorem 2) iff the feature-learning entry is negative and
    P/Q -> 1, for one of three reasons: the width grows, the initial output is zero, or the layers are unbalanced.

    Arguments:
        exponents: the scaling.
        zero_output: whether the initial output is zero (a centered problem, a mirrored start), which the exponents do
            not determine.

    Example:
        >>> for gamma in (-0.5, 0, -1):  # NTK scaling, a larger output scale and a smaller one
        ...     scaling = js.theory.Exponents(d=1, gamma=gamma, u=0, w=0, eta_u=0, eta_w=0)
        ...     print(js.theory.phase(scaling).label)
        kernel
        unstable
        frozen

    Reference:
        @inproceedings{xu2025three, title={Three Mechanisms of Feature Learning in a Linear Network},
          author={Yizhou Xu and Liu Ziyin}, booktitle={ICLR}, year={2025}, note={arXiv 2401.07085}}

    Raises:
        ValueError: an exponent is not finite.
        TypeError: the argument is not an `Exponents`.
    """
    require_kind(exponents, Exponents, "exponents", "a theory.Exponents")
    for name, value in zip(Exponents._fields, exponents, strict=True):
        if not isfinite(value):
            raise ValueError(f"{name} must be a finite exponent, got {value}")
    fastest = max(exponents.feature, exponents.kernel)
    if fastest < -_ROUNDING:
        return Regime.FROZEN
    if fastest > _ROUNDING:
        return Regime.UNSTABLE
    unbalanced = abs((exponents.u + exponents.eta_w) - (exponents.w + exponents.eta_u)) > _ROUNDING
    layers_cancel = exponents.d > _ROUNDING or zero_output or unbalanced
    return Regime.KERNEL if layers_cancel and exponents.feature < -_ROUNDING else Regime.FEATURE_LEARNING


# Exponents are sums of a few decimals; this is far below any difference that a person would write.
_ROUNDING = 1e-9


def stable_eta(*, d: Number, gamma: Number, u: Number, w: Number) -> Number:
    """Corollary 1: the common exponent of both rates at which the network is neither frozen nor unstable.

    Arguments:
        d, gamma, u, w: as in `js.theory.Exponents`.

    Example:
        >>> js.theory.stable_eta(d=1, gamma=-1, u=0, w=0)  # mean field: rates grow with the width
        1
    """
    return min(-gamma, -2 * gamma - d - max(u, w))


def feature_learning_scaling(*, d: Number, u: Number, w: Number, eta: Number | None = None) -> tuple[Number, Number]:
    """Corollary 2: exponents (gamma, eta) of feature learning, gamma = -eta with eta >= d + max(u, w).

    Arguments:
        d, u, w: as in `js.theory.Exponents`.
        eta: the exponent of both rates; None means the smallest possible one.

    Example:
        >>> js.theory.feature_learning_scaling(d=1, u=0, w=0)  # gamma and eta of the mean-field scaling
        (-1, 1)

    Raises:
        ValueError: eta is too small: no gamma makes that network learn features.
    """
    smallest = d + max(u, w)
    eta = smallest if eta is None else eta
    if eta < smallest - _ROUNDING:
        raise ValueError(f"feature learning needs an exponent of eta >= d + max(u, w) = {smallest:g}, got {eta:g}")
    return -eta, eta


def kernel_scaling(*, d: Number, u: Number, w: Number, eta: Number) -> Number:
    """Corollary 3: the exponent of gamma that puts a network with rates of this exponent into the kernel regime.

    It holds where P/Q -> 1 (eq. 29): the width grows (d > 0), the layers differ in size (u != w), or the initial output
    is 0.

    Arguments:
        d, u, w: as in `js.theory.Exponents`.
        eta: the exponent of both rates.

    Example:
        >>> js.theory.kernel_scaling(d=1, u=0, w=0, eta=0)  # gamma of the NTK scaling
        -0.5

    Raises:
        ValueError: eta is too large: no gamma makes that network a kernel machine.
    """
    limit = d + max(u, w)
    if not eta < limit - _ROUNDING:
        raise ValueError(f"the kernel regime needs an exponent of eta < d + max(u, w) = {limit:g}, got {eta:g}")
    return -(eta + limit) / 2


class Entry(NamedTuple):
    """One phase of Table 1: the scaling, how its rates and output scale were chosen, and the regime."""

    scaling: str
    chosen_by: str
    exponents: Exponents
    regime: Regime


def table_1() -> list[Entry]:
    """Table 1: five scalings, in their standard form and as each corollary changes them. Twenty phases.

    The lazy column counts as starting from zero output, which its exponents alone do not determine. In the rows of
    Corollary 3, the exponents of eta are the paper's choices.

    Returns:
        Entries with `scaling`, `chosen_by` (how rates and output scale were chosen), `exponents` and `regime`.

    Example:
        >>> for entry in js.theory.table_1()[:3]:
        ...     print(f"{entry.scaling}, {entry.chosen_by}: {entry.regime.label}")
        NTK, standard: kernel
        NTK, Corollary 1: kernel
        NTK, Corollary 2: feature learning

    Reference:
        @inproceedings{xu2025three, title={Three Mechanisms of Feature Learning in a Linear Network},
          author={Yizhou Xu and Liu Ziyin}, booktitle={ICLR}, year={2025}, note={arXiv 2401.07085}}
    """
    # name: (d, gamma, w, u, eta chosen for Corollary 3)
    columns = {
        "NTK": (1, -0.5, 0, 0, 0),
        "mean field": (1, -1, 0, 0, 0),
        "Xavier": (1, 0, -1, -1, -2),
        "Kaiming": (1, 0, 0, -1, -1),
        "lazy": (0, 1, 0, 0, -2),
    }
    entries = []
    for name, (d, gamma, w, u, eta_kernel) in columns.items():
        gamma_learning, eta_learning = feature_learning_scaling(d=d, u=u, w=w)
        choices = {
            "standard": (gamma, 0),
            "Corollary 1": (gamma, stable_eta(d=d, gamma=gamma, u=u, w=w)),
            "Corollary 2": (gamma_learning, eta_learning),
            "Corollary 3": (kernel_scaling(d=d, u=u, w=w, eta=eta_kernel), eta_kernel),
        }
        for chosen_by, (c_gamma, c_eta) in choices.items():
            exponents = Exponents(d, c_gamma, u, w, c_eta, c_eta)
            entries.append(Entry(name, chosen_by, exponents, phase(exponents, zero_output=name == "lazy")))
    return entries
