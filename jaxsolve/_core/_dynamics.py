"""The two kinds of dynamics: closed forms and marches."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from .._checks import concrete
from .._results import RESULTS
from ._certificate import Certificate as Certificate
from ._problem import Problem
from ._validity import Assumption as Assumption, NotApplicable as NotApplicable, Validity as Validity
from ._view import Quantity as Quantity, View as View


class AbstractDynamics(eqx.Module):
    """A law by which parameters or outputs move from a problem's start.

    Subclass `js.AbstractRandomAccess` or `js.AbstractMarching` to write a new one.

    Example:
        >>> [dynamics.name for dynamics in (js.GradientFlow(), js.theory.TwoLayerLine())]
        ['GradientFlow', 'TwoLayerLine']
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name in tables, labels and messages."""

    @property
    @abc.abstractmethod
    def provides(self) -> frozenset[Quantity | str]:
        """The quantities that its views provide; a string names an observable that they provide directly."""

    @abc.abstractmethod
    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        """The times nearest to `ts` at which this dynamics can be observed: the same, or rounded to steps."""


class AbstractStoppable(AbstractDynamics):
    """A dynamics that can stop before the last time, which may therefore be inf.

    Attributes:
        until: the condition, one of `js.until`, or None.
    """

    until: eqx.AbstractVar[Any]


class AbstractStreaming(AbstractDynamics):
    """A dynamics that draws fresh samples at every step if the problem is a stream."""


class AbstractDescending(AbstractDynamics):
    """A dynamics of parameters that descends the problem's `objective`, weight decay included."""


def require_served(problem: Problem, dynamics: AbstractDynamics) -> None:
    """Raises NotApplicable if the problem is a stream, or has weight decay, and the dynamics follows neither."""
    if problem.sampler is not None and not isinstance(dynamics, AbstractStreaming):
        raise NotApplicable(
            f"{dynamics.name} needs a training set, and a stream has none: use js.Descent(..., batch_size=, key=), or "
            "train on the samples that the stream holds, js.Problem(net, stream.x, stream.y)"
        )
    if problem.weight_decay is not None and not isinstance(dynamics, AbstractDescending):
        raise NotApplicable(
            f"{dynamics.name} does not follow weight decay, and this problem has it; take a dynamics of parameters, "
            "such as js.GradientFlow() or js.Descent(...), or leave out weight_decay"
        )


def condition_of(dynamics: AbstractDynamics) -> Any:
    """The condition at which a run stops, or None."""
    return dynamics.until if isinstance(dynamics, AbstractStoppable) else None


class AbstractChoice(AbstractDynamics):
    """A dynamics that becomes one of several once the problem is known, by the same rule wherever it runs."""

    @abc.abstractmethod
    def ways(self, problem: Problem) -> "tuple[AbstractDynamics, ...]":
        """The dynamics that it may become, all of one class; the problem may be traced, or hold shapes only."""

    @abc.abstractmethod
    def possible(self, problem: Problem) -> tuple[int, ...]:
        """The indices into `ways` that the shapes of the problem allow, whatever its numbers."""

    @abc.abstractmethod
    def way(self, problem: Problem, ts: Float[Array, "..."] | None = None) -> Int[ArrayLike, ""]:
        """The index into `ways` of the dynamics to run until the last time; None means inf. All may be traced."""

    def choose(self, problem: Problem, ts: Float[Array, "..."] | None = None) -> "AbstractDynamics":
        """The dynamics to run on a problem; `Undecided` if the choice depends on traced numbers."""
        ways, way = self.ways(problem), self.way(problem, ts)
        known = concrete(way)
        if known is not None:
            return ways[int(known)]
        places = self.possible(problem)
        if len(places) == 1:
            return ways[places[0]]
        marching: Any = tuple(ways[place] for place in places)
        # `way` indexes all ways, the branches only those that the shapes allow.
        return Undecided(self, marching, jnp.argmax(jnp.asarray(places) == way))  # pyright: ignore[reportCallIssue]


