"""Integrators for gradient flow as diffrax solvers; `js.GradientFlow` chooses among them."""

from ._chebyshev import RungeKuttaChebyshev as RungeKuttaChebyshev
from ._controller import DisplacementController as DisplacementController
from ._exponential import AbstractExponential as AbstractExponential
from ._function_space import FunctionSpace as FunctionSpace
from ._inertial_function_space import InertialFunctionSpace as InertialFunctionSpace
from ._parameter_space import ParameterSpace as ParameterSpace
from ._tableau import HOCHBRUCK_OSTERMANN_3 as HOCHBRUCK_OSTERMANN_3, KROGSTAD as KROGSTAD, LOG_TIME_3 as LOG_TIME_3
