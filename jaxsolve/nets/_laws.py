"""The laws behind the scaling rules: multiplier, sigma, eta and gamma of one weight matrix, given its size."""

import dataclasses
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Array, Float


Fan: TypeAlias = int | Float[Array, ""]
"""A number of units. It is an array, possibly traced, for a padded width (`Padded`)."""


class LayerShape(NamedTuple):
    """The place of one weight array in its network: what a law of `js.nets.ScalingRule` may depend on.

    Attributes:
        fan_in, fan_out: inputs and outputs of the array; for a convolution, channels times the pixels of its window.
        position: the index of the array, counted from the input.
        layers: the number of weight arrays in the network.
        width: fan_in of the last array.
        gain: gain of the activation.
        kappa: the scale that goes to infinity in `js.nets.Scaling.from_exponents`.
        window: pixels of a convolution's window; 1 for a dense layer.
        on_data: whether the array acts on the data, as position embeddings also do; None means only the first does.

    Example:
        >>> readout = js.nets.LayerShape(100, 1, position=1, layers=2, width=100, gain=1.0, kappa=100)
        >>> readout.first, readout.last
        (False, True)
    """

    fan_in: Fan
    fan_out: Fan
    position: int
    layers: int
    width: Fan
    gain: float
    kappa: Any
    window: int = 1
    on_data: bool | None = None

    @property
    def first(self) -> bool:
        """True if the matrix acts on the data."""
        return self.position == 0 if self.on_data is None else self.on_data

    @property
    def last(self) -> bool:
        """True if the matrix is the read-out."""
        return self.position == self.layers - 1


class Prescription(NamedTuple):
    """The values that a law of `js.nets.ScalingRule` prescribes for one weight matrix.

    `gamma` is a factor on the output scale of the network; only the last matrix's gamma counts.

    Example:
        >>> def law(layer):  # Lecun's initialization
        ...     return js.nets.Prescription(multiplier=1.0, sigma=layer.fan_in**-0.5, eta=1.0)
        >>> rule = js.nets.ScalingRule(law)
    """

    multiplier: Any
    sigma: Any
    eta: Any
    gamma: Any = 1.0


def ntk(layer: LayerShape) -> Prescription:
    return Prescription(layer.fan_in**-0.5, 1.0, 1.0)


def ntk_with_gain(layer: LayerShape) -> Prescription:
    # The first matrix acts on the data, not on an activation.
    return Prescription(layer.fan_in**-0.5 * (1.0 if layer.first else layer.gain), 1.0, 1.0)


def mean_field(layer: LayerShape) -> Prescription:
    return Prescription(layer.fan_in ** (-1.0 if layer.last else -0.5), 1.0, 1.0 * layer.width)


def standard(layer: LayerShape) -> Prescription:
    return Prescription(1.0, layer.fan_in**-0.5, 1.0)


def xavier(layer: LayerShape) -> Prescription:
    return Prescription(1.0, (2 / (layer.fan_in + layer.fan_out)) ** 0.5, 1.0)


def kaiming(layer: LayerShape) -> Prescription:
    # He et al. use the same variance in the first layer, although its input is not rectified.
    return Prescription(1.0, layer.gain * layer.fan_in**-0.5, 1.0)


def _mup_sigma(layer: LayerShape) -> Any:
    return layer.fan_in ** (-1.0 if layer.last else -0.5)


def mup(layer: LayerShape) -> Prescription:
    # The window of a convolution does not grow with the width, so the first rate follows the channels alone.
    eta = 1 / layer.fan_in if layer.last else layer.fan_out / layer.window if layer.first else 1.0
    return Prescription(1.0, _mup_sigma(layer), eta)


def mup_adam(layer: LayerShape) -> Prescription:
    return Prescription(1.0, _mup_sigma(layer), 1.0 if layer.first else 1 / layer.fan_in)


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """Powers of kappa; `c_u` and `c_w` are exponents of variances (Xu & Liu Ziyin, Table 1)."""

    c_gamma: float
    c_u: float
    c_w: float
    c_eta_u: float
    c_eta_w: float

    def __call__(self, layer: LayerShape) -> Prescription:
        variance, eta = (self.c_u, self.c_eta_u) if layer.last else (self.c_w, self.c_eta_w)
        kappa = layer.kappa
        # sigma is the square root of a variance.
        return Prescription(1.0, kappa ** (variance / 2), kappa**eta, kappa**self.c_gamma)
