"""Observables: pure functions of a view of the problem at one time."""

from ._changes import (
    output_change as output_change,
    parameter_distance as parameter_distance,
    parameters as parameters,
    preactivation_velocity as preactivation_velocity,
    test_output_change as test_output_change,
    weight_change as weight_change,
)
from ._chizat import chizat_ratio as chizat_ratio
from ._critical_rate import critical_rate as critical_rate
from ._dormant import dormant_units as dormant_units
from ._edge import (
    averaged_loss as averaged_loss,
    averaged_squared_gradient as averaged_squared_gradient,
    edge_eigenvalues as edge_eigenvalues,
    oscillation as oscillation,
)
from ._hidden_kernel import hidden_cross_kernel as hidden_cross_kernel, hidden_kernel as hidden_kernel
from ._kernel import (
    kernel as kernel,
    kernel_alignment as kernel_alignment,
    kernel_centered_alignment as kernel_centered_alignment,
    kernel_centered_distance as kernel_centered_distance,
    kernel_change as kernel_change,
    kernel_distance as kernel_distance,
    kernel_norm as kernel_norm,
)
from ._kernel_classes import (
    kernel_between_classes as kernel_between_classes,
    kernel_by_class as kernel_by_class,
    kernel_within_class as kernel_within_class,
)
from ._kernel_spectrum import (
    kernel_effective_rank as kernel_effective_rank,
    kernel_entropy as kernel_entropy,
    kernel_participation_ratio as kernel_participation_ratio,
    kernel_spectrum as kernel_spectrum,
    kernel_target_power as kernel_target_power,
    kernel_trace as kernel_trace,
)
from ._layer_cosine import layer_cosine as layer_cosine
from ._layer_kernels import (
    feature_kernel as feature_kernel,
    gradient_kernel as gradient_kernel,
    preactivation_quantiles as preactivation_quantiles,
)
from ._linearized import nonlinearity as nonlinearity, residual_position as residual_position
from ._neurons import (
    neuron_delta as neuron_delta,
    neuron_direction as neuron_direction,
    neuron_radius as neuron_radius,
)
from ._observable import Observable as Observable
from ._outputs import (
    accuracy as accuracy,
    loss as loss,
    outputs as outputs,
    test_accuracy as test_accuracy,
    test_loss as test_loss,
    test_outputs as test_outputs,
)
from ._patterns import hamming_distance as hamming_distance
from ._progress import progress as progress
from ._regimes import (
    classify as classify,
    half_loss_time as half_loss_time,
    KERNEL_REGIME_LIMIT as KERNEL_REGIME_LIMIT,
    Regime as Regime,
    regimes as regimes,
)
from ._silence import silent_alignment as silent_alignment
from ._stability import edge_time as edge_time, sharpness as sharpness, stability as stability
from ._test_kernel import (
    cross_kernel as cross_kernel,
    test_kernel as test_kernel,
    test_kernel_change as test_kernel_change,
    test_kernel_distance as test_kernel_distance,
)
from ._traced import traced as traced
from ._updates import update_alignment as update_alignment, update_size as update_size
from ._weights import (
    conserved as conserved,
    layer_alignment as layer_alignment,
    weight_distances as weight_distances,
    weight_norms as weight_norms,
)
