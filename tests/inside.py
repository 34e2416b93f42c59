"""The private names of jaxsolve that tests outside of `tests/sweeps` need, and why: they import them from here.

A name belongs here only if public ones do not reach what is tested.
"""

# Most arguments are checked by these.
# Programs whose answers tell a wrong compiler are the doctor's. How much memory is free, to see what goes by it.
from jaxsolve import _numerics as numerics
from jaxsolve._checks import one_number, require_key, require_size

# A long march says where it is; tests do not wait for it.
# How much of the outputs is held at once is set by sizes that no test can afford.
# Functions as pytrees: those of optax are only some of what a user may give.
from jaxsolve._core import _march as marching, _problem as problems, _shown as shown, closed, opened

# The confidence of a slope, for values of a test's own, and how often a critical rate asks for the loss.
from jaxsolve._diagnose._fit import slope
from jaxsolve._numerics import _known_answers as known_answers, _memory as memory

# Exponential integrators stand on these functions: they are compared with mpmath, digit by digit.
from jaxsolve._numerics._phi import finite_product, integrated_decay, phi

# Closed forms end where their terms do.
from jaxsolve._numerics._safe import safe_hypot

# Threads of LAPACK, where several of Python's are inside at once.
from jaxsolve._numerics._settings import one_thread

# What gives networks with a backward rule of their own a forward one: a rule that differs from the function shows it.
# What is read in programs decides what lanes share and how kernels are computed: seen in speed and memory alone.
from jaxsolve._programs import both_ways, channels_last, depends_on_inputs, equations, read, Rules, Steps

# The codes of results of many lanes, to name them in one list.
from jaxsolve._results import result_code

# Errors of a command as exceptions: `main` turns them into words and an exit code.
from jaxsolve.cli import _main as cli_main

# Where programs are kept, without a command that compiles some.
from jaxsolve.cli._kept import kept_programs
from jaxsolve.cli._main import app
from jaxsolve.cli._report import report

# Every kind of object that a config may name is built once.
from jaxsolve.configs._catalogue import kinds

# Formulas of configs have a grammar of their own.
from jaxsolve.configs._formula import Formula

# A config from text instead of a file; which of its axes are made before it is refused.
from jaxsolve.configs._read import ConfiguredProblem, parse_config, SPACINGS

# A fetch goes to the addresses of publishers: tests put a server of their own in their place.
from jaxsolve.data import _fetch as fetching

# How labels are drawn and encoded, without images.
from jaxsolve.data._labels import draw as labels_draw, encode

# What step sizes and times of one run mean for another is public nowhere, and simple to get wrong.
from jaxsolve.dynamics._marching import nearest_step, time_at

# What the steps of the central flow solve, on matrices of which the answer is known.
from jaxsolve.dynamics.edge._edge_cone import complement, Cone
from jaxsolve.dynamics.edge._edge_pairs import first_pairs, follow as follow_pairs

# The drift of conserved quantities, for states that no run would pass through.
from jaxsolve.dynamics.flow._certificate import conserved_drift

# What a flow's integrator is chosen by: the stiffness, compared with that of the whole Hessian.
from jaxsolve.dynamics.flow._choice import (
    _rate as rate_for_choice,
    _sizes as sizes_for_choice,
    _STABLE as stable_for_choice,
)

# Whether a network bends decides which integrator is taken, and how many steps are too few.
from jaxsolve.dynamics.flow._kinks import kinked

# What steps are chosen by: wrong derivatives show in the number of steps alone.
from jaxsolve.dynamics.flow._polar import smoothed_polar

# Its gradient noise is compared with that of batches, weight by weight.
from jaxsolve.dynamics.flow._stochastic_flow import batch_weights

# The modes kept by an integrator, compared with a full eigendecomposition.
from jaxsolve.integrators import _modes as integrators_modes

# Coefficients and stability polynomials, apart from steps.
from jaxsolve.integrators._chebyshev import _chebyshev as chebyshev

# What an integrator knows of the problem, compared with the whole Hessian.
from jaxsolve.integrators._hessian_part import hessian_part

