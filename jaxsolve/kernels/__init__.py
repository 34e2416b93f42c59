"""Neural tangent kernels of networks and arrays."""

from ._empirical import empirical as empirical, plain as plain
from ._metrics import distance as distance, relative_change as relative_change, target_alignment as target_alignment
from ._neural_tangents import (
    NeuralTangentsUnavailable as NeuralTangentsUnavailable,
    NTKImplementation as NTKImplementation,
)
