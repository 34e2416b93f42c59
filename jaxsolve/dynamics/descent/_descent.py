"""Descent in steps, by any optax optimizer."""

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
    AbstractSavingState,
    AbstractStepping,
    AbstractStoppable,
    is_key,
    March,
    Problem,
    Quantity,
    Stepped,
    View,
)
from ..._numerics import all_finite, Inputs, nonzero, one_of, samples_in, take_samples
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
    per_step: Float[Array, ""]  # the time of one, 0 with a schedule
    lost: Float[Array, ""]  # of t, by rounding, where the rates of a schedule are added up
    params: PyTree
    optimizer_state: PyTree
    limit: Float[Array, ""]  # a loss above it has diverged
    targets: Int[Array, " times"]  # the steps to save at
    last: Int[Array, ""]  # the step after which the run is given up
    order: Int[Array, " samples"] | None  # of the samples in this epoch; None for the full batch
    saves: Saves
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS


class Descent(AbstractStoppable, AbstractStepping):
    """Steps of an optax optimizer; per-layer eta multiplies its updates.

    A step of rate r stands for the gradient-flow time r; with momentum beta, for r/(1 - beta). Parameters are saved
    after the step that ends nearest to each time, and `traj.ts` says which time that is.

    The rate of SGD (with momentum, Nesterov's too), Adam, AdamW, Lion and Muon is seen when it is needed, by how the
    optimizer answers gradients that are known. Weight decay and clipping may be added; a clipped step counts as a whole
    one. For any other optimizer and for schedules, also those inside of an optimizer, give `rate`.

    By Equinox's rule, arrays inside an optimizer are traced and Python's numbers are compiled in: where many rates
    follow each other, `optax.sgd(jnp.asarray(rate))` compiles once. An optimizer that holds a function of your own
    compiles again when it is made again.

    A run has diverged when its parameters or its loss are not finite, or when the training loss exceeds
    `divergence_factor` times the larger of the loss at the start and that of f = 0. It ends before the step that shows
    this, at its last finite parameters. A batch of b out of n samples is counted as b/n of the training loss, which
    overstates no loss >= 0; after the last step the full batch decides. Runs that come back stay far below: the highest
    catapult that converges lifts the loss about 4 * width times (Lewkowycz et al. 2020, their two-layer linear model
    iterated). An optimizer whose steps do not grow with the gradient (Adam, clipping) can come back from any loss, so
    for it only numbers that are not finite count. One without a first update, as `optax.MultiSteps`, counts as growing.

    Arguments:
        optimizer: an optax transformation, such as `optax.sgd(0.1)` or `optax.adam(1e-3)`.
        batch_size: samples per step, drawn without replacement and reshuffled every epoch (an incomplete last batch is
            left out); None takes the full batch.
        key: for the batches, the augmentation and the noise; needed with any of them. In a sweep each lane has one of
            its own (`docs/sweeps.md`).
        until: stops the run when the full-batch condition is met after a step.

    Other Arguments:
        augmentation: a random change of the inputs of each step, such as `js.data.flip_and_crop()`. Losses and
            observables are those of the inputs as they are.
        noise: the network as it trains, where it draws at random, such as by dropout: a function of the network, one
            sample and a key, `lambda net, x, key: eqx.nn.inference_mode(net, False)(x, key=key)`. The problem holds the
            network as it is asked afterwards, in inference mode, and losses and observables are those of it.
        batches: any iterable of pairs (x, y) on the host, all of one shape, such as a loader of grain, for data that do
            not fit on the device; in place of batch_size and key. It is called from within the run, so it should make
            them with NumPy. Each step takes the next; what can be gone through
            again begins anew at its end, and a run goes on where the last one stopped. The problem then holds the
            samples that are observed. Not in sweeps, whose lanes would share them.
        rate: the gradient-flow time that a step stands for, a number > 0 or a function of the steps made so far, such
            as the optimizer's own schedule (with momentum beta, over 1 - beta). None if the optimizer shows it.
        keep_state: whether to save the optimizer's state beside the parameters, for `js.observe.critical_rate` and
            `stability` of an optimizer with a memory. With Adam the saved times take three times the memory.
        max_steps: steps before the run is given up; of a schedule that ends at zero, at most those before.
        divergence_factor: growth of the loss, > 1, at which a run has diverged; inf waits for overflow.

    Raises:
        TypeError: the optimizer is no optax transformation; key is no `jax.random.key`; `until` no condition;
            augmentation none of `js.data`; noise no function.
        ValueError: the optimizer does not show its rate, and none is given (of some that is known when it is used); the
            rate is not positive; divergence_factor is not above 1; batch_size, an augmentation or noise without a key;
            noise that does not return what the network does; a batch_size larger than the training set; a scaling that
            was made for another kind of optimizer (mup).

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
    noise: Callable[[Any, Array, Array], Array] | None = eqx.field(static=True)  # a function
    batches: HostBatches | None = eqx.field(static=True)  # on the host
    batch_size: int | None = eqx.field(static=True)  # a shape
    keep_state: bool = eqx.field(static=True)  # changes the program
    max_steps: int = eqx.field(static=True)
    divergence_factor: float = eqx.field(static=True)  # decides nothing but when to stop, yet is never swept

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        *,
        rate: Any = None,
        batch_size: int | None = None,
        key: Key[Array, ""] | None = None,
        until: AbstractCondition | None = None,
        augmentation: AbstractAugmentation | None = None,
        noise: Callable[[Any, Array, Array], Array] | None = None,
        batches: Iterable[tuple[Any, Any]] | None = None,
        keep_state: bool = False,
        max_steps: int = 10_000_000,
        divergence_factor: float = 1e9,
    ):
        if augmentation is not None and not isinstance(augmentation, AbstractAugmentation):
            raise TypeError(f"augmentation must be one such as js.data.flip_and_crop(), got {describe(augmentation)}")
        if augmentation is not None and key is None:
            raise ValueError("an augmentation draws at random: give key= too, such as jax.random.key(0)")
        if noise is not None and not callable(noise):
            raise TypeError(f"noise must be a function of a network, one sample and a key, got {describe(noise)}")
        if noise is not None and key is None:
            raise ValueError("noise draws at random: give key= too, such as jax.random.key(0)")
        if batches is not None and batch_size is not None:
            raise ValueError("batches brings its own: give either batches=, or batch_size= with key=")
        if augmentation is None and noise is None and (batch_size is None) != (key is None):
            raise ValueError("batch_size and key go together: give both for mini-batches, neither for the full batch")
        if key is not None:
            if not is_key(key):
                raise TypeError(f"key must be one such as jax.random.key(0), or None, got {describe(key)}")
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
        """The gradient-flow time that a step stands for, None with a schedule. It is looked for each time anew."""
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
        """The number of steps after which each time is observed; `max_steps + 1` for what is never reached."""
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

    def _after(self, state: "DescentState") -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The time at the end of the next step, and what it has lost by rounding."""
        if self.schedule is None:
            # A product rounds once, where a sum of equal rates would round at every step.
            return time_at(state.steps + 1, state.per_step), state.lost
        return later(state.t, state.lost, self.schedule.rate(state.steps, state.t.dtype))

    @property
    def chunk(self) -> int:
        return 16

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> DescentState:
        params, dtype = problem.params, problem.dtype
        self._check(problem)
        # Its arrays may have been made in another precision than the network's.
        optimizer, per_step = self.optimizer.astype(dtype), self._per_step(dtype)
        ts = ts.astype(dtype)
        targets, times, last = self._nearest(ts, per_step)
        optimizer_state = jax.tree.map(jnp.asarray, first_state(optimizer, params))
        # A step saves what comes after it, so times nearest to the start are saved here.
        row = self._row(params, optimizer_state)
        start = jax.tree.map(
            lambda leaf, p: jnp.where(targets.reshape((-1,) + (1,) * p.ndim) == 0, p[None], leaf),
            empty_saves(ts, row).saved,
            row,
        )
        unknown = jnp.isnan(times)  # beyond a rate that is no number
        saves = Saves(jnp.where(unknown, ts, times), start, jnp.sum(targets == 0))
        loss = problem.objective(params)
        alive = jnp.isfinite(loss)
        zero = jnp.zeros((), dtype)
        valid = problem.valid & fits(self.until, problem)
        if self.schedule is None:  # traced, it may be any number
            valid &= jnp.isfinite(per_step) & (per_step > 0)
        elif self.until is None:  # else it may end before
            valid &= ~jnp.any(unknown)
        met = alive & valid & is_met(self.until, lambda: View(problem, zero, params))
        result = RESULTS.where(alive, at_last_time(self.until), RESULTS.diverged)
        result = RESULTS.where(met, RESULTS.event, result)
        state = DescentState(
            t=zero,
            per_step=per_step,
            lost=zero,
            params=params,
            optimizer_state=optimizer_state,
            # Steps that do not grow with the gradient can come back from any loss.
            limit=jnp.where(grows(optimizer, params), self._limit(problem, loss), jnp.inf),
            targets=targets,
            # With a condition times may end in inf, up to which the search for times does not go.
            last=last if self.until is None else self._last(dtype),
            order=None if self.batch_size is None else jnp.arange(samples_in(problem.x)),  # the first step draws one
            saves=saves,
            steps=jnp.zeros((), int),
            done=~alive | ~valid | met | saves.complete,
            result=RESULTS.where(valid, result, RESULTS.invalid),
        )
        return jax.tree.map(jnp.asarray, state)

    def _row(self, params: PyTree, optimizer_state: PyTree) -> PyTree:
        """What is saved at a time."""
        return Stepped(params, optimizer_state) if self.keep_state else params

    def _limit(self, problem: Problem, loss: Float[Array, ""]) -> Float[Array, ""]:
        # A start that fits has no scale of its own: that of the targets is the loss of f = 0.
        of_zero = jnp.abs(problem.loss_of_zero)
        scale = jnp.maximum(jnp.abs(loss), jnp.where(jnp.isfinite(of_zero), of_zero, 0))
        return jnp.where(scale > 0, self.divergence_factor * nonzero(scale), jnp.inf)

    def _check(self, problem: Problem) -> None:
        samples = samples_in(problem.x)
        if self.batch_size is not None and self.batch_size > samples:
            raise ValueError(f"batch_size is {self.batch_size}, but the training set has {samples} samples")
        if self.noise is not None:
            _require_outputs(self.noise, problem)
        if self.augmentation is not None:
            _require_inputs(self.augmentation, problem)
        require_scaling(problem, lambda: ignores_gradient_scale(self.optimizer, problem.params))

    def advance(self, problem: Problem, state: DescentState, n: Int[Array, ""]) -> DescentState:
        optimizer = self.optimizer.astype(problem.dtype)
        return jax.lax.fori_loop(0, n, lambda _, s: self._step(problem, optimizer, s, alone=False), state)

    def step(self, problem: Problem, state: DescentState) -> DescentState:
        return self._step(problem, self.optimizer.astype(problem.dtype), state, alone=True)

    def _step(self, problem: Problem, optimizer: Optimizer, state: DescentState, *, alone: bool) -> DescentState:
        order, on = self._order(problem, state), problem
        if self.batches is not None:
            on = _restrict(problem, *self.batches.draw(problem, ~state.done), None)
        value, gradient = jax.value_and_grad(lambda p: self._batch_loss(on, p, state.steps, order))(state.params)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params, value)
        params = jax.tree.map(lambda p, rate, u: p + rate * u.astype(p.dtype), state.params, problem.eta, updates)
        steps = state.steps + 1
        # The loss is that before the step. A step that fails is not taken.
        finite = jnp.isfinite(value) & all_finite(params)
        failed = ~finite | (value * self._share(problem) > state.limit)
        active = ~state.done & ~failed
        index = state.saves.slot  # of the first target that is not behind
        last = state.targets.shape[0] - 1
        due = active & (state.targets[jnp.minimum(index, last)] == steps) & (index <= last)
        saved = _written(state.saves.saved, self._row(params, optimizer_state), index, due, alone=alone)
        # Several times may round to one step: their slots are passed together, and `finish` fills the others.
        slot = jnp.where(active, jnp.sum(state.targets <= steps), state.saves.slot)
        saves = Saves(state.saves.times, saved, slot)

        t, lost = self._after(state)
        met = is_met(self.until, lambda: View(problem, t, params))
        exhausted = (steps >= state.last) & ~saves.complete
        result = RESULTS.where(exhausted, RESULTS.max_steps, state.result)
        result = RESULTS.where(met, RESULTS.event, result)
        new = DescentState(
            t=t,
            per_step=state.per_step,
            lost=lost,
            params=params,
            optimizer_state=optimizer_state,
            limit=state.limit,
            targets=state.targets,
            last=state.last,
            order=state.order,
            saves=state.saves,
            steps=steps,
            done=met | saves.complete | exhausted,
            result=result,
        )
        kept = chosen(active, new, state)
        result = RESULTS.where(failed & ~state.done, RESULTS.diverged, kept.result)
        # The buffer has masked its own writes, and the order is that of the next step, whether it is taken or not:
        # selecting them whole would copy them at every step. Nobody reads the memory of an optimizer whose run has
        # ended by a step that failed; in a batch it is kept, as such a run must stay as it is.
        memory = optimizer_state if alone and not self.keep_state else kept.optimizer_state
        places = lambda s: (s.saves, s.done, s.result, s.order, s.optimizer_state)
        values = (saves, kept.done | failed, result, order, memory)
        return eqx.tree_at(places, kept, values, is_leaf=lambda leaf: leaf is None)

    def _share(self, problem: Problem) -> float:
        """The part of the training loss that the samples of a step carry, if they are no worse than the others."""
        return 1.0 if self.batch_size is None else self.batch_size / samples_in(problem.x)

    def _steps_per_epoch(self, problem: Problem) -> int:
        samples = samples_in(problem.x)
        return samples // (samples if self.batch_size is None else self.batch_size)

    def _order(self, problem: Problem, state: DescentState) -> Int[Array, " samples"] | None:
        """The order of the samples in the epoch of the next step, which is drawn at the first step of it."""
        key = self.key
        if state.order is None or key is None:
            return None
        epoch, batch = jnp.divmod(state.steps, self._steps_per_epoch(problem))
        draw = lambda: jr.permutation(jr.fold_in(key, epoch), samples_in(problem.x))
        return jax.lax.cond((batch == 0) & ~state.done, draw, lambda: state.order)

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
            # Apart from the keys by which a permutation sorts, which are those of the first two parts.
            x = self.augmentation(problem.x, key=jr.fold_in(jr.split(key, 3)[2], batch))
            problem = _restrict(problem, x, problem.y, None)
        if self.noise is not None:
            return _noisy_loss(self.noise, problem, params, jr.fold_in(jr.split(key, 4)[3], batch))
        return problem.objective(params)

    def finish(self, problem: Problem, state: DescentState) -> March:
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
            saved=hold(saves, self._row(state.params, state.optimizer_state), held),
            params=self._row(state.params, state.optimizer_state),
            t_end=state.t,
            result=result,
            steps=state.steps,
            rejected=jnp.zeros_like(state.steps),
            evaluations=state.steps,
            certificate=None,
        )


