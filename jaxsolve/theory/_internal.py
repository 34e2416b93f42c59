"""Names that the rest of the library uses and users do not."""

from .kunin._piecewise_linear import neuron_scales as neuron_scales
