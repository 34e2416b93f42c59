"""Names that the rest of the library uses and users do not."""

from ._activations import find_activation as find_activation
from ._called import (
    require_adapted as require_adapted,
    takes as takes,
    why_not_called as why_not_called,
    with_state_words as with_state_words,
)
from ._function import is_stax as is_stax
from ._layers import (
    AbstractWeighted as AbstractWeighted,
    Bias as Bias,
    Conv as Conv,
    Dense as Dense,
    Mask as Mask,
    run as run,
    SpatialMean as SpatialMean,
    StandardizeBatch as StandardizeBatch,
)
from ._network import Fixed as Fixed, networks_in as networks_in
from ._neurons import Split as Split, split as split
from ._normalization import AbstractNormalization as AbstractNormalization
from ._state import (
    copy_state as copy_state,
    FREEZE as FREEZE,
    Frozen as Frozen,
    in_training as in_training,
    takes_state as takes_state,
)
