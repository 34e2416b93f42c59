"""Dynamics that march (gradient flow and descent), and flows under a fixed kernel."""

from ._limits import limits as limits, WidthLimit as WidthLimit
from .descent._descent import Descent as Descent
from .edge._central_flow import CentralFlow as CentralFlow
from .edge._edge_flow import EdgeFlow as EdgeFlow
from .edge._edge_optimizer import scalar_rmsprop as scalar_rmsprop
from .edge._rod_flow import RodFlow as RodFlow
from .flow._gradient_flow import GradientFlow as GradientFlow
from .flow._momentum_flow import MomentumFlow as MomentumFlow
from .flow._muon_flow import MuonFlow as MuonFlow
from .flow._stochastic_flow import StochasticFlow as StochasticFlow
from .lazy._frozen_kernel import FrozenKernel as FrozenKernel
from .lazy._infinite_width import InfiniteWidth as InfiniteWidth
from .lazy._run_end import RunEnd as RunEnd
from .saddle._alternating_flow import AlternatingFlow as AlternatingFlow, Drops as Drops
from .wide._rich_limit import RichLimit as RichLimit
from .wide._soft_committee import OrderParameters as OrderParameters, SoftCommittee as SoftCommittee
