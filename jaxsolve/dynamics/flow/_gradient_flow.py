"""Gradient flow."""

import dataclasses
from typing import cast

import diffrax
import equinox as eqx
from jaxtyping import Array, ArrayLike, Float, Int

from ..._core import AbstractChoice, Problem
from ...integrators import AbstractExponential, InertialFunctionSpace
from ...until import AbstractCondition
from ..descent._optimizer import require_scaling
from ._choice import INTEGRATORS, place, possible
from ._flow import AbstractFlow, read_options
from ._integrator import check_integrator
from ._system import AbstractSystem, ExponentialSystem, ParameterSystem


class GradientFlow(AbstractFlow, AbstractChoice):
    """theta_l' = -eta_l dL/dtheta_l, integrated adaptively by diffrax.

    Without an integrator, the one with the fewest predicted operations up to the last time is chosen, by the same rule
    in `js.solve`, `js.compare`, `js.sweep`, `jax.jit` and `jax.vmap`, on every device. Candidates are `diffrax.Tsit5`,
    `integrators.ParameterSpace` (up to 500 parameters, and no more than outputs), `integrators.FunctionSpace` (up to 4
    GB, whatever the memory) and `integrators.RungeKuttaChebyshev`. The prediction uses the stiffness near the start
    times the last time, and the cost of a step. Sizes alone decide if time ends in inf, for plain `losses.Hinge`, and
    in manual stepping: Tsit5 up to 16 outputs on the training set (n c), except for plain hinge, and a stiff method
    above. `docs/how-to-choose.md` gives the reasons; `traj.stats.integrator` names the choice.

    With kinks (relu, hinge losses) every method loses its order: see `docs/how-to-choose.md` for attainable accuracy.

    Arguments:
        integrator: any adaptive diffrax solver of ordinary differential equations; None lets the problem choose.
        rtol, atol: tolerances of a step. None takes 1e-6 and 1e-9 per parameter (float32: 1e-4 and 1e-7).
            `FunctionSpace` and `ParameterSpace` measure errors of whole vectors, relative to the displacement of the
            parameters and to the outputs: their default rtol is 1e-4 (with kinks 1e-2), and they have no atol.
            `RungeKuttaChebyshev` takes 1e-5 and 1e-7 (with kinks, or in float32: 1e-4 and 1e-6).
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: maximum number of steps, accepted and rejected.
        land_on_ts: step exactly on every requested time instead of interpolating. Useful for reference runs: an
            interpolant is often of lower order than its solver.

    Raises:
        ValueError: the integrator gives no error estimate or is not for ordinary differential equations; a tolerance is
            not positive; when used, the network's scaling is for Adam.
        TypeError: the integrator is not a diffrax solver, or `until` is not a condition.

    Warns:
        UserWarning: rtol is too fine for the problem's dtype.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> flow = js.GradientFlow(until=js.until.loss_below(0.1))
        >>> run = js.solve(problem, flow, [0.0, jnp.inf])
        >>> print(f"{run['loss'][1]:.2f}", run.stats.integrator)
        0.10 Tsit5

    See also `js.MomentumFlow` (with momentum), `js.Descent` (steps of a given rate) and `js.exact` (closed form).
    """

    integrator: diffrax.AbstractSolver | None
    rtol: float | None = eqx.field(static=True)  # only changes values, but is never swept
    atol: float | None = eqx.field(static=True)
    until: AbstractCondition | None
    max_steps: int = eqx.field(static=True)
    land_on_ts: bool = eqx.field(static=True)

    def __init__(
        self,
        integrator: diffrax.AbstractSolver | None = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
        land_on_ts: bool = False,
    ):
        if isinstance(integrator, InertialFunctionSpace):
            raise ValueError("InertialFunctionSpace is for momentum: MomentumFlow(tau=...) chooses it automatically")
        self.integrator = None if integrator is None else check_integrator(integrator)
        self.rtol, self.atol, self.until, self.max_steps, self.land_on_ts = read_options(
            rtol, atol, until, max_steps, land_on_ts
        )

    @property
    def name(self) -> str:
        return "GradientFlow" if self.integrator is None else f"GradientFlow({type(self.integrator).__name__})"

    def ways(self, problem: Problem) -> "tuple[GradientFlow, ...]":
        """The same flow with each integrator that may be chosen, or with its own integrator."""
        del problem
        if self.integrator is not None:
            return (self,)
        return tuple(dataclasses.replace(self, integrator=kind()) for kind in INTEGRATORS)

    def possible(self, problem: Problem) -> tuple[int, ...]:
        return (0,) if self.integrator is not None else possible(problem, self.rtol)

    def way(self, problem: Problem, ts: Float[Array, "..."] | None = None) -> Int[ArrayLike, ""]:
        return 0 if self.integrator is not None else place(problem, ts, self.rtol)

    def system(self, problem: Problem) -> AbstractSystem:
        require_scaling(problem, lambda: False)
        integrator = cast(GradientFlow, self.choose(problem)).integrator
        if isinstance(integrator, AbstractExponential):
            return ExponentialSystem(problem, integrator, self.rtol)
        return ParameterSystem(problem, cast(diffrax.AbstractSolver, integrator), self.rtol, self.atol)
