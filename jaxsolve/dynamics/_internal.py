"""Names that other subpackages use and users do not."""

from .descent._optimizer import Optimizer as Optimizer
from .flow._flow import AbstractFlow as AbstractFlow
from .wide import dmft as dmft