# What an integrator knows of the problem, compared with the whole Jacobian.
from jaxsolve.integrators._kernel_part import frozen_jacobian, JacobianAndModes, kernel_part

# What an integrator knows of the problem, compared with dense matrices.
from jaxsolve.integrators._linear_part import Model, Term
from jaxsolve.integrators._modes import modes, no_modes

# One mode with inertia has a closed form.
from jaxsolve.integrators._oscillator import responses

# `_internal` is what a room offers the others, and not users.
from jaxsolve.kernels._internal import LayeredJacobian

# How samples are cut into batches is seen in memory and time only.
# The door to neural-tangents, whose other implementations are references.
# Costs that decide between two ways of one result, and where others are put in their place.
from jaxsolve.kernels.finite import _batches as batches, _memory as kernel_memory, _use_gram as use_gram

# Where parameters meet data decides which way a kernel is computed.
from jaxsolve.kernels.finite._capture import capture
from jaxsolve.kernels.finite._outputs import Outputs

# One way to a kernel, whatever its cost: `empirical` chooses the cheaper.
from jaxsolve.kernels.finite._structured import structured

# How a kernel is cut into tiles is seen in memory and time only.
from jaxsolve.kernels.finite._tiling import cut_tile, even_tile, Tiling, tilings, written_out
from jaxsolve.kernels.finite._use_gram import costs
from jaxsolve.kernels.wide import _neural_tangents as neural_tangents

# Dual activations, compared with quadrature and with their series.
from jaxsolve.kernels.wide._duals import dual, expand
from jaxsolve.losses._internal import accepts, find_loss

# The layers that networks are made of, in stacks of a test's own.
from jaxsolve.nets._internal import (
    AbstractNormalization,
    Bias,
    Conv,
    Dense,
    find_activation,
    Mask,
    networks_in,
    run,
    SpatialMean,
    StandardizeBatch,
    takes_state,
)

# Layers in an order that no architecture has.
from jaxsolve.nets._layer_register import LayerRegister
from jaxsolve.nets._layers import AveragePool, Flatten, Gain, StandardizeGroups

# In no run are all eigenvalues of an operator negative and few; the rates of an optimizer enter the stability together
# with a Hessian; the critical multiple of an update of a test's own.
from jaxsolve.observe._internal import (
    check_observables,
    critical_multiple,
    largest_eigenvalue,
    least_map,
    response as optimizer_response,
    slope_at,
)

# A figure of a test's own, noise in place of images, and processes that only note what they were asked for, are patched
# in.
from jaxsolve.papers import _catalogue as papers_catalogue, _images as papers_images, _reproduce as papers_reproduce

# Intervals, and exponents fitted to samples.
from jaxsolve.papers._claim import Claim, exponent, mean_over

# The example that several errata share.
from jaxsolve.papers._errata_atanasov_deep import balanced, DEPTH, OUT, SIZE

# An erratum that is made up, to see what its parts do.
from jaxsolve.papers._erratum import Checked, compared, counted, Erratum, matrix_row, relative_error, Row, rows
from jaxsolve.papers._figure import AbstractFigure, Runs

# What the claims of several figures are measured by, on curves of which the answer is known.
from jaxsolve.papers._geiger import collapsing_power, over_seeds, power, when

# What stands in for images that are not on the machine.
from jaxsolve.papers._images import images

# What a figure, a claim and an erratum are made of, and what the command says of them.
from jaxsolve.papers._internal import ALL_ERRATA, document, hours, show_error, tally

# One mode of a deep network, whose closed forms the public classes sum over.
from jaxsolve.papers._kunin_grokking import sooner_upstream

# The claims of theory alone are tried with another theory.
from jaxsolve.papers._rhee import sizes_of as sizes_of_modes

# Which images a figure's task found decides whether its store is carried on.
from jaxsolve.papers._silent import ImageTask, MLPOnImages

# The simulations that errata are judged by must themselves be right.
from jaxsolve.papers._simulate import draw as simulate_draw, follow, linear_problem, time_of_loss
from jaxsolve.papers.schedules._phases import _best as best_schedules

