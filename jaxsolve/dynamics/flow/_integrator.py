"""A user's diffrax solver, adapted to single steps."""

import warnings
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float, Int

from ..._checks import describe, see
from ..._core import Problem
from ...nets import AbstractDense


class ParameterNorm(eqx.Module):
    """The root mean square over a network's own parameters, for a state whose last entry is an energy.

    Averaging over the zeros that pad a network would hide errors.

    Attributes:
        padding: number of parameters in the arrays, over the number in the network.
    """

    padding: float | Float[Array, ""]

    def __init__(self, problem: Problem):
        self.padding = problem.net.padding if isinstance(problem.net, AbstractDense) else 1.0

    def __call__(self, y: Float[Array, " state"]) -> Float[Array, ""]:
        # A mean over all entries, of which a padded network has many zeros, rescaled to the network's own parameters.
        return optx.rms_norm(y[:-1]) * self.padding**0.5


def check_integrator(integrator: Any) -> diffrax.AbstractSolver:
    """Returns the integrator if it is an adaptive solver of ordinary differential equations; raises otherwise."""
    if not isinstance(integrator, diffrax.AbstractSolver):
        raise TypeError(f"integrator must be a diffrax solver such as diffrax.Tsit5(), got {describe(integrator)}")
    if integrator.term_structure not in (diffrax.AbstractTerm, diffrax.ODETerm):
        raise ValueError(f"{type(integrator).__name__} is not a solver for one ordinary differential equation")
    if not isinstance(integrator, diffrax.AbstractAdaptiveSolver):
        name = type(integrator).__name__
        raise ValueError(
            f"{name} gives no error estimate; use an adaptive solver such as diffrax.Tsit5(), or "
            f"diffrax.HalfSolver(diffrax.{name}())"
        )
    return integrator


def tolerances(rtol: float | None, atol: float | None, dtype: Any) -> tuple[float, float]:
    """The tolerances, or their defaults for this dtype. Warns if rtol is too fine for the dtype."""
    eps = float(jnp.finfo(dtype).eps)
    coarse = eps > 1e-10
    rtol = (1e-4 if coarse else 1e-6) if rtol is None else rtol
    atol = (1e-7 if coarse else 1e-9) if atol is None else atol
    if rtol < 10 * eps:
        warnings.warn(
            f"rtol={rtol:g} is finer than {jnp.dtype(dtype).name} resolves (about {10 * eps:.1e}); use a looser "
            "tolerance, or float64: jax.config.update('jax_enable_x64', True)" + see("finer-than-float32"),
            stacklevel=2,
        )
    return rtol, atol


def controller(problem: Problem, rtol: float | None, atol: float | None, norm: Any = None) -> diffrax.PIDController:
    """A controller that chooses steps by the errors of parameters, or by another norm."""
    rtol, atol = tolerances(rtol, atol, problem.dtype)
    norm = ParameterNorm(problem) if norm is None else norm
    return diffrax.PIDController(rtol=rtol, atol=atol, norm=norm, pcoeff=0.3, icoeff=0.4)


class AbstractScaledController(diffrax.AbstractStepSizeController):
    """Chooses steps by an error in units of the tolerance, measured by a subclass."""

    @property
    def _rule(self) -> diffrax.PIDController:
        # The states passed below are zeros, so errors, which are already scaled, are divided by atol alone.
        return diffrax.PIDController(rtol=0.0, atol=1.0, pcoeff=0.3, icoeff=0.4)

    def wrap(self, direction: Any) -> Any:
        del direction
        return self

    def init(self, terms, t0, t1, y0: Any, dt0, args, func, error_order):
        return self._rule.init(terms, t0, t1, y0, dt0, args, func, error_order)

    def adapt_by(self, error: Float[Array, ""], t0, t1, args, error_order, controller_state):
        """The return value of `adapt_step_size` after a step from t0 to t1 with this error."""
        zero = jnp.zeros_like(error)
        return self._rule.adapt_step_size(t0, t1, zero, zero, args, error, error_order, controller_state)


def prepare(integrator: diffrax.AbstractSolver, controller: diffrax.PIDController) -> diffrax.AbstractSolver:
    """The integrator; an implicit one solves its equations to the step tolerance unless it has its own tolerances."""
    solver = _forward_differentiable(integrator)
    if not isinstance(solver, diffrax.AbstractImplicitSolver):
        return solver
    finder = solver.root_finder
    unset = tuple(name for name in ("rtol", "atol", "norm") if _inherited(getattr(finder, name, 0.0)))
    wanted = [getattr(controller, name) for name in unset]
    return eqx.tree_at(lambda s: [getattr(s.root_finder, name) for name in unset], solver, wanted)


def gradient_evaluations(solver: diffrax.AbstractSolver, attempts: Int[Array, ""]) -> Int[Array, ""]:
    """Gradient evaluations of this many attempted steps; -1 for solvers that are not explicit Runge-Kutta."""
    if not isinstance(solver, diffrax.AbstractERK) or not isinstance(solver.tableau, diffrax.ButcherTableau):
        return jnp.full((), -1, attempts.dtype)
    shared = int(solver.tableau.fsal)  # the last stage of a step is the first of the next
    return attempts * (solver.tableau.num_stages - shared) + shared + 2  # 2 to choose the first step


def _forward_differentiable(solver: diffrax.AbstractSolver) -> diffrax.AbstractSolver:
    # By default diffrax loops over stages in a way that only reverse mode can differentiate. A march is a loop of
    # unknown length, which only forward mode can differentiate.
    if isinstance(solver, diffrax.HalfSolver):
        return diffrax.HalfSolver(_forward_differentiable(solver.solver))
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None:
        return eqx.tree_at(lambda s: s.scan_kind, solver, "lax", is_leaf=lambda leaf: leaf is None)
    return solver


def _inherited(tolerance: Any) -> bool:
    # diffrax marks a root finder's unset tolerances with a private object that is neither a number nor a norm.
    return not isinstance(tolerance, float | int | Array) and not callable(tolerance)
