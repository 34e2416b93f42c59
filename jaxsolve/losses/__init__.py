"""Losses: averages over samples, each with value, gradient and Hessian in the outputs."""

from ._base import AbstractLoss as AbstractLoss
from ._base import find_loss as find_loss
from ._base import Pointwise as Pointwise
from ._cross_entropy import CrossEntropy as CrossEntropy
from ._hinge import Hinge as Hinge
from ._hinge import QuadraticHinge as QuadraticHinge
from ._hinge import SoftHinge as SoftHinge
from ._logistic import Logistic as Logistic
from ._mse import MSE as MSE
