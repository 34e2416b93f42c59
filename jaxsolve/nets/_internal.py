"""Names of this room that other rooms use, and users do not."""

from ._state import FREEZE as FREEZE, takes_state as takes_state
