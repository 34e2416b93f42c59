"""Problems, dynamics, times and trajectories: the types that all other packages share."""

from ._closures import closed as closed, contents as contents, opened as opened
from ._dynamics import (
    AbstractChoice as AbstractChoice,
    AbstractDescending as AbstractDescending,
    AbstractDynamics as AbstractDynamics,
    AbstractGrowing as AbstractGrowing,
    AbstractMarching as AbstractMarching,
    AbstractRandomAccess as AbstractRandomAccess,
    AbstractSavingState as AbstractSavingState,
    AbstractStandIn as AbstractStandIn,
    AbstractState as AbstractState,
    AbstractStepping as AbstractStepping,
    AbstractStoppable as AbstractStoppable,
    AbstractStreaming as AbstractStreaming,
    advance_alone as advance_alone,
    Certificate as Certificate,
    condition_of as condition_of,
    FunctionValues as FunctionValues,
    is_key as is_key,
    March as March,
    Observed as Observed,
    one_by_one as one_by_one,
    require_served as require_served,
    resolve as resolve,
    Stepped as Stepped,
)
from ._march import last_state as last_state, march as march
from ._problem import (
    centered_anew as centered_anew,
    flat_rates as flat_rates,
    Problem as Problem,
    read_pair as read_pair,
    require_problem as require_problem,
)
from ._regime import KERNEL_CHANGE as KERNEL_CHANGE, Regime as Regime
from ._shown import late as late, shown as shown
from ._stream import fresh as fresh, Stream as Stream
from ._times import are_times as are_times, read_times as read_times, require_end as require_end
from ._trajectory import Label as Label, Stats as Stats, Trajectory as Trajectory
from ._validity import Assumption as Assumption, NotApplicable as NotApplicable, Validity as Validity
from ._view import Quantity as Quantity, View as View