class AbstractStandIn(AbstractDynamics):
    """The dynamics that a choice has become, if its class is another; it keeps the name of the choice.

    Attributes:
        source: the choice, as the user made it.
    """

    source: eqx.AbstractVar[AbstractChoice]

    @abc.abstractmethod
    def check(self, problem: Problem) -> Validity:
        """Says whether this dynamics describes the problem, and by how much it misses each assumption."""

    @abc.abstractmethod
    def doubt(self, problem: Problem, final: View) -> str:
        """A sentence on what is wrong with a run whose final view is concrete; empty if nothing is found."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def provides(self) -> frozenset[Quantity | str]:
        return self.source.provides


class Undecided(AbstractStandIn, AbstractStoppable):
    """A choice inside a trace, where its numbers are not known: `march` decides at run time.

    Attributes:
        ways: marching dynamics.
        way: the index of the one to run.
    """

    source: AbstractChoice
    ways: "tuple[AbstractMarching, ...]"
    way: Int[Array, ""]

    @property
    def until(self) -> Any:
        """The condition at which a run stops, or None."""
        return condition_of(self.ways[0])

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return self.ways[0].times(ts)

    def check(self, problem: Problem) -> Validity:
        del problem  # traced, so nothing is known of it
        return Validity(())

    def doubt(self, problem: Problem, final: View) -> str:
        del problem, final  # traced, so nothing is known of them
        return ""


def resolve(dynamics: AbstractDynamics, problem: Problem, ts: Float[Array, "..."] | None = None) -> AbstractDynamics:
    """The dynamics to run on a problem: unlike a choice, it is either a closed form or a march.

    Raises NotApplicable if the problem is a stream and the dynamics needs a training set.
    """
    require_served(problem, dynamics)
    return dynamics.choose(problem, ts) if isinstance(dynamics, AbstractChoice) else dynamics


def is_key(value: Any) -> bool:
    """True if a value is a random key such as `jax.random.key(0)`."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


class AbstractRandomAccess(AbstractDynamics):
    """A closed form: a dynamics that is known at any time without stepping there.

    Example:
        All outputs decay at one rate:

        >>> class Decay(js.AbstractRandomAccess):
        ...     rate: float
        ...
        ...     @property
        ...     def provides(self):
        ...         return frozenset({js.Quantity.OUTPUTS})
        ...
        ...     def check(self, problem):
        ...         return js.theory.TwoLayerLine().check(problem)
        ...
        ...     def at(self, problem, t):
        ...         return js.View(problem, t, given_outputs=jnp.exp(-self.rate * t) * problem.outputs(problem.params))
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.zeros((1, 1)))
        >>> loss = js.solve(problem, Decay(2.0), [0.0, 1.0])["loss"]
        >>> print((jnp.log(loss[0] / loss[1])).round(3))
        4.0
    """

    @property
    def name(self) -> str:
        return type(self).__name__

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return ts

    @abc.abstractmethod
    def check(self, problem: Problem) -> Validity:
        """Says whether this dynamics solves the problem, and by how much it misses each assumption."""

    @abc.abstractmethod
    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        """The problem at time t in [0, inf].

        Raises:
            NotApplicable: the problem is of another kind. A violation in its numbers is left to `check`.
        """


class AbstractState(eqx.Module):
    """The state of a march.

    All leaves are arrays, so that states can be stacked, stored and resumed.

    Attributes:
        done: whether the march has ended.
        steps: the number of steps taken.
        result: how the march has ended, or would if it ended now.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> state = js.GradientFlow().init(problem, jnp.array([1.0]))
        >>> isinstance(state, js.AbstractState), bool(state.done), int(state.steps)
        (True, False, 0)
    """

    done: eqx.AbstractVar[Bool[Array, ""]]
    steps: eqx.AbstractVar[Int[Array, ""]]
    result: eqx.AbstractVar[RESULTS]


class AbstractSavingState(AbstractState):
    """A state that records how many of its save times it has reached.

    Attributes:
        saves: what is saved so far, with the number of times reached as `slot`; None where that is not known.
    """

    saves: eqx.AbstractVar[Any]


class FunctionValues(eqx.Module):
    """The values that a march saves if it moves outputs instead of parameters.

    Attributes:
        outputs, test_outputs: outputs on the training set and on the test set.
        kernel, observations: the kernel, if it moves; observables that the march provides directly, by name.
    """

    outputs: Float[Array, "*times n out"]
    test_outputs: Float[Array, "*times m out"] | None
    kernel: Float[Array, "*times n out n out"] | None = None
    observations: dict[str, Array] | None = None


class Observed(eqx.Module):
    """The values that a march saves if it provides more than its parameters.

    Attributes:
        params: the parameters.
        observations: observables that the march provides directly, by name.
    """

    params: PyTree
    observations: dict[str, Array]


class Stepped(eqx.Module):
    """The values that a descent saves if it keeps the state of its optimizer.

    Attributes:
        params: the parameters.
        optimizer_state: the state of the optimizer after the step that led there.
    """

    params: PyTree
    optimizer_state: PyTree


