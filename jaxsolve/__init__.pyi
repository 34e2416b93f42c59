from . import (
    configs as configs,
    data as data,
    dynamics as dynamics,
    integrators as integrators,
    kernels as kernels,
    losses as losses,
    nets as nets,
    observe as observe,
    papers as papers,
    plot as plot,
    report as report,
    sweeps as sweeps,
    theory as theory,
    until as until,
)
from ._compare import compare as compare
from ._core import (
    AbstractDynamics as AbstractDynamics,
    AbstractMarching as AbstractMarching,
    AbstractRandomAccess as AbstractRandomAccess,
    AbstractState as AbstractState,
    Assumption as Assumption,
    Certificate as Certificate,
    March as March,
    NotApplicable as NotApplicable,
    Problem as Problem,
    Quantity as Quantity,
    Stream as Stream,
    Trajectory as Trajectory,
    Validity as Validity,
    View as View,
)
from ._diagnose import (
    coordinate_check as coordinate_check,
    diagnose as diagnose,
    diagnose_checkpoints as diagnose_checkpoints,
    Monitor as Monitor,
    optimal_rate as optimal_rate,
    transfer_check as transfer_check,
)
from ._kernel_machine import as_kernel_machine as as_kernel_machine
from ._quickstart import quickstart as quickstart
from ._results import result_names as result_names, RESULTS as RESULTS
from ._solve import solve as solve, SolveError as SolveError
from .dynamics import (
    AlternatingFlow as AlternatingFlow,
    CentralFlow as CentralFlow,
    Descent as Descent,
    EdgeFlow as EdgeFlow,
    FrozenKernel as FrozenKernel,
    GradientFlow as GradientFlow,
    InfiniteWidth as InfiniteWidth,
    limits as limits,
    MomentumFlow as MomentumFlow,
    MuonFlow as MuonFlow,
    RichLimit as RichLimit,
    RodFlow as RodFlow,
    SoftCommittee as SoftCommittee,
    StochasticFlow as StochasticFlow,
)
from .sweeps import plan as plan, sweep as sweep, Zip as Zip
from .theory import exact as exact

__version__: str
