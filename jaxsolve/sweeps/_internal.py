"""Names of this room that other rooms use, and users do not."""

from .running._variables import LANE_VARIABLES as LANE_VARIABLES
from .store._memory import citation as citation
