"""Losses: averages over samples, with their gradients and Hessians with respect to the outputs."""

from ._base import AbstractLoss as AbstractLoss
from ._cross_entropy import CrossEntropy as CrossEntropy
from ._hinge import Hinge as Hinge, QuadraticHinge as QuadraticHinge, SoftHinge as SoftHinge
from ._logistic import Logistic as Logistic
from ._mse import MSE as MSE
