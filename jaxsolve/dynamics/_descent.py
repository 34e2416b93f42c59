"""Descent in steps, by any optax optimiser."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from .. import nets
from .._checks import concrete, describe, require_size
from .._clock import step_at, time_at, time_per_step
from .._dynamics import AbstractMarching, AbstractState, is_key, March, Quantity, View
from .._problem import Problem
from .._results import RESULTS
from .._safe import nonzero
from ..nets import Optimisers
from ..until import AbstractCondition
from ._saves import empty_saves, hold, Saves


# A gradient that clipping would cut, squares of which float32 holds.
LARGE = 1e6


class DescentState(AbstractState):
    """Where a descent stands."""

    params: PyTree
    optimizer_state: PyTree
    limit: Float[Array, ""]  # a loss above it has diverged
    targets: Int[Array, " times"]  # the steps to save at
    saves: Saves
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS


class Descent(AbstractMarching):
    """Steps of an optax optimiser; per-layer eta multiplies its updates.

    Parameters are saved at step round(t/rate), and `traj.ts` says which time that is. A step of rate r stands for the
    gradient-flow time r; with momentum beta, for r/(1 - beta).

    A run has diverged when its parameters or its loss are not finite, or when the training loss exceeds
    `divergence_factor` times the larger of the loss at the start and that of f = 0. It ends before the step that shows
    this, at its last finite parameters. A batch of b out of n samples is counted as b/n of the training loss, which
    overstates no loss >= 0; after the last step the full batch decides. Runs that come back stay far below: the highest
    catapult that converges lifts the loss about 4 * width times (Lewkowycz et al. 2020, their two-layer linear model
    iterated). An optimiser whose steps do not grow with the gradient (Adam, clipping) can come back from any loss, so
    for it only numbers that are not finite count.

    Arguments:
        factory: makes the optimiser from the rate, such as `optax.sgd` or `optax.adam`.
        rate: the learning rate, > 0; an array leaf.
        batch_size: samples per step, drawn without replacement and reshuffled every epoch (an incomplete last batch is
            left out); None takes the full batch.
        key: for the batches; needed with `batch_size`. In a sweep each lane has one of its own (`docs/sweeps.md`).
        momentum: passed to the factory as `momentum=` if not zero, and to the clock.
        until: stops the run when the full-batch condition is met after a step.
        max_steps: steps before the run is given up.
        divergence_factor: growth of the loss, > 1, at which a run has diverged; inf waits for overflow.

    Raises:
        TypeError: the factory is not callable, or does not make an optax optimiser; key is no `jax.random.key`.
        ValueError: the rate is not positive; divergence_factor is not above 1; batch_size without a key, or larger than
            the training set; a scaling that was made for another kind of optimiser (mup).
    """

    rate: Float[Array, ""]
    key: Key[Array, ""] | None
    until: AbstractCondition | None
    factory: Callable[..., optax.GradientTransformation] = eqx.field(static=True)  # a function
    batch_size: int | None = eqx.field(static=True)  # a shape
    momentum: float = eqx.field(static=True)  # zero or not changes the optimiser's state
    max_steps: int = eqx.field(static=True)
    divergence_factor: float = eqx.field(static=True)  # decides nothing but when to stop, yet is never swept

    def __init__(
        self,
        factory: Callable[..., optax.GradientTransformation],
        rate: Any,
        *,
        batch_size: int | None = None,
        key: Key[Array, ""] | None = None,
        momentum: float = 0.0,
        until: AbstractCondition | None = None,
        max_steps: int = 10_000_000,
        divergence_factor: float = 1e9,
    ):
        if not callable(factory):
            raise TypeError(
                f"factory must make an optax optimiser from a rate, such as optax.sgd; got {describe(factory)}"
            )
        known = concrete(rate)
        if known is not None and not (known.ndim == 0 and np.isfinite(known) and known > 0):
            raise ValueError(f"rate must be one finite number > 0, got {rate}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        if (batch_size is None) != (key is None):
            raise ValueError("batch_size and key go together: give both for mini-batches, neither for the full batch")
        if key is not None and not is_key(key):
            raise TypeError(f"key must be one such as jax.random.key(0), or None, got {describe(key)}")
        if until is not None and not isinstance(until, AbstractCondition):
            raise TypeError(f"until must be a condition such as until.loss_below(1e-5), or None, got {describe(until)}")
        if not divergence_factor > 1:
            raise ValueError(f"divergence_factor must be above 1 (inf for none), got {divergence_factor}")
        self.factory = factory
        self.rate = jax.lax.convert_element_type(jnp.asarray(rate), jnp.result_type(float))
        self.batch_size = None if batch_size is None else require_size(batch_size, "batch_size")
        self.key = key
        self.momentum = float(momentum)
        self.until = until
        self.max_steps = require_size(max_steps, "max_steps")
        self.divergence_factor = float(divergence_factor)

    @property
    def name(self) -> str:
        return f"Descent({getattr(self.factory, '__name__', 'custom')})"

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    @property
    def _per_step(self) -> Float[Array, ""]:
        return time_per_step(self.rate, self.momentum)

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        per_step = self._per_step.astype(ts.dtype)
        return jnp.where(jnp.isinf(ts), ts, time_at(self._targets(ts), per_step))

    def _targets(self, ts: Float[Array, " times"]) -> Int[Array, " times"]:
        # Steps past max_steps are never reached; capping them keeps the count of steps within the integers.
        per_step, beyond = self._per_step.astype(ts.dtype), self.max_steps + 1
        reachable = ts < per_step * beyond
        return jnp.where(reachable, step_at(jnp.where(reachable, ts, 0), per_step), beyond)

    def _optimizer(self, dtype: Any) -> optax.GradientTransformation:
        rate = self.rate.astype(dtype)
        optimizer = self.factory(rate, momentum=self.momentum) if self.momentum else self.factory(rate)
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(f"factory must return an optax optimiser, got {describe(optimizer)}")
        return optimizer

    @property
    def chunk(self) -> int:
        return 16

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> DescentState:
        params, dtype = problem.params, problem.x.dtype
        optimizer = self._optimizer(dtype)
        self._check(problem, optimizer)
        ts = ts.astype(dtype)
        targets = self._targets(ts)
        start = jax.tree.map(
            lambda leaf, p: jnp.where(targets.reshape((-1,) + (1,) * p.ndim) == 0, p[None], leaf),
            empty_saves(ts, params).saved,
            params,
        )
        saves = Saves(self.times(ts), start, jnp.sum(targets == 0))
        f = problem.outputs(params)
        loss = problem.loss.value(f, problem.y)
        alive = jnp.isfinite(loss)
        met = alive & problem.valid & self._condition_met(problem, jnp.zeros((), dtype), params)
        result = RESULTS.where(alive, self._in_time(), RESULTS.diverged)
        result = RESULTS.where(met, RESULTS.event, result)
        state = DescentState(
            params=params,
            optimizer_state=optimizer.init(params),
            limit=jnp.where(_grows(optimizer, params), self._limit(problem, f, loss), jnp.inf),
            targets=targets,
            saves=saves,
            steps=jnp.zeros((), int),
            done=~alive | ~problem.valid | met | saves.complete,
            result=RESULTS.where(problem.valid, result, RESULTS.invalid),
        )
        return jax.tree.map(jnp.asarray, state)

    def _in_time(self) -> RESULTS:
        return RESULTS.successful if self.until is None else RESULTS.max_time

    def _limit(self, problem: Problem, f: Float[Array, "n out"], loss: Float[Array, ""]) -> Float[Array, ""]:
        # A start that fits has no scale of its own: that of the targets is the loss of f = 0.
        of_zero = jnp.abs(problem.loss.value(jnp.zeros_like(f), problem.y))
        scale = jnp.maximum(jnp.abs(loss), jnp.where(jnp.isfinite(of_zero), of_zero, 0))
        return jnp.where(scale > 0, self.divergence_factor * nonzero(scale), jnp.inf)

    def _check(self, problem: Problem, optimizer: optax.GradientTransformation) -> None:
        samples = problem.x.shape[0]
        if self.batch_size is not None and self.batch_size > samples:
            raise ValueError(f"batch_size is {self.batch_size}, but the training set has {samples} samples")
        if not isinstance(problem.net, nets.AbstractNetwork):
            return
        wanted = problem.net.scaling.optimisers
        if wanted is Optimisers.ANY:
            return
        kind = Optimisers.ADAM if _ignores_gradient_scale(self.factory) else Optimisers.GRADIENT
        if kind is not wanted:
            raise ValueError(
                f"this network's scaling is mup for {wanted.value}, but the optimiser behaves like {kind.value}; "
                f"use nets.Scaling.mup(adam={kind is Optimisers.ADAM})"
            )

    def _condition_met(self, problem: Problem, t: Array, params: PyTree) -> Bool[Array, ""]:
        if self.until is None:
            return jnp.array(False)
        return self.until.value(View(problem, t, params)) <= 0

    def advance(self, problem: Problem, state: DescentState, n: Int[Array, ""]) -> DescentState:
        optimizer = self._optimizer(problem.x.dtype)
        return jax.lax.fori_loop(0, n, lambda _, s: self._step(problem, optimizer, s), state)

    def _step(self, problem: Problem, optimizer, state: DescentState) -> DescentState:
        value, gradient = jax.value_and_grad(lambda p: self._batch_loss(problem, p, state.steps))(state.params)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = jax.tree.map(lambda p, rate, u: p + rate * u.astype(p.dtype), state.params, problem.eta, updates)
        steps = state.steps + 1
        # The loss is that before the step. A step that fails is not taken.
        finite = jnp.isfinite(value) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(p)) for p in jax.tree.leaves(params)]))
        failed = ~finite | (value * self._share(problem) > state.limit)
        active = ~state.done & ~failed
        index = jnp.searchsorted(state.targets, steps)
        last = state.targets.shape[0] - 1
        due = active & (state.targets[jnp.minimum(index, last)] == steps) & (index <= last)
        row = jnp.where(due, index, last + 1)
        saved = jax.tree.map(lambda buffer, p: buffer.at[row].set(p, mode="drop"), state.saves.saved, params)
        slot = jnp.where(active, jnp.sum(state.targets <= steps), state.saves.slot)
        saves = Saves(state.saves.times, saved, slot)

        met = self._condition_met(problem, self._time(problem, steps), params)
        exhausted = (steps >= self.max_steps) & ~saves.complete
        result = RESULTS.where(exhausted, RESULTS.max_steps, state.result)
        result = RESULTS.where(met, RESULTS.event, result)
        new = DescentState(
            params=params,
            optimizer_state=optimizer_state,
            limit=state.limit,
            targets=state.targets,
            saves=state.saves,
            steps=steps,
            done=met | saves.complete | exhausted,
            result=result,
        )
        kept = jax.tree.map(lambda a, b: jnp.where(active, a, b), new, state)
        result = RESULTS.where(failed & ~state.done, RESULTS.diverged, kept.result)
        # The buffer has masked its own writes: selecting it whole would copy it at every step.
        return eqx.tree_at(lambda s: (s.saves, s.done, s.result), kept, (saves, kept.done | failed, result))

    def _time(self, problem: Problem, steps: Int[Array, ""]) -> Float[Array, ""]:
        return time_at(steps, self._per_step.astype(problem.x.dtype))

    def _share(self, problem: Problem) -> float:
        """The part of the training loss that the samples of a step carry, if they are no worse than the others."""
        return 1.0 if self.batch_size is None else self.batch_size / problem.x.shape[0]

    def _batch_loss(self, problem: Problem, params: PyTree, step: Int[Array, ""]) -> Float[Array, ""]:
        if self.batch_size is None or self.key is None:  # they go together
            return problem.objective(params)
        samples = problem.x.shape[0]
        per_epoch = samples // self.batch_size
        epoch, batch = step // per_epoch, step % per_epoch
        order = jr.permutation(jr.fold_in(self.key, epoch), samples)
        chosen = jax.lax.dynamic_slice_in_dim(order, batch * self.batch_size, self.batch_size)
        return _restrict(problem, chosen).objective(params)

    def finish(self, problem: Problem, state: DescentState) -> March:
        t_end = self._time(problem, state.steps)
        # No step has looked at the loss after the last one.
        loss = problem.objective(state.params)
        known = (state.result == RESULTS.event) | (state.result == RESULTS.invalid) | ~state.done
        fine = jnp.isfinite(loss) & (loss <= state.limit)
        result = RESULTS.where(known | fine, state.result, RESULTS.diverged)
        # Times that round to one step share the row that its first time has saved.
        first = jnp.searchsorted(state.targets, state.targets)
        saves = Saves(state.saves.times, jax.tree.map(lambda leaf: leaf[first], state.saves.saved), state.saves.slot)
        held = (state.result == RESULTS.event) & (state.targets > state.steps)
        return March(
            times=saves.times,
            saved=hold(saves, state.params, held),
            params=state.params,
            t_end=t_end,
            result=result,
            steps=state.steps,
            rejected=jnp.zeros_like(state.steps),
            evaluations=state.steps,
            certificate=None,
        )


def _restrict(problem: Problem, chosen: Int[Array, " batch"]) -> Problem:
    """The problem whose training set is some of the samples: a network with state takes its statistics from them."""
    fields = lambda p: (p.x, p.y, p.initial)
    parts = (problem.x[chosen], problem.y[chosen], None)
    batch = eqx.tree_at(fields, problem, parts, is_leaf=lambda leaf: leaf is None)
    if problem.initial is None:
        return batch
    initial = problem.initial[chosen] if problem.state is None else batch.outputs(problem.params)
    return eqx.tree_at(lambda p: p.initial, batch, initial, is_leaf=lambda leaf: leaf is None)


def _grows(optimizer: optax.GradientTransformation, params: PyTree) -> Bool[Array, ""]:
    """Whether doubling a large gradient changes the first update: of SGD, not of Adam and its kin, nor if clipped."""
    start = optimizer.init(params)
    with jax.numpy_dtype_promotion("standard"):
        one, two = (
            optimizer.update(jax.tree.map(lambda p, size=size: jnp.full_like(p, size), params), start, params)[0]
            for size in (LARGE, 2 * LARGE)
        )
        changes = jax.tree.map(lambda a, b: jnp.any(jnp.abs(b - a) > 1e-3 * jnp.abs(a)), one, two)
    return jnp.any(jnp.stack(jax.tree.leaves(changes)))


def _ignores_gradient_scale(factory: Callable[..., optax.GradientTransformation]) -> bool:
    """Whether the first update stays the same when the gradient is doubled: Adam and its kin, not SGD."""
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        optimizer = factory(1.0)
        start = jnp.ones(3)
        updates: list[Any] = [
            optimizer.update(scale * jnp.array([1.0, -2.0, 3.0]), optimizer.init(start), start)[0]
            for scale in (1.0, 2.0)
        ]
        return bool(jnp.allclose(*updates, rtol=1e-3))