# Numbers as a page holds them, down to the bit.
from jaxsolve.report._numbers import embed, pack
from jaxsolve.sweeps._internal import citation

# What makes two plans the same.
from jaxsolve.sweeps.planning._differences import require_same_plan
from jaxsolve.sweeps.planning._identity import plan_facts

# A plan and the dataset that it would give, without running it.
from jaxsolve.sweeps.planning._plan import LaneOutline, read_plan
from jaxsolve.sweeps.running._runner import Batch as SweepBatch
from jaxsolve.sweeps.store._memory import MemoryStore

# What a closed form returns, made by hand.
from jaxsolve.theory.kunin._piecewise_linear import Neurons
from jaxsolve.theory.linear._deep_mode import half_loss_time, mode_strength

# What a closed form reduces a problem to, made by hand.
from jaxsolve.theory.linear._reduced_balanced import ReducedBalanced


__all__ = [
    "LaneOutline",
    "LayeredJacobian",
    "Mask",
    "accepts",
    "best_schedules",
    "check_observables",
    "citation",
    "find_loss",
    "least_map",
    "networks_in",
    "known_answers",
    "numerics",
    "Checked",
    "Cone",
    "ConfiguredProblem",
    "DEPTH",
    "Formula",
    "ImageTask",
    "JacobianAndModes",
    "LayerRegister",
    "MLPOnImages",
    "matrix_row",
    "MemoryStore",
    "Model",
    "Neurons",
    "OUT",
    "Outputs",
    "ReducedBalanced",
    "Row",
    "rows",
    "Rules",
    "Runs",
    "SIZE",
    "SPACINGS",
    "Steps",
    "SweepBatch",
    "Term",
    "Tiling",
    "both_ways",
    "channels_last",
    "app",
    "balanced",
    "batch_weights",
    "batches",
    "capture",
    "chebyshev",
    "cli_main",
    "closed",
    "collapsing_power",
    "compared",
    "complement",
    "conserved_drift",
    "costs",
    "counted",
    "critical_multiple",
    "cut_tile",
    "depends_on_inputs",
    "dual",
    "embed",
    "encode",
    "equations",
    "even_tile",
    "expand",
    "exponent",
    "fetching",
    "finite_product",
    "first_pairs",
    "follow",
    "follow_pairs",
    "frozen_jacobian",
    "half_loss_time",
    "hessian_part",
    "images",
    "integrated_decay",
    "integrators_modes",
    "kept_programs",
    "kinked",
    "kernel_memory",
    "kernel_part",
    "kinds",
    "labels_draw",
    "largest_eigenvalue",
    "linear_problem",
    "marching",
    "memory",
    "mean_over",
    "rate_for_choice",
    "sizes_for_choice",
    "stable_for_choice",
    "mode_strength",
    "sooner_upstream",
    "modes",
    "neural_tangents",
    "nearest_step",
    "no_modes",
    "one_number",
    "one_thread",
    "opened",
    "optimizer_response",
    "over_seeds",
    "pack",
    "papers_catalogue",
    "papers_images",
    "papers_reproduce",
    "parse_config",
    "phi",
    "problems",
    "plan_facts",
    "power",
    "read",
    "read_plan",
    "relative_error",
    "report",
    "require_key",
    "require_same_plan",
    "require_size",
    "responses",
    "result_code",
    "safe_hypot",
    "shown",
    "simulate_draw",
    "slope",
    "smoothed_polar",
    "sizes_of_modes",
    "slope_at",
    "structured",
    "takes_state",
    "tilings",
    "time_at",
    "time_of_loss",
    "use_gram",
    "when",
    "written_out",
    "AbstractNormalization",
    "AveragePool",
    "Bias",
    "Conv",
    "Dense",
    "Flatten",
    "Gain",
    "SpatialMean",
    "StandardizeBatch",
    "StandardizeGroups",
    "find_activation",
    "run",
    "ALL_ERRATA",
    "AbstractFigure",
    "Claim",
    "Erratum",
    "document",
    "hours",
    "show_error",
    "tally",
]
