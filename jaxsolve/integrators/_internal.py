"""Names that other subpackages use and users do not."""

from ._chebyshev import first_direction as first_direction, Stabilized as Stabilized
from ._expansion import Flowing as Flowing
