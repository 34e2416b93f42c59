"""Names that other modules of the library import and users do not."""

from ._changes import root_mean_square as root_mean_square
from ._chizat import curvature as curvature
from ._critical_rate import critical_multiple as critical_multiple
from ._groups import find_groups as find_groups, Groups as Groups, relative_sizes as relative_sizes
from ._insides import Insides as Insides, insides as insides
from ._lanczos import largest_eigenvalue as largest_eigenvalue, MOST as MOST
from ._layer_cosine import least_map as least_map
from ._layer_pairs import squared_product as squared_product
from ._linearized import (
    kernel_size as kernel_size,
    linear_change as linear_change,
    missed_share as missed_share,
    on_kernel as on_kernel,
    outputs_at as outputs_at,
)
from ._observable import check_observables as check_observables, require_observables as require_observables
from ._optimizers import next_update as next_update, Slope as Slope, slope_at as slope_at
from ._progress import progress_between as progress_between, Pull as Pull, pull_at as pull_at
from ._response import rate_exponent as rate_exponent, Response as Response, response as response
from ._silence import rise_time as rise_time, turned_before as turned_before
from ._stability import sharpness_ratio as sharpness_ratio
from ._taps import read_program as read_program, run_program as run_program, TappedProgram as TappedProgram
from ._traced import shared_kernel as shared_kernel
