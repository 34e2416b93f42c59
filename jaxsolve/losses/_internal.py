"""Names of this room that other rooms use, and users do not."""

from ._accepts import accepts as accepts
from ._base import find_loss as find_loss
from ._positions import fit as fit, Unflattened as Unflattened
