"""Gradient flow with mini-batch noise at a given temperature."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from ..._checks import concrete, describe, is_real, one_number, require_key, require_steps
from ..._core import (
    AbstractDescending,
    AbstractMarching,
    AbstractSavingState,
    AbstractStoppable,
    is_key,
    March,
    Problem,
    Quantity,
    View,
)
from ..._numerics import all_finite, nonzero, samples_in
from ..._programs import channels_last
from ..._results import RESULTS
from ...losses._internal import count
from ...until import AbstractCondition
from ...until._internal import fits
from .._marching import at_last_time, check_until, chosen, empty_saves, hold, is_met, PER_STEP, Saves
from ..descent._optimizer import require_scaling


GROWTH = 1.1  # factor of the step size after a step that changed the outputs too little
SHORTEST = 0.1  # least factor after a step that changed them too much


class StochasticState(AbstractSavingState):
    """The state of a stochastic flow."""

    t: Float[Array, ""]
    dt: Float[Array, ""]  # the step to try next, before it is cut to a save time
    params: PyTree
    velocity: PyTree  # None without momentum
    outputs: Float[Array, "n out"]
    saves: Saves
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS


class StochasticFlow(AbstractStoppable, AbstractDescending, AbstractMarching):
    r"""Steps along mini-batch gradients, with batch sizes that keep the noise at a fixed temperature.

    A step is $\theta_l \leftarrow \theta_l - dt\, \eta_l \nabla_l L_{batch}$, where the batch is b of the n samples,
    drawn without replacement (Geiger et al. 2020, appendix A, with its equation numbers). Its temperature (17) is

    $T = \frac{dt}{b} \left(1 - \frac{b-1}{n-1}\right)$,

    and as dt -> 0 at fixed T the weights obey the Fokker-Planck equation (16): gradient flow with noise of covariance
    $T \eta \Sigma \eta$ per time, where $\Sigma$ is the covariance of the per-sample gradients. T = 0 is full-batch
    descent. Plain SGD at rate r has the temperature (17) for dt = r.

    A step may not change any output on the training set by more than the upper bound in `change`, (18). Otherwise it is
    rejected, and repeated with the same samples in the same order and at most half the step size. After a step that
    changes all outputs by less than the lower bound, the step size grows by a tenth. The batch then has the size (19)

    $b = n / (\frac{T}{dt} (n - 1) + 1)$,

    rounded up or down at random, so that (17) holds on average. Below dt = T it would be less than one sample: there
    the batch is one sample, and its deviation from the full gradient is multiplied by sqrt(T/dt). (The paper does not
    say what it does in either case, nor how it changes dt.) So T is kept for any dt. But rejecting steps removes some
    of the largest deviations, and frequent rejection slows the mean. For f = w at T = 0.016 the rate of the mean was
    right to 1 % with a lower bound of 1/100 of the upper one, and 9 to 12 % too small with 1/2 of it, however small
    both were.

    With a relaxation time tau the steps have momentum, as in `MomentumFlow`. From rest, each step is
    $v \leftarrow e^{-dt/\tau} v - (1-e^{-dt/\tau})\, \eta \nabla L_{batch}$, then $\theta \leftarrow \theta + dt\, v$.
    As dt -> 0 at fixed T these are the Langevin equations $d\theta = v\, dt$ and
    $\tau\, dv = -(v + \eta \nabla L)\, dt + \sqrt{T \eta \Sigma \eta}\, dW$: for a quadratic loss and a constant
    $\Sigma$ the stationary variance of the weights is the same as without momentum. Steps much longer than tau equal
    steps without momentum. (The paper gives tau = 10, but not its step.)

    Arguments:
        temperature: T >= 0, in units of gradient-flow time per sample; an array leaf.
        key: random key for the batches; an array leaf. In a sweep each lane has its own key (`docs/sweeps.md`).
        tau: the relaxation time of momentum, > 0, in units of gradient-flow time; an array leaf. None is no momentum.
        change: lower and upper bound on the largest change of an output in one step, 0 <= lower < upper.
        until: stops the run after the first step that ends with it met; with it `ts` may end in inf.
        max_steps: maximum number of steps, accepted and rejected.

    Raises:
        ValueError: the temperature is not a number >= 0, or tau is not > 0; the bounds are not in order; key holds
            several keys; when used, the network's scaling is for Adam.
        TypeError: an argument is not a number, key is not a `jax.random.key`, or `until` is not a condition.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> flow = js.StochasticFlow(0.01, key=jax.random.key(1))
        >>> run = js.solve(problem, flow, [0.0, 1.0])
        >>> bool(run["loss"][1] < run["loss"][0])
        True

    Reference:
        @article{geiger_disentangling, author={Mario Geiger and Stefano Spigler and Arthur Jacot and Matthieu Wyart},
          title={Disentangling feature and lazy learning in deep neural networks: an empirical study}}
    """

    temperature: Float[Array, ""]
    key: Key[Array, ""]
    tau: Float[Array, ""] | None
    until: AbstractCondition | None
    change: tuple[float, float] = eqx.field(static=True)  # only changes values, but is never swept
    max_steps: int = eqx.field(static=True)

    def __init__(
        self,
        temperature: Any,
        *,
        key: Key[Array, ""] | None = None,
        tau: Any = None,
        change: tuple[float, float] = (1e-4, 1e-2),
        until: AbstractCondition | None = None,
        max_steps: int = 10_000_000,
    ):
        self.temperature = one_number(temperature, "temperature", zero=True)
        if key is None or not is_key(key):
            raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {describe(key)}")
        bounds = concrete(change)
        if bounds is None or not is_real(bounds) or bounds.shape != (2,) or not 0 <= change[0] < change[1] < np.inf:
            raise ValueError(f"change must be two bounds, 0 <= lower < upper, such as (1e-4, 1e-2); got {change}")
        require_key(key)
        self.key = key
        self.tau = None if tau is None else one_number(tau, "tau", hint="; without momentum, leave it out")
        self.change = (float(change[0]), float(change[1]))
        self.until = check_until(until)
        self.max_steps = require_steps(max_steps)

    @property
    def name(self) -> str:
        return "StochasticFlow" if self.tau is None else "StochasticFlow(tau)"

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    @property
    def chunk(self) -> int:
        return 16

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return ts

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> StochasticState:
        require_scaling(problem, lambda: False)
        params, dtype = problem.params, problem.dtype
        zero, ts = jnp.zeros((), dtype), ts.astype(dtype)
        valid = problem.valid & fits(self.until, problem) & jnp.isfinite(self.temperature) & (self.temperature >= 0)
        valid = valid if self.tau is None else valid & jnp.isfinite(self.tau) & (self.tau > 0)
        f = problem.outputs(params)
        dt = self._first_step(problem, f)
        alive = jnp.isfinite(problem.loss.value(f, problem.y)) & jnp.isfinite(dt)
        ok = alive & valid
        saves = empty_saves(ts, params).write(zero, lambda _: params, ts.shape[0])
        met = ok & is_met(self.until, lambda: View(problem, zero, params, given_outputs=f))
        result = RESULTS.where(alive, at_last_time(self.until), RESULTS.diverged)
        result = RESULTS.where(met, RESULTS.event, result)
        state = StochasticState(
            t=zero,
            dt=dt,
            params=params,
            velocity=None if self.tau is None else jax.tree.map(jnp.zeros_like, params),
            outputs=f,
            saves=saves,
            steps=jnp.zeros((), int),
            rejected=jnp.zeros((), int),
            done=~ok | met | saves.complete,
            result=RESULTS.where(valid, result, RESULTS.invalid),
        )
        return jax.tree.map(jnp.asarray, state)

    def _first_step(self, problem: Problem, f: Float[Array, "n out"]) -> Float[Array, ""]:
        """The step over which the loss would fall by the most that output changes of half the upper bound can cause.

        With noise the loss of one sample moves even where the average is at rest, so the larger speed counts.
        """
        samples, dtype = samples_in(problem.x), f.dtype
        # Noise 1 means a batch of one sample.
        one = batch_weights(self.key, samples, jnp.ones((), dtype))
        weights = jnp.stack([jnp.ones_like(one), jnp.where(self.temperature > 0, one, 1)])

        def speed_of(weights):
            gradient = jax.grad(lambda p: _weighted_loss(problem, p, weights))(problem.params)
            speeds = jax.tree.map(lambda rate, g: rate * jnp.sum(g**2), problem.eta, gradient)
            return jnp.sum(jnp.stack(jax.tree.leaves(speeds)))

        speed = jnp.max(jax.vmap(speed_of)(weights))
        fall = self.change[1] / 2 * jnp.sum(jnp.abs(problem.loss.gradient(f, problem.y)))
        return jnp.where(speed == 0, 1, fall / nonzero(speed))

    def advance(self, problem: Problem, state: StochasticState, n: Int[Array, ""]) -> StochasticState:
        return jax.lax.fori_loop(0, n, lambda _, s: self._step(problem, s), state)

    def _step(self, problem: Problem, state: StochasticState) -> StochasticState:
        t, (lower, upper) = state.t, self.change
        limit = state.saves.limit(PER_STEP)
        cut = t + state.dt > limit
        t1 = jnp.where(cut, limit, t + state.dt)
        dt = jnp.where(cut, limit - t, state.dt)
        # Folded in by accepted steps: a repeated step has the same samples in the same order.
        weights = batch_weights(
            # A step has length zero if more equal times are requested than one step saves.
            jr.fold_in(self.key, state.steps),
            samples_in(problem.x),
            self.temperature.astype(dt.dtype) / jnp.where(dt == 0, 1, dt),
        )
        gradient = channels_last(jax.grad(lambda p: _weighted_loss(problem, p, weights)))(state.params)
        velocity = self._velocity(problem, state, gradient, dt)
        params = jax.tree.map(lambda p, v: p + dt * v, state.params, velocity)
        f = problem.outputs(params)
        change = jnp.max(jnp.abs(f - state.outputs))
        finite = jnp.isfinite(change) & all_finite(params)
        accept = finite & (change <= upper)
        # A step that was cut to a save time says nothing about the full step.
        kept = jnp.where(~cut & (change < lower), GROWTH * dt, state.dt)
        # The change is roughly proportional to dt, so this aims at half the bound.
        shorter = dt * jnp.where(finite, jnp.clip(upper / 2 / nonzero(change), SHORTEST, 0.5), SHORTEST)
        dt_next = jnp.where(accept, kept, shorter)

        def between(time):
            # Exactly the end at t1, without rounding.
            share = jnp.where(time >= t1, 1, (time - t) / nonzero(t1 - t))
            return jax.tree.map(lambda a, b: a + share * (b - a), state.params, params)

        active = ~state.done
        saves = state.saves.write(jnp.where(active & accept, t1, -1), between, PER_STEP)
        steps, rejected = state.steps + accept.astype(int), state.rejected + (~accept).astype(int)
        t_now = jnp.where(accept, t1, t)
        met = accept & is_met(self.until, lambda: View(problem, t1, params, given_outputs=f))
        stuck = ~(t_now + dt_next > t_now) & ~saves.complete
        exhausted = (steps + rejected >= self.max_steps) & ~saves.complete
        result = state.result
        for ended, how in (
            (exhausted, RESULTS.max_steps),
            (stuck, RESULTS.where(finite, RESULTS.tolerance, RESULTS.diverged)),
            (met, RESULTS.event),
        ):
            result = RESULTS.where(ended, how, result)
        new = StochasticState(
            t=t_now,
            dt=dt_next,
            params=chosen(accept, params, state.params),
            velocity=None if self.tau is None else chosen(accept, velocity, state.velocity),
            outputs=jnp.where(accept, f, state.outputs),
            saves=state.saves,
            steps=steps,
            rejected=rejected,
            done=exhausted | stuck | saves.complete | met,
            result=result,
        )
        # The buffer masks its own writes; selecting it as a whole would copy it at every step.
        return eqx.tree_at(lambda s: s.saves, chosen(active, new, state), saves)

    def _velocity(self, problem: Problem, state: StochasticState, gradient: PyTree, dt: Float[Array, ""]) -> PyTree:
        falling = jax.tree.map(lambda rate, g: -rate * g, problem.eta, gradient)
        if self.tau is None:
            return falling
        # 1 - exp(-dt/tau) would cancel where dt is small compared with tau.
        new = -jnp.expm1(-dt / self.tau.astype(dt.dtype))
        return jax.tree.map(lambda v, to: (1 - new) * v + new * to, state.velocity, falling)

    def finish(self, problem: Problem, state: StochasticState) -> March:
        del problem
        ended = state.result == RESULTS.event
        return March(
            times=state.saves.times,
            saved=hold(state.saves, state.params, ended & (state.saves.times > state.t)),
            params=state.params,
            t_end=state.t,
            result=state.result,
            steps=state.steps,
            rejected=state.rejected,
            evaluations=state.steps + state.rejected + 2,  # 2 to choose the first step
            certificate=None,
        )


def batch_weights(key: Key[Array, ""], samples: int, noise: Float[Array, ""]) -> Float[Array, " n"]:
    """Random weights of the samples that turn a weighted average into a mini-batch average.

    Their mean is 1, and a weighted average of any numbers has `noise` times the variance of these numbers over samples.

    Arguments:
        key: the random key.
        samples: n, the number of samples.
        noise: T/dt, >= 0. Up to 1 the weights are n/b for b samples and 0 for the others.
    """
    # A single sample has no variance; its denominator only must not be 0.
    dtype, others = noise.dtype, max(samples - 1, 1)
    variance = lambda b: (samples - b) / (b * others)  # of the average over b samples drawn without replacement
    # (19) for b, rounded down.
    lower = jnp.clip(jnp.floor(samples / (noise * (samples - 1) + 1)), 1, samples)
    upper = jnp.minimum(lower + 1, samples)
    # The probability of the smaller batch at which the mean of both variances is `noise`.
    share = (noise - variance(upper)) / nonzero(variance(lower) - variance(upper))
    size_key, order_key = jr.split(key)
    size = jnp.where(jr.uniform(size_key, (), dtype) < share, lower, upper)
    inside = jr.permutation(order_key, samples).astype(dtype) < size
    batch = jnp.where(inside, samples / size, 0)
    # A batch of one sample has noise 1; above 1 its deviation from the full gradient is scaled up.
    return 1 + jnp.sqrt(jnp.maximum(noise, 1)) * (batch - 1)


def _weighted_loss(problem: Problem, params: PyTree, weights: Float[Array, " n"]) -> Float[Array, ""]:
    each = jax.vmap(problem.loss.pointwise)(problem.outputs(params), problem.y)
    return jnp.sum(weights * each) / count(problem.loss, problem.y, each.dtype) + problem.penalty(params)
