"""Programs as JAX traces them: a reader, and the questions that several packages ask of it."""

from ._both_ways import (
    both_ways as both_ways,
    forward_mode as forward_mode,
    shape_and_rule as shape_and_rule,
)
from ._channels_last import channels_last as channels_last
from ._equations import (
    called as called,
    CALLS as CALLS,
    equations as equations,
    inside as inside,
    rebound as rebound,
    scan_counts as scan_counts,
)
from ._flop import flop as flop
from ._read import depends_on_inputs as depends_on_inputs, read as read, Rules as Rules
from ._scans import write_out as write_out
from ._steps import Step as Step, Steps as Steps
from ._unrolled import unrolled as unrolled
