"""Gradient flow with momentum."""

from typing import Any, cast

import diffrax
import equinox as eqx
from jaxtyping import Array, ArrayLike, Float, Int

from ..._checks import one_number
from ..._core import AbstractChoice, Problem
from ...integrators import AbstractExponential, FunctionSpace, HOCHBRUCK_OSTERMANN_3
from ...until import AbstractCondition
from ..descent._optimizer import require_scaling
from ._choice import in_shapes, place_with_inertia
from ._flow import AbstractFlow, read_options
from ._integrator import check_integrator
from ._kinks import kinked
from ._momentum_system import ExponentialMomentumSystem, MomentumSystem, Relaxation
from ._system import AbstractSystem


class MomentumFlow(AbstractFlow, AbstractChoice):
    r"""tau theta_l'' + theta_l' = -eta_l dL/dtheta_l, integrated adaptively by diffrax (Geiger et al. 2020, eq. 6).

    tau is constant, or t/mu. With a constant tau the flow starts at rest, and differs from gradient flow in proportion
    to tau. With tau = t/mu the only finite initial velocity is $\theta'(0) = -\eta \nabla L$. The velocity is an
    average, $\theta'(t) = -\mu t^{-\mu} \int_0^t s^{\mu-1} \eta \nabla L(\theta(s)) ds$, and the difference is
    proportional to 1/mu. Descent with momentum beta at rate r follows the flow with tau = r/(1 - beta)^2.

    The relaxation makes the flow stiff: an explicit integrator needs about t/(3 tau) steps, or mu/3 steps per factor e
    in time. It also resolves every oscillation; a mode of rate lambda > 1/(4 tau) has a period of about 2 pi
    sqrt(tau/lambda). With a constant tau `integrators.FunctionSpace` treats both exactly, as in `GradientFlow`, the
    flow at tau = 0.

    The certificate's energy is L + tau/2 sum_l |theta_l'|^2 / eta_l, which falls at the rate (1 - tau'/2) sum_l
    |theta_l'|^2 / eta_l. With momentum the conserved quantities of gradient flow are not conserved.

    Arguments:
        tau: the relaxation time, > 0, in units of gradient-flow time; an array leaf.
        mu: t/tau, > 0; an array leaf. Exactly one of tau and mu is given.
        integrator: any adaptive diffrax solver of ordinary differential equations, or with a constant tau
            `integrators.FunctionSpace`. None takes the latter where it is predicted to cost less than
            `diffrax.Tsit5()`, as in `GradientFlow`, and there are no kinks and no `until`.
        rtol, atol: tolerances of a step, per parameter and per sqrt(tau) theta'; None takes 1e-6 and 1e-9 (float32:
            1e-4 and 1e-7). For `FunctionSpace` they are as in `GradientFlow`.
        until: stops the run when first met, located within the step; with it `ts` may end in inf. It is checked where
            steps end: a step of `FunctionSpace` may be longer than an oscillation that meets it.
        max_steps: maximum number of steps, accepted and rejected.
        land_on_ts: step exactly on every requested time instead of interpolating.

    Raises:
        ValueError: not exactly one of tau and mu, or it is not a number > 0; the integrator gives no error estimate or
            does not apply, such as `FunctionSpace` with mu; a tolerance is not positive; when used, the network's
            scaling is for Adam.
        TypeError: the integrator is not a diffrax solver, or `until` is not a condition.

    Warns:
        UserWarning: rtol is too fine for the problem's dtype.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> slow, fast = (js.solve(problem, js.MomentumFlow(tau=tau), 0.5)["loss"] for tau in (1.0, 0.1))
        >>> bool(fast < slow < 0.5)  # inertia holds it back
        True

    Reference:
        @article{geiger_disentangling, author={Mario Geiger and Stefano Spigler and Arthur Jacot and Matthieu Wyart},
          title={Disentangling feature and lazy learning in deep neural networks: an empirical study}}
    """

    tau: Float[Array, ""] | None
    mu: Float[Array, ""] | None
    integrator: diffrax.AbstractSolver | None
    rtol: float | None = eqx.field(static=True)  # only changes values, but is never swept
    atol: float | None = eqx.field(static=True)
    until: AbstractCondition | None
    max_steps: int = eqx.field(static=True)
    land_on_ts: bool = eqx.field(static=True)

    def __init__(
        self,
        *,
        tau: Any = None,
        mu: Any = None,
        integrator: diffrax.AbstractSolver | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
        land_on_ts: bool = False,
    ):
        if (tau is None) == (mu is None):
            raise ValueError(
                f"give exactly one of tau (a constant relaxation time) and mu (tau = t/mu), got tau={tau}, mu={mu}"
            )
        hint = "; without momentum, use GradientFlow"
        self.tau, self.mu = (
            None if value is None else one_number(value, name, hint=hint) for name, value in (("tau", tau), ("mu", mu))
        )
        self.integrator = None if integrator is None else check_integrator(integrator)
        if isinstance(integrator, AbstractExponential) and not isinstance(integrator, FunctionSpace):
            raise ValueError(
                "MomentumFlow takes integrators.FunctionSpace(), an integrator of diffrax such as diffrax.Tsit5(), "
                f"or None to choose; got {type(integrator).__name__}"
            )
        if isinstance(integrator, FunctionSpace) and tau is None:
            raise ValueError(
                "FunctionSpace needs a constant relaxation time: give MomentumFlow tau=, or with mu= another integrator"
            )
        self.rtol, self.atol, self.until, self.max_steps, self.land_on_ts = read_options(
            rtol, atol, until, max_steps, land_on_ts
        )

    @property
    def name(self) -> str:
        return f"MomentumFlow({'mu' if self.tau is None else 'tau'})"

    def ways(self, problem: Problem) -> "tuple[MomentumFlow, ...]":
        """The same flow with each integrator that may be chosen, or with its own integrator."""
        if self.integrator is not None:
            return (self,)
        # Inertia makes features move late in a step, not early, so `LOG_TIME_3` has no advantage.
        taken = (diffrax.Tsit5(), FunctionSpace(tableau=HOCHBRUCK_OSTERMANN_3))[: 1 + self._may_be_exact(problem)]
        put = lambda one: eqx.tree_at(lambda f: f.integrator, self, one, is_leaf=lambda leaf: leaf is None)
        return tuple(map(put, taken))

    def possible(self, problem: Problem) -> tuple[int, ...]:
        return tuple(range(len(self.ways(problem))))

    def way(self, problem: Problem, ts: Float[Array, "..."] | None = None) -> Int[ArrayLike, ""]:
        if self.integrator is not None or self.tau is None or not self._may_be_exact(problem):
            return 0
        return place_with_inertia(problem, self.tau, ts, self.rtol)

    def _may_be_exact(self, problem: Problem) -> bool:
        # An oscillation may meet a condition and leave it again within one step of `FunctionSpace`.
        return self.tau is not None and self.until is None and not in_shapes(kinked, problem)

    def system(self, problem: Problem) -> AbstractSystem:
        require_scaling(problem, lambda: False)
        integrator = cast(MomentumFlow, self.choose(problem)).integrator
        if isinstance(integrator, FunctionSpace) and self.tau is not None:
            return ExponentialMomentumSystem(problem, self.tau, integrator, self.rtol)
        integrator = cast(diffrax.AbstractSolver, integrator)
        return MomentumSystem(problem, Relaxation(self.tau, self.mu), integrator, self.rtol, self.atol)
