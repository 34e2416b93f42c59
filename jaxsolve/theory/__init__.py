"""Exact solutions and predictions, one file each."""

from ._exact import exact as exact
from .atanasov._alignment_time import alignment_time as alignment_time, phase_times as phase_times
from .atanasov._balanced_kernel import plain_spiked_kernel as plain_spiked_kernel, spiked_kernel as spiked_kernel
from .atanasov._balanced_modes import BalancedModes as BalancedModes
from .atanasov._deep_escape import early_mode as early_mode, escape_time as escape_time
from .atanasov._generalization import (
    kernel_regression_error as kernel_regression_error,
    transfer_error as transfer_error,
)
from .atanasov._laziness import curvature_ratio as curvature_ratio, laziness as laziness
from .atanasov._phase_one import early_overlaps as early_overlaps, PhaseOne as PhaseOne
from .atanasov._refined_balance import (
    balance_offsets as balance_offsets,
    layer_values as layer_values,
    mean_conserved as mean_conserved,
)
from .atanasov._silent_alignment import SilentAlignment as SilentAlignment, start_overlaps as start_overlaps
from .geiger._lazy_scaling import lazy_scaling as lazy_scaling
from .karkada._hermite_modes import (
    hermite_eigenvalues as hermite_eigenvalues,
    hermite_functions as hermite_functions,
    hermite_modes as hermite_modes,
)
from .karkada._level_coefficients import level_coefficients as level_coefficients
from .kunin._deep_potential import DeepPotential as DeepPotential
from .kunin._hyperbolic_entropy import HyperbolicEntropy as HyperbolicEntropy
from .kunin._implicit_bias import implicit_bias as implicit_bias, single_neuron_limit as single_neuron_limit
from .kunin._interpolants import Interpolants as Interpolants
from .kunin._piecewise_linear import neuron_forces as neuron_forces, neurons as neurons
from .kunin._potentials import (
    AbstractPotential as AbstractPotential,
    AbstractRadialPotential as AbstractRadialPotential,
    SingleNeuronPotential as SingleNeuronPotential,
)
from .kunin._preconditioners import (
    deep_preconditioner as deep_preconditioner,
    isotropic_velocity as isotropic_velocity,
    neurons_preconditioner as neurons_preconditioner,
    preconditioner_velocity as preconditioner_velocity,
)
from .kunin._reduced_neuron import ReducedNeuron as ReducedNeuron
from .kunin._single_neuron import SingleNeuronFlow as SingleNeuronFlow
from .kunin._spectral_flow import spectral_velocity as spectral_velocity
from .kunin._unbalanced_regime import unbalanced_regime as unbalanced_regime, UnbalancedRegime as UnbalancedRegime
from .linear._balanced import Balanced as Balanced
from .linear._deep_balanced import DeepBalanced as DeepBalanced
from .linear._embedding_gram import embedding_gram as embedding_gram
from .linear._muon_modes import MuonModes as MuonModes
from .linear._online_sgd import online_sgd as online_sgd
from .linear._optimal_schedule import optimal_schedule as optimal_schedule
from .xu_ziyin._decoupled_modes import DecoupledModes as DecoupledModes
from .xu_ziyin._finite import classify_network as classify_network
from .xu_ziyin._mechanisms import Alignment as Alignment, mechanisms as mechanisms, Rescaling as Rescaling
from .xu_ziyin._phases import (
    Exponents as Exponents,
    feature_learning_scaling as feature_learning_scaling,
    kernel_scaling as kernel_scaling,
    phase as phase,
    stable_eta as stable_eta,
    table_1 as table_1,
)
from .xu_ziyin._reduced_line import ReducedLine as ReducedLine
from .xu_ziyin._two_layer_line import TwoLayerLine as TwoLayerLine
from .zhang._in_context_losses import in_context_losses as in_context_losses