class March(eqx.Module):
    """The results of a finished march.

    Attributes:
        times: the times of the saved parameters (as given, or rounded to steps).
        saved: the parameters at those times, stacked, or `FunctionValues`, `Observed` or `Stepped`; NaN after a
            failure.
        params: the row of `saved` at the end.
        t_end: the time at which the run ended.
        result, steps, rejected: how the run ended; the numbers of accepted and rejected steps.
        evaluations: the number of gradient evaluations; -1 if unknown.
        certificate: how far the run can be trusted; None if the dynamics does not say.
        kernel: the kernel that `FunctionValues` moved under, or the initial one if it moves.
        kernels: the number of kernel evaluations; None if there were none.
        integrators: the names of the integrators that may have made the steps, if there was a choice.
        way: the index of the one that did; None if only one was possible.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> flow = js.GradientFlow(max_steps=3)
        >>> march = flow.finish(problem, flow.advance(problem, flow.init(problem, jnp.array([9.0])), jnp.asarray(3)))
        >>> isinstance(march, js.March), int(march.steps + march.rejected)
        (True, 3)
    """

    times: Float[Array, " times"]
    saved: PyTree
    params: PyTree
    t_end: Float[Array, ""]
    result: RESULTS
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    evaluations: Int[Array, ""]
    certificate: Certificate | None
    kernel: Float[Array, "n out n out"] | None = None
    kernels: Int[Array, ""] | None = None
    integrators: tuple[str, ...] = eqx.field(static=True, default=())  # text
    way: Int[Array, ""] | None = None
    from_zero: bool = eqx.field(static=True, default=False)  # changes the program

    def view(self, problem: Problem, t: Float[Array, ""], row: PyTree) -> View:
        """The view at time t of one row of `saved`."""
        if isinstance(row, FunctionValues):
            kernel = self.kernel if row.kernel is None else row.kernel
            values = (row.outputs, row.test_outputs, kernel, row.observations)
            return View(problem, t, None, *values, given_initial_kernel=self.kernel, from_zero=self.from_zero)
        if isinstance(row, Observed):
            return View(problem, t, row.params, given_observations=row.observations)
        if isinstance(row, Stepped):
            return View(problem, t, row.params, optimizer_state=row.optimizer_state)
        return View(problem, t, row)


class AbstractMarching(AbstractDynamics):
    """A dynamics that steps from the start through all times up to the last.

    `advance` may be called repeatedly with any numbers of steps: to the last bit, the state does not depend on how the
    steps are grouped. A finished state is left unchanged.

    Example:
        What `solve` does, by hand:

        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> flow = js.GradientFlow(js.integrators.RungeKuttaChebyshev())
        >>> state = flow.init(problem, jnp.array([0.0, 1.0]))
        >>> while not state.done:
        ...     state = flow.advance(problem, state, jnp.asarray(flow.chunk))
        >>> flow.finish(problem, state).times.shape
        (2,)
    """

    @property
    @abc.abstractmethod
    def chunk(self) -> int:
        """The number of steps between two checks of whether a run is done.

        Fewer checks waste up to this many steps at the end of a run; more checks copy the saved parameters more often
        when many runs share a batch.
        """

    @abc.abstractmethod
    def init(self, problem: Problem, ts: Float[Array, " times"]) -> AbstractState:
        """The state at t = 0 of a run that saves at ts."""

    @abc.abstractmethod
    def advance(self, problem: Problem, state: Any, n: Int[Array, ""]) -> Any:
        """The state n steps later."""

    @abc.abstractmethod
    def finish(self, problem: Problem, state: Any) -> March:
        """Turns the state of a run into its results."""


class AbstractStepping(AbstractMarching):
    """A marching dynamics with a faster loop over steps, for a run that shares its loop with no other."""

    @abc.abstractmethod
    def advance_alone(self, problem: Problem, state: Any, n: Int[Array, ""]) -> Any:
        """The same state as `advance`, but the loop ends as soon as the run does."""


def advance_alone(
    problem: Problem, dynamics: AbstractMarching, state: Any, n: Int[ArrayLike, ""]
) -> tuple[Any, Int[Array, ""]]:
    """The state at most n steps later of a run that shares its loop with no other, and the number of steps tried."""
    if isinstance(dynamics, AbstractStepping):
        moved = dynamics.advance_alone(problem, state, jnp.asarray(n))
        return moved, moved.steps - state.steps
    return one_by_one(problem, dynamics, state, n)


def one_by_one(
    problem: Problem, dynamics: AbstractMarching, state: Any, n: Int[ArrayLike, ""]
) -> tuple[Any, Int[Array, ""]]:
    """The same by single steps, with a check before each."""
    one = jnp.ones((), int)
    going = lambda carry: ~carry[0].done & (carry[1] < n)
    onward = lambda carry: (dynamics.advance(problem, carry[0], one), carry[1] + 1)
    return jax.lax.while_loop(going, onward, (state, jnp.zeros((), int)))


class AbstractGrowing(AbstractMarching):
    """A marching dynamics with a faster form in smaller arrays, which most runs do not outgrow.

    Outside a trace, a run starts in the smaller form and restarts in this one if needed; inside, only this one runs.
    """

    @abc.abstractmethod
    def smaller(self, problem: Problem) -> "AbstractGrowing | None":
        """The form in smaller arrays; None for problems that have none."""

    @abc.abstractmethod
    def outgrown(self, state: Any) -> bool:
        """True if a concrete state of this form has run out of room."""
