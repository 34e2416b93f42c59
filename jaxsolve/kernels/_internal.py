"""Names of this room that other rooms use, and users do not."""

from .finite._batches import rows as rows
from .finite._check import coarsest as coarsest
from .finite._finite import nonfinite_derivatives as nonfinite_derivatives
from .finite._jacobian import LayeredJacobian as LayeredJacobian
from .finite._projected import Trace as Trace
