"""Observables: pure functions of a view of the problem at one time."""

from ._kernel import kernel as kernel
from ._kernel import kernel_alignment as kernel_alignment
from ._kernel import kernel_change as kernel_change
from ._kernel import kernel_distance as kernel_distance
from ._observable import check_observables as check_observables
from ._observable import Observable as Observable
from ._outputs import accuracy as accuracy
from ._outputs import loss as loss
from ._outputs import outputs as outputs
from ._outputs import test_accuracy as test_accuracy
from ._outputs import test_loss as test_loss
from ._outputs import test_outputs as test_outputs
from ._regimes import classify as classify
from ._regimes import half_loss_time as half_loss_time
from ._regimes import KERNEL_CHANGE as KERNEL_CHANGE
from ._regimes import Regime as Regime
from ._regimes import regimes as regimes
from ._weights import conserved as conserved
from ._weights import layer_alignment as layer_alignment
from ._weights import weight_distances as weight_distances
from ._weights import weight_norms as weight_norms
