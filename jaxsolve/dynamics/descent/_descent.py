"""Discrete descent by any optax optimizer."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from ..._checks import (
    attempt,
    concrete,
    describe,
    is_real,
    one_number,
    require_flag,
    require_key,
    require_size,
    require_steps,
)
from ..._core import (
    AbstractDescending,
    AbstractSavingState,
    AbstractStepping,
    AbstractStoppable,
    AbstractStreaming,
    fresh,
    is_key,
    March,
    one_by_one,
    Problem,
    Quantity,
    Stepped,
    View,
)
from ..._numerics import all_finite, Inputs, nonzero, samples_in, take_samples
from ..._programs import channels_last
from ..._results import RESULTS
from ...data import AbstractAugmentation
from ...until import AbstractCondition
from ...until._internal import fits
from .._marching import (
    at_last_time,
    check_until,
    chosen,
    empty_saves,
    hold,
    is_met,
    later,
    nearest_step,
    Saves,
    time_at,
)
from ._batches import HostBatches
from ._optimizer import first_state, grows, ignores_gradient_scale, Optimizer, require_scaling
from ._rate import require_visible, time_of_step
from ._schedule import last_moving, nearest_steps, Schedule


class DescentState(AbstractSavingState):
    """The state of a descent."""

    t: Float[Array, ""]
    per_step: Float[Array, ""]  # the time of one step, 0 with a schedule
    lost: Float[Array, ""]  # rounding error of t, where the rates of a schedule are summed
    params: PyTree
    optimizer_state: PyTree
    value: Float[Array, ""]  # the loss before the last step; 0 at the start
    scale: Float[Array, ""]  # of losses, besides the first loss
    limit: Float[Array, ""]  # a loss above it means divergence; set by the first step
    targets: Int[Array, " times"]  # the steps to save at
    last: Int[Array, ""]  # the last step before the run is stopped
    order: Int[Array, " samples"] | None  # order of the samples in this epoch; None for the full batch
    saves: Saves
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS


class Descent(AbstractStoppable, AbstractDescending, AbstractStreaming, AbstractStepping):
    """Steps of an optax optimizer; per-layer eta multiplies its updates.

    A step of rate r stands for the gradient-flow time r, or r/(1 - beta) with momentum beta. Parameters are saved after
    the step that ends nearest to each requested time; `traj.ts` holds the times of these steps.

    The rate of SGD (with momentum, also Nesterov), Adam, AdamW, Lion and Muon is found when needed, from the
    optimizer's response to known gradients. Weight decay and clipping may be added; a clipped step counts as a full
    step. For any other optimizer, and for schedules, including those inside an optimizer, give `rate`.

    As usual in Equinox, arrays inside an optimizer are traced and Python numbers are static: for many rates in a row,
    `optax.sgd(jnp.asarray(rate))` is compiled once. An optimizer that holds a custom function is recompiled whenever it
    is recreated.

    A run has diverged when its parameters or its loss are not finite, or when the training loss exceeds
    `divergence_factor` times the larger of the initial loss and the loss of f = 0. It ends before the step that shows
    this, at its last finite parameters. A batch of b out of n samples counts as b/n of the training loss, which does
    not overstate a loss >= 0. The first batch gives the initial loss, and after the last step the full batch decides; a
    batch of a stream is not scaled. Runs that recover stay far below: the highest catapult that converges multiplies
    the loss by about 4 * width (Lewkowycz et al. 2020, their two-layer linear model iterated). An optimizer whose steps
    do not grow with the gradient (Adam, clipping) can recover from any loss, so only nonfinite numbers count as
    divergence. One without a first update, such as `optax.MultiSteps`, counts as growing.

    Arguments:
        optimizer: an optax transformation, such as `optax.sgd(0.1)` or `optax.adam(1e-3)`.
        batch_size: samples per step, drawn without replacement and reshuffled every epoch (an incomplete last batch is
            left out); None takes the full batch. For a `js.Stream`, the number drawn anew at each step.
        key: random key for the batches, the augmentation and the noise; required with any of them. In a sweep each lane
            has its own key (`docs/sweeps.md`).
        until: stops the run after the first step that meets the condition, on the full batch.

    Other Arguments:
        augmentation: a random change of the inputs of each step, such as `js.data.flip_and_crop()`. Losses and
            observables use the original inputs.
        noise: the network in training mode, if it is random, such as with dropout: a function of the network, one
            sample and a key, `lambda net, x, key: eqx.nn.inference_mode(net, False)(x, key=key)`. The problem holds the
            network in inference mode, and losses and observables use that. For a network with state it is called as
            `noise(net, x, state, key)` and returns (out, state).
        batches: any iterable of pairs (x, y) on the host, all of one shape, such as a grain loader, for data that do
            not fit on the device; replaces batch_size and key. It is iterated from within the run, so it should create
            pairs with NumPy. Each step takes the next pair. A loader or a list restarts at its end, and a run continues
            where the last one stopped. The problem then holds the observed samples. Not in sweeps, whose lanes would
            share them.
        rate: the gradient-flow time of a step, a number > 0 or a function of the number of steps made so far, such as
            the optimizer's own schedule (with momentum beta, divided by 1 - beta). None if the optimizer reveals it.
        keep_state: whether to save the optimizer's state with the parameters, for `js.observe.critical_rate` and
            `stability` of an optimizer with state. With Adam the saved times take three times the memory.
        max_steps: maximum number of steps; with a schedule that ends at zero, at most the steps before that.
        divergence_factor: growth of the loss, > 1, that counts as divergence; inf waits for overflow.

    Raises:
        TypeError: the optimizer is not an optax transformation; key is not a `jax.random.key`; `until` is not a
            condition; augmentation is not from `js.data`; noise is not a function.
        ValueError: the optimizer does not reveal its rate, and none is given (for some, raised only when used); the
            rate is not positive; divergence_factor is not above 1; batch_size, an augmentation or noise without a key;
            noise whose output does not match the network's; a batch_size larger than the training set; a scaling for a
            different kind of optimizer (mup).

    Example:
        >>> import optax
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> js.solve(problem, js.Descent(optax.sgd(0.25)), [0.0, 1.1, 2.0]).ts
        Array([0., 1., 2.], dtype=float...)
        >>> rate = optax.cosine_decay_schedule(0.1, 20)
        >>> js.Descent(optax.adam(rate), rate=rate).steps(jnp.array([0.1, 0.9]))
        Array([ 1, 11], dtype=int...)
    """

    optimizer: Optimizer
    given_rate: Float[Array, ""] | None
    schedule: Schedule | None
    key: Key[Array, ""] | None
    until: AbstractCondition | None
    augmentation: AbstractAugmentation | None
    noise: Callable[..., Any] | None = eqx.field(static=True)  # a function
    batches: HostBatches | None = eqx.field(static=True)  # on the host
    batch_size: int | None = eqx.field(static=True)  # a shape
    keep_state: bool = eqx.field(static=True)  # changes the program
    max_steps: int = eqx.field(static=True)
    divergence_factor: float = eqx.field(static=True)  # only decides when to stop, but is never swept

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        *,
        rate: Any = None,
        batch_size: int | None = None,
        key: Key[Array, ""] | None = None,
        until: AbstractCondition | None = None,
        augmentation: AbstractAugmentation | None = None,
        noise: Callable[..., Any] | None = None,
        batches: Iterable[tuple[Any, Any]] | None = None,
        keep_state: bool = False,
        max_steps: int = 10_000_000,
        divergence_factor: float = 1e9,
    ):
        if augmentation is not None and not isinstance(augmentation, AbstractAugmentation):
            raise TypeError(
                f"augmentation must be a function such as js.data.flip_and_crop(), got {describe(augmentation)}"
            )
        if augmentation is not None and key is None:
            raise ValueError("an augmentation draws at random: give key= too, such as jax.random.key(0)")
        if noise is not None and not callable(noise):
            raise TypeError(f"noise must be a function of a network, one sample and a key, got {describe(noise)}")
        if noise is not None and key is None:
            raise ValueError("noise draws at random: give key= too, such as jax.random.key(0)")
        if batches is not None and batch_size is not None:
            raise ValueError("batches= sets the batch size: give either batches=, or batch_size= with key=")
        if augmentation is None and noise is None and (batch_size is None) != (key is None):
            raise ValueError("batch_size and key go together: give both for mini-batches, neither for the full batch")
        if key is not None:
            if not is_key(key):
                raise TypeError(f"key must be a JAX random key such as jax.random.key(0), or None, got {describe(key)}")
            require_key(key)
        factor_known = concrete(divergence_factor)
        if factor_known is None or factor_known.ndim or not is_real(factor_known):
            raise TypeError(f"divergence_factor must be one number above 1, got {describe(divergence_factor)}")
        if not divergence_factor > 1:
            raise ValueError(f"divergence_factor must be above 1 (inf for none), got {divergence_factor}")
        self.optimizer = Optimizer(optimizer)
        self.schedule = Schedule(rate) if callable(rate) else None
        self.given_rate = None if rate is None or callable(rate) else one_number(rate, "rate")
        if rate is None:
            require_visible(self.optimizer)
        self.batch_size = None if batch_size is None else require_size(batch_size, "batch_size")
        self.key, self.augmentation, self.noise = key, augmentation, noise
        self.batches = None if batches is None else HostBatches(batches)
        self.until = check_until(until)
        self.max_steps, self.keep_state = require_steps(max_steps), require_flag(keep_state, "keep_state")
        self.divergence_factor = float(divergence_factor)

    @property
    def name(self) -> str:
        return f"Descent({self.optimizer.name})"

    @property
    def rate(self) -> Float[Array, ""] | None:
        """The gradient-flow time of a step, None with a schedule. It is determined anew at each access."""
        if self.schedule is not None or self.given_rate is not None:
            return self.given_rate
        return time_of_step(self.optimizer)

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def _per_step(self, dtype: Any) -> Float[Array, ""]:
        rate = self.rate
        return jnp.asarray(0.0 if rate is None else rate, dtype)

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return self._nearest(ts, self._per_step(ts.dtype))[1]

    def steps(self, ts: Float[Array, " times"]) -> Int[Array, " times"]:
        """The number of steps after which each time is observed; `max_steps + 1` for times that are never reached."""
        return self._nearest(ts, self._per_step(ts.dtype))[0]

    def _nearest(self, ts: Float[Array, " times"], per_step: Float[Array, ""]) -> tuple[Array, Array, Array]:
        if self.schedule is not None:
            return nearest_steps(self.schedule, ts, self.max_steps)
        return *nearest_step(ts, per_step, self.max_steps), jnp.asarray(self.max_steps)

    def _last(self, dtype: Any) -> Int[Array, ""]:
        """The last step at which a condition may be met."""
        if self.schedule is None:
            return jnp.asarray(self.max_steps)
        return last_moving(self.schedule, self.max_steps, dtype)

    @property
    def chunk(self) -> int:
        return 16

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> DescentState:
        params, dtype = problem.params, problem.dtype
        self._check(problem)
        # The optimizer's arrays may have a different precision than the network's.
        optimizer, per_step = self.optimizer.astype(dtype), self._per_step(dtype)
        ts = ts.astype(dtype)
        targets, times, last = self._nearest(ts, per_step)
        optimizer_state = jax.tree.map(jnp.asarray, first_state(optimizer, params))
        # A step saves the parameters after it, so times nearest to the start are saved here.
        row = self._row(params, optimizer_state)
        start = jax.tree.map(
            lambda leaf, p: jnp.where(targets.reshape((-1,) + (1,) * p.ndim) == 0, p[None], leaf),
            empty_saves(ts, row).saved,
            row,
        )
        unknown = jnp.isnan(times)  # past a rate that is not a number
        saves = Saves(jnp.where(unknown, ts, times), start, jnp.sum(targets == 0))
        zero = jnp.zeros((), dtype)
        valid = problem.valid & fits(self.until, problem)
        if self.schedule is None:  # a traced rate may be any number
            valid &= jnp.isfinite(per_step) & (per_step > 0)
        elif self.until is None:  # otherwise it may end earlier
            valid &= ~jnp.any(unknown)
        met = valid & is_met(self.until, lambda: View(problem, zero, params))
        if self.until is not None:
            met &= jnp.isfinite(problem.objective(params))
        result = RESULTS.where(met, RESULTS.event, at_last_time(self.until))
        state = DescentState(
            t=zero,
            per_step=per_step,
            lost=zero,
            params=params,
            optimizer_state=optimizer_state,
            value=zero,
            scale=self._scale(problem, optimizer),
            limit=jnp.asarray(jnp.inf, dtype),
            targets=targets,
            # With a condition times may end in inf, which the search for times does not reach.
            last=last if self.until is None else self._last(dtype),
            # The first step draws an order.
            order=None if self._part(problem) is None else jnp.arange(samples_in(problem.x)),
            saves=saves,
            steps=jnp.zeros((), int),
            done=~valid | met | saves.complete,
            result=RESULTS.where(valid, result, RESULTS.invalid),
        )
        return jax.tree.map(jnp.asarray, state)

    def _row(self, params: PyTree, optimizer_state: PyTree) -> PyTree:
        """The values saved at a time."""
        return Stepped(params, optimizer_state) if self.keep_state else params

    def _scale(self, problem: Problem, optimizer: Optimizer) -> Float[Array, ""]:
        """The loss of f = 0, as a start that fits has no scale; inf if a run can recover from any loss."""
        of_zero = jnp.abs(problem.loss_of_zero)
        return jnp.where(grows(optimizer, problem.params), jnp.where(jnp.isfinite(of_zero), of_zero, 0), jnp.inf)

    def _limit(self, scale: Float[Array, ""], loss: Float[Array, ""]) -> Float[Array, ""]:
        scale = jnp.maximum(jnp.abs(loss), scale)
        return jnp.where(scale > 0, self.divergence_factor * nonzero(scale), jnp.inf)

    def _check(self, problem: Problem) -> None:
        samples = samples_in(problem.x)
        if problem.sampler is not None and self.batch_size is None:
            raise ValueError("a stream has no full batch: give Descent(..., batch_size=, key=), and no batches=")
        part = self._part(problem)
        if part is not None and part > samples:
            raise ValueError(f"batch_size is {part}, but the training set has {samples} samples")
        if self.noise is not None:
            _require_outputs(self.noise, problem)
        if self.augmentation is not None:
            _require_inputs(self.augmentation, problem)
        require_scaling(problem, lambda: ignores_gradient_scale(self.optimizer, problem.params))

    def advance(self, problem: Problem, state: DescentState, n: Int[Array, ""]) -> DescentState:
        move = self._move(problem)

        def step(_, state: DescentState) -> DescentState:
            moved, going = move(state, ~state.done), ~state.done
            fine = self._bounded(problem, moved) & all_finite(moved.params)
            new = self._saved(moved, going & fine)
            kept, failed = chosen(going & fine, new, state), going & ~fine
            result = RESULTS.where(failed, RESULTS.diverged, kept.result)
            # The buffer masks its own writes; selecting it as a whole would copy it at every step.
            return dataclasses.replace(kept, saves=new.saves, done=kept.done | failed, result=result)

        return jax.lax.fori_loop(0, n, step, state)

    def advance_alone(self, problem: Problem, state: DescentState, n: Int[Array, ""]) -> DescentState:
        if self.batches is not None:  # no batch can be replayed
            return one_by_one(problem, self, state, n)[0]

        # Checking new parameters at every step takes a tenth to a fifth of its time. So a loop without checks runs
        # first, and its end is checked. If that fails, the loop is repeated with a check at each step, and then once
        # more up to the step that fails.
        def attempt(carry: tuple[Array, Array, Array, DescentState]) -> tuple[Array, Array, Array, DescentState]:
            end, careful, _, _ = carry
            found, fine = self._plain(problem, state, end, careful)
            return jnp.where(careful & ~fine, found.steps - 1, end), careful | ~fine, fine, found

        end, no = state.steps + n, jnp.array(False)
        reached, _, _, found = jax.lax.while_loop(lambda at: ~at[2], attempt, (end, no, no, state))
        failed = reached < end
        result = RESULTS.where(failed, RESULTS.diverged, found.result)
        return dataclasses.replace(found, done=found.done | failed, result=result)

    def _plain(
        self, problem: Problem, state: DescentState, end: Int[Array, ""], careful: Bool[Array, ""]
    ) -> tuple[DescentState, Bool[Array, ""]]:
        """The state at step `end`, and whether no step has failed; `careful` stops right after a failed step."""
        move = self._move(problem)

        def stretch(carry: tuple[DescentState, Bool[Array, ""]]) -> tuple[DescentState, Bool[Array, ""]]:
            state, _ = carry
            target = state.targets[jnp.minimum(state.saves.slot, state.targets.shape[0] - 1)]
            stop = jnp.minimum(jnp.minimum(target, jnp.maximum(state.last, state.steps + 1)), end)
            stop = jnp.where(careful, state.steps + 1, stop)
            on = lambda at: (at.steps < stop) & ~at.done & self._bounded(problem, at)
            moved = jax.lax.while_loop(on, lambda at: move(at, jnp.array(True)), state)
            fine = self._bounded(problem, moved) & all_finite(moved.params)
            return self._saved(moved, jnp.array(True)), fine

        on = lambda carry: ~carry[0].done & carry[1] & (carry[0].steps < end)
        return jax.lax.while_loop(on, stretch, (state, jnp.array(True)))

    def _move(self, problem: Problem) -> Callable[[DescentState, Bool[Array, ""]], DescentState]:
        """A function that makes a step where `wanted`, without checking the result; `_saved` does the rest."""
        optimizer, eta = self.optimizer.astype(problem.dtype), problem.eta

        def move(at: DescentState, wanted: Bool[Array, ""]) -> DescentState:
            order, on = self._order(problem, at, wanted), problem
            if self.batches is not None:
                on = _restrict(problem, *self.batches.draw(problem, wanted), None)
            if problem.sampler is not None:
                on = _restrict(problem, *self._fresh(problem, at.steps), None)
            slope = jax.value_and_grad(lambda p: self._batch_loss(on, p, at.steps, order))
            value, gradient = channels_last(slope)(at.params)
            updates, memory = optimizer.update(gradient, at.optimizer_state, at.params, value)
            params = jax.tree.map(lambda p, rate, u: p + rate * u.astype(p.dtype), at.params, eta, updates)
            new = dataclasses.replace(
                at,
                params=params,
                optimizer_state=memory,
                value=value,
                limit=jnp.where(at.steps == 0, self._limit(at.scale, value), at.limit),
                order=order,
                steps=at.steps + 1,
            )
            if self.schedule is not None:
                t, lost = later(at.t, at.lost, self.schedule.rate(at.steps, at.t.dtype))
                new = dataclasses.replace(new, t=t, lost=lost)
            if self.until is None:
                return new
            met = is_met(self.until, lambda: View(problem, self._clock(new), params))
            return dataclasses.replace(new, done=met, result=RESULTS.where(met, RESULTS.event, at.result))

        return move

    def _clock(self, state: DescentState) -> Float[Array, ""]:
        """The time of a state."""
        # A product rounds once; a sum of equal rates would round at every step.
        return time_at(state.steps, state.per_step) if self.schedule is None else state.t

    def _bounded(self, problem: Problem, state: DescentState) -> Bool[Array, ""]:
        """True if the loss before the last step is below the limit of divergence."""
        return jnp.isfinite(state.value) & (state.value * self._share(problem) <= state.limit)

    def _saved(self, moved: DescentState, active: Bool[Array, ""]) -> DescentState:
        """The state after a step, with its row saved if the step is due and the run is active."""
        index = moved.saves.slot  # of the first target not yet passed
        last = moved.targets.shape[0] - 1
        due = active & (moved.targets[jnp.minimum(index, last)] == moved.steps) & (index <= last)
        # In a batch, a branch would copy the whole buffer at every step; a row out of range is dropped instead.
        where = lambda buffer: jnp.where(due, index, buffer.shape[0])
        write = lambda buffer, p: buffer.at[where(buffer)].set(p, mode="drop")
        saved = jax.tree.map(write, moved.saves.saved, self._row(moved.params, moved.optimizer_state))
        # Several times may round to the same step: their slots are passed together, and `finish` fills the others.
        slot = jnp.where(active, jnp.sum(moved.targets <= moved.steps), index)
        saves = Saves(moved.saves.times, saved, slot)
        exhausted = (moved.steps >= moved.last) & ~saves.complete
        result = RESULTS.where(exhausted & ~moved.done, RESULTS.max_steps, moved.result)
        done = moved.done | saves.complete | exhausted
        return dataclasses.replace(moved, t=self._clock(moved), saves=saves, done=done, result=result)

    def _share(self, problem: Problem) -> float:
        """The fraction of the training loss due to the samples of a step, if they are typical."""
        part = self._part(problem)
        return 1.0 if part is None else part / samples_in(problem.x)

    def _part(self, problem: Problem) -> int | None:
        """The number of training samples per step; None for the full batch and for a stream."""
        return None if problem.sampler is not None else self.batch_size

    def _fresh(self, problem: Problem, step: Int[Array, ""]) -> tuple[Inputs, Array]:
        """Samples that no other step uses."""
        assert self.key is not None  # see `_check`
        assert self.batch_size is not None
        # Independent of the keys of augmentation and noise, however `sample` splits it.
        return fresh(problem, jr.split(jr.fold_in(self.key, step), 5)[4], self.batch_size)

    def _steps_per_epoch(self, problem: Problem) -> int:
        samples = samples_in(problem.x)
        return samples // (samples if self.batch_size is None else self.batch_size)

    def _order(self, problem: Problem, at: DescentState, wanted: Bool[Array, ""]) -> Int[Array, " samples"] | None:
        """The order of the samples in the epoch of the next step, drawn at the first step of the epoch."""
        key = self.key
        if at.order is None or key is None:
            return None
        epoch, batch = jnp.divmod(at.steps, self._steps_per_epoch(problem))
        draw = lambda: jr.permutation(jr.fold_in(key, epoch), samples_in(problem.x))
        return jax.lax.cond((batch == 0) & wanted, draw, lambda: at.order)

    def _batch_loss(
        self, problem: Problem, params: PyTree, step: Int[Array, ""], order: Int[Array, " samples"] | None
    ) -> Float[Array, ""]:
        if self.key is None:
            return problem.objective(params)
        epoch, batch = jnp.divmod(step, self._steps_per_epoch(problem))
        key = jr.fold_in(self.key, epoch)
        if self.batch_size is not None and order is not None:
            chosen = jax.lax.dynamic_slice_in_dim(order, batch * self.batch_size, self.batch_size)
            problem = _restrict(problem, take_samples(problem.x, chosen), problem.y[chosen], chosen)
        if self.augmentation is not None:
            # Independent of the keys that a permutation sorts by, which are the first two parts.
            x = self.augmentation(problem.x, key=jr.fold_in(jr.split(key, 3)[2], batch))
            problem = _restrict(problem, x, problem.y, None)
        if self.noise is not None:
            return _noisy_loss(self.noise, problem, params, jr.fold_in(jr.split(key, 4)[3], batch))
        return problem.objective(params)

    def finish(self, problem: Problem, state: DescentState) -> March:
        # Times that round to the same step share the row saved for the first of them.
        first = jnp.searchsorted(state.targets, state.targets)
        saves = Saves(state.saves.times, jax.tree.map(lambda leaf: leaf[first], state.saves.saved), state.saves.slot)
        held = (state.result == RESULTS.event) & (state.targets > state.steps)
        saved = hold(saves, self._row(state.params, state.optimizer_state), held)
        # No step has checked the loss after the last step. It is computed from the saved row, just as an observable is.
        last = jax.tree.map(lambda leaf: leaf[-1], saved)
        loss = problem.objective(last.params if self.keep_state else last)
        over = saves.complete & (state.result == at_last_time(self.until))
        diverged = over & ~(jnp.isfinite(loss) & (loss <= state.limit))
        return March(
            times=saves.times,
            saved=saved,
            params=self._row(state.params, state.optimizer_state),
            t_end=state.t,
            result=RESULTS.where(diverged, RESULTS.diverged, state.result),
            steps=state.steps,
            rejected=jnp.zeros_like(state.steps),
            evaluations=state.steps,
            certificate=None,
        )


def _noisy_loss(noise: Callable[..., Any], problem: Problem, params: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """The loss of the network in training mode."""
    f = _noisy(noise, problem, problem.network(params), problem.x, key)
    f = f.reshape(len(f), -1).astype(problem.dtype)
    return problem.loss.value(f if problem.initial is None else f - problem.initial, problem.y)


def _noisy(noise: Callable[..., Any], problem: Problem, net: Any, x: Inputs, key: Key[Array, ""]) -> Any:
    """The outputs of the network in training mode at inputs x, with a separate key per sample."""
    keys = jr.split(key, samples_in(x))
    if problem.state is None:
        return jax.vmap(lambda x, key: noise(net, x, key))(x, keys)
    of_sample = lambda x, state, key: noise(net, x, state, key)[0]
    return jax.vmap(of_sample, (0, None, 0), axis_name="batch")(x, problem.state, keys)


def _require_outputs(noise: Callable[..., Any], problem: Problem) -> None:
    """Raises ValueError if the output of noise does not match the network's."""
    one = take_samples(problem.x, slice(1))
    found, error = attempt(eqx.filter_eval_shape, _noisy, noise, problem, problem.net, one, jr.key(0))
    call, wanted = "noise(net, x, key)", f"the network's output for one sample, of shape {problem.out_shape}"
    if problem.state is not None:
        call, wanted = "noise(net, x, state, key)", f"(out, state), out being {wanted}"
    if error is not None:
        raise ValueError(
            f"noise is called as {call} and returns {wanted}; it fails: {error or type(error).__name__}"
        ) from error
    if getattr(found, "shape", None) != (1, *problem.out_shape):
        of_sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), found)
        raise ValueError(f"noise must return {wanted}, got {describe(of_sample)}")


