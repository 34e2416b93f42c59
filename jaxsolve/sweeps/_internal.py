"""Internal names that other packages of jaxsolve import."""

from ._broken_power_law import FittedBrokenPowerLaw as FittedBrokenPowerLaw
from .running._variables import LANE_VARIABLES as LANE_VARIABLES
from .store._memory import citation as citation
