"""Internal names that other packages of jaxsolve import."""

from ._accepts import accepts as accepts
from ._base import count as count, find_loss as find_loss, Unflattened as Unflattened
from ._positions import fit as fit
