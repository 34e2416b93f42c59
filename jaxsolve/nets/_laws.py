"""The laws behind the scaling rules: multiplier, sigma, eta and gamma of one weight matrix from its size."""

import dataclasses
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Array, Float


Fan: TypeAlias = int | Float[Array, ""]
"""A number of units: of a padded width (`Padded`) an array, which may be traced."""


class LayerShape(NamedTuple):
    """What a law may depend on. The window of a dense layer is 1."""

    fan_in: Fan
    fan_out: Fan
    position: int  # counted from the input
    layers: int  # number of weight matrices
    width: Fan  # fan_in of the last matrix
    gain: float  # gain of the activation
    kappa: Any  # the scale to infinity of `from_exponents`
    window: int = 1  # pixels under a convolution; fan_in and fan_out count channels times pixels

    @property
    def first(self) -> bool:
        """Whether the matrix acts on the data."""
        return self.position == 0

    @property
    def last(self) -> bool:
        """Whether the matrix is the read-out."""
        return self.position == self.layers - 1


class Prescription(NamedTuple):
    """The hyperparameters of one weight matrix; `gamma` is a factor on the output scale, read off the last matrix."""

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
    # A window does not grow with the width: the first rate follows the number of channels alone.
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
        return Prescription(1.0, kappa ** (variance / 2), kappa**eta, kappa**self.c_gamma)
