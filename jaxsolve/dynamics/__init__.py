"""Dynamics that march (gradient flow and descent), and the flows under a kernel that does not move."""

from ._central_flow import CentralFlow as CentralFlow
from ._descent import Descent as Descent
from ._edge_optimizer import scalar_rmsprop as scalar_rmsprop
from ._flow import AbstractFlow as AbstractFlow
from ._frozen_kernel import FrozenKernel as FrozenKernel
from ._gradient_flow import GradientFlow as GradientFlow
from ._infinite_width import InfiniteWidth as InfiniteWidth
from ._limits import Limits as Limits, limits as limits, WidthLimit as WidthLimit
from ._momentum_flow import MomentumFlow as MomentumFlow
from ._rich_limit import RichLimit as RichLimit
from ._rod_flow import RodFlow as RodFlow
from ._run_end import RunEnd as RunEnd
from ._stochastic_flow import StochasticFlow as StochasticFlow
