"""Neural tangent kernels of networks at finite and infinite width, and functions of a kernel matrix."""

from .finite._check import check as check
from .finite._empirical import empirical as empirical, memory_estimate as memory_estimate, unit_rates as unit_rates
from .finite._nngp import empirical_nngp as empirical_nngp
from .finite._projected import Projected as Projected
from .matrices._classes import class_kernel as class_kernel, class_means as class_means
from .matrices._features import features as features
from .matrices._layout import output_average as output_average
from .matrices._linearized import linearized as linearized, linearized_ensemble as linearized_ensemble
from .matrices._metrics import (
    center as center,
    centered_alignment as centered_alignment,
    centered_distance as centered_distance,
    centered_target_alignment as centered_target_alignment,
    distance as distance,
    distance_matrix as distance_matrix,
    relative_change as relative_change,
    target_alignment as target_alignment,
)
from .matrices._path import along_path as along_path
from .matrices._regression import regression as regression
from .matrices._spectrum import (
    effective_rank as effective_rank,
    entropy as entropy,
    participation_ratio as participation_ratio,
    spectrum as spectrum,
    target_power as target_power,
    trace as trace,
)
from .operators._eigenpairs import top_eigenpairs as top_eigenpairs
from .operators._estimates import estimate_frobenius_norm as estimate_frobenius_norm, estimate_trace as estimate_trace
from .operators._matrix_free import (
    AbstractSymmetricOperator as AbstractSymmetricOperator,
    GaussNewtonOperator as GaussNewtonOperator,
    HessianOperator as HessianOperator,
    NTKOperator as NTKOperator,
)
from .wide._infinite import infinite as infinite
from .wide._neural_tangents import (
    neural_tangents as neural_tangents,
    NeuralTangentsUnavailable as NeuralTangentsUnavailable,
)
