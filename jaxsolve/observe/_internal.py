"""Names of this room that other rooms use, and users do not."""

from ._layer_cosine import least_map as least_map
from ._observable import check_observables as check_observables
