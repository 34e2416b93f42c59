"""Names of this room that other rooms use, and users do not."""

from .kunin._piecewise_linear import neuron_scales as neuron_scales
