"""Names of this room that other rooms use, and users do not."""

from ._layers import (
    AbstractParametric as AbstractParametric,
    AbstractWeighted as AbstractWeighted,
    Mask as Mask,
    Tap as Tap,
)
from ._network import networks_in as networks_in
from ._state import FREEZE as FREEZE, takes_state as takes_state
