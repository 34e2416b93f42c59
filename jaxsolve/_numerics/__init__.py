"""Functions that neither overflow nor cancel, and the settings and memory of the process that computes."""

from ._known_answers import (
    ADVICE as ADVICE,
    known_answers as known_answers,
    warn_of_wrong_version as warn_of_wrong_version,
)
from ._memory import (
    free_memory as free_memory,
    free_on_host as free_on_host,
    memory_for as memory_for,
    out_of_memory as out_of_memory,
    readable as readable,
    require_room as require_room,
)
from ._modules import hashable as hashable, HeldModule as HeldModule
from ._phi import finite_product as finite_product, integrated_decay as integrated_decay, phi as phi
from ._safe import (
    all_finite as all_finite,
    kept_product as kept_product,
    magnitude as magnitude,
    nonzero as nonzero,
    norm as norm,
    safe_hypot as safe_hypot,
    safe_product as safe_product,
    safe_sqrt as safe_sqrt,
    scaled as scaled,
    squares_over as squares_over,
    tanhc as tanhc,
    unit as unit,
)
from ._samples import (
    in_words as in_words,
    Inputs as Inputs,
    is_tree as is_tree,
    map_arrays as map_arrays,
    one_of as one_of,
    samples_in as samples_in,
    take_samples as take_samples,
)
from ._settings import one_thread as one_thread, unwatched as unwatched
