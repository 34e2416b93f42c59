"""Dynamics that march: gradient flow and descent."""

from ._descent import Descent as Descent
from ._gradient_flow import GradientFlow as GradientFlow