def _require_inputs(augmentation: AbstractAugmentation, problem: Problem) -> None:
    """Raises ValueError if an augmentation does not preserve the shapes of its inputs."""
    found, error = attempt(eqx.filter_eval_shape, lambda x, key: augmentation(x, key=key), problem.x, jr.key(0))
    shapes = lambda x: jax.tree.map(lambda leaf: getattr(leaf, "shape", None), x)
    wanted = f"the inputs of a batch, here of shape {shapes(problem.x)}, and returns others of the same"
    if error is not None:
        said = f"{type(error).__name__} {error}"
        raise ValueError(f"augmentation is called with {wanted}; it fails: {said}") from error
    if shapes(found) != shapes(problem.x):
        raise ValueError(f"augmentation is called with {wanted}; it returned {shapes(found)}")


def _restrict(problem: Problem, x: Inputs, y: Array, chosen: Int[Array, " batch"] | None) -> Problem:
    """The problem on other samples, from which a network with state takes its statistics.

    Samples chosen from the training set keep their initial outputs; for others these are computed.
    """
    batch = eqx.tree_at(lambda p: (p.x, p.y, p.initial), problem, (x, y, None), is_leaf=lambda leaf: leaf is None)
    if problem.initial is None:
        return batch
    known = chosen is not None and problem.state is None
    initial = problem.initial[chosen] if known else batch.outputs(problem.params)
    return eqx.tree_at(lambda p: p.initial, batch, initial, is_leaf=lambda leaf: leaf is None)
