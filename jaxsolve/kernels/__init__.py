"""Neural tangent kernels of networks and arrays."""

from ._empirical import empirical as empirical
from ._empirical import plain as plain
from ._metrics import distance as distance
from ._metrics import relative_change as relative_change
from ._metrics import target_alignment as target_alignment
from ._neural_tangents import NeuralTangentsUnavailable as NeuralTangentsUnavailable
from ._neural_tangents import NTKImplementation as NTKImplementation