def _written(saved: PyTree, values: PyTree, row: Int[Array, ""], due: Bool[Array, ""], *, alone: bool) -> PyTree:
    """What is saved, with a row of it written if it is due."""
    if alone:
        write = lambda: jax.tree.map(lambda buffer, p: buffer.at[row].set(p), saved, values)
        return jax.lax.cond(due, write, lambda: saved)
    # A branch of a batch would copy the whole buffer in every step; a row that is out of range is dropped.
    where = lambda buffer: jnp.where(due, row, buffer.shape[0])
    return jax.tree.map(lambda buffer, p: buffer.at[where(buffer)].set(p, mode="drop"), saved, values)


def _noisy_loss(noise: Callable[..., Array], problem: Problem, params: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """The loss of the network as it trains, each sample with a key of its own."""
    net, n = problem.network(params), samples_in(problem.x)
    f = jax.vmap(lambda x, key: noise(net, x, key))(problem.x, jr.split(key, n)).reshape(n, -1).astype(problem.dtype)
    return problem.loss.value(f if problem.initial is None else f - problem.initial, problem.y)


def _require_outputs(noise: Callable[..., Array], problem: Problem) -> None:
    """Raises ValueError where noise does not give what the network gives."""
    sample = one_of(problem.x)
    found, error = attempt(eqx.filter_eval_shape, noise, problem.net, sample, jr.key(0))
    wanted = f"the network's output for one sample, of shape {problem.out_shape}"
    if error is not None:
        raise ValueError(
            f"noise is called as noise(net, x, key) and returns {wanted}; it fails: {error or type(error).__name__}"
        ) from error
    if getattr(found, "shape", None) != problem.out_shape:
        raise ValueError(f"noise must return {wanted}, got {describe(found)}")


def _require_inputs(augmentation: AbstractAugmentation, problem: Problem) -> None:
    """Raises ValueError where an augmentation does not give inputs of the shapes that it is given."""
    found, error = attempt(eqx.filter_eval_shape, lambda x, key: augmentation(x, key=key), problem.x, jr.key(0))
    shapes = lambda x: jax.tree.map(lambda leaf: getattr(leaf, "shape", None), x)
    wanted = f"the inputs of a batch, here of shape {shapes(problem.x)}, and returns others of the same"
    if error is not None:
        said = f"{type(error).__name__} {error}"
        raise ValueError(f"augmentation is called with {wanted}; it fails: {said}") from error
    if shapes(found) != shapes(problem.x):
        raise ValueError(f"augmentation is called with {wanted}; it returned {shapes(found)}")


def _restrict(problem: Problem, x: Inputs, y: Array, chosen: Int[Array, " batch"] | None) -> Problem:
    """The problem of other samples: a network with state takes its statistics from them.

    Those chosen out of the training set have the first outputs that they had; others have them computed.
    """
    batch = eqx.tree_at(lambda p: (p.x, p.y, p.initial), problem, (x, y, None), is_leaf=lambda leaf: leaf is None)
    if problem.initial is None:
        return batch
    known = chosen is not None and problem.state is None
    initial = problem.initial[chosen] if known else batch.outputs(problem.params)
    return eqx.tree_at(lambda p: p.initial, batch, initial, is_leaf=lambda leaf: leaf is None)
