"""A whole marching run: within a program, or in programs of its own."""

import functools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._brief import brief_options, split, whole
from ._dynamics import AbstractGrowing, AbstractMarching, AbstractState, March
from ._flop import looped
from ._problem import Problem


# Most small marches (numbers held times samples) end within so many rounds of a chunk of steps; to look at a state from
# Python takes as long as many steps of theirs. Others are looked at after the first round, then ever less often, as
# long as it takes less than so many seconds from look to look.
SMALL, ROUNDS, PATIENCE = 1_000_000, 16, 0.25
# The start of a march, and what is observed of it, are computed in less time than it takes to optimise the programs for
# that, where all evaluations of the network together compute so many numbers in loops of their own.
FEW = 5_000_000


def march(problem: Problem, dynamics: AbstractMarching, ts: Float[Array, " times"]) -> March:
    """A whole marching run, for use inside jit."""
    state = dynamics.init(problem, ts)
    chunk = jnp.asarray(dynamics.chunk)
    state = jax.lax.while_loop(lambda s: ~s.done, lambda s: dynamics.advance(problem, s, chunk), state)
    # JAX would say no more than that a loop has no reverse mode.
    message = (
        f"reverse-mode derivatives (jax.grad, jax.vjp, jax.jacrev) do not go through the steps of {dynamics.name}, "
        "whose number is not known beforehand. Take forward mode (jax.jvp, jax.jacfwd), or a closed form (js.exact) "
        "where there is one, which has both modes"
    )
    return eqxi.nondifferentiable_backward(dynamics.finish(problem, state), msg=message)


def is_brief(problem: Problem, times: int = 1) -> bool:
    """Whether the network is evaluated on all data, and so many times, in less time than to optimise it takes."""
    rest, arrays = split(problem)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arrays)
    return times * _looped(rest, shapes) <= FEW


@functools.lru_cache(maxsize=256)
def _looped(rest: Any, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> int:
    """The numbers that a network, the derivatives of its outputs and a kernel compute in loops of their own."""
    problem = whole(rest, list(shapes))
    trained, *_ = eqx.filter_make_jaxpr(lambda problem: problem.outputs(problem.params))(problem)
    found = looped(trained) * (1 + problem.y.shape[1])  # there, and back for each output
    found += problem.y.size**2  # where two signals meet
    if problem.x_test is None:
        return found
    tested, *_ = eqx.filter_make_jaxpr(lambda problem: problem.test_outputs(problem.params))(problem)
    return found + looped(tested)


def _init(rest, arrays, ts):
    problem, dynamics = whole(rest, arrays)
    return dynamics.init(problem, jnp.atleast_1d(ts))


@functools.cache
def _init_program(optimise: bool) -> Any:
    return jax.jit(_init, static_argnums=0, **brief_options(optimise=optimise))


def _advance(rest, arrays, state, rounds: Int[Array, ""]):
    """The state after so many times the dynamics' chunk of steps, or at the end of the run."""
    problem, dynamics = whole(rest, arrays)
    chunk = jnp.asarray(dynamics.chunk)
    going = lambda carry: ~carry[0].done & (carry[1] < rounds)
    onward = lambda carry: (dynamics.advance(problem, carry[0], chunk), carry[1] + 1)
    return jax.lax.while_loop(going, onward, (state, jnp.zeros_like(rounds)))[0]


@functools.cache
def _advance_program(brief: bool) -> Any:
    return jax.jit(_advance, static_argnums=0, **(brief_options(optimise=True) if brief else {}))


def last_state(
    problem: Problem, dynamics: AbstractMarching, ts: Float[Array, "..."], show: Callable[[AbstractState], None]
) -> AbstractState:
    """Where a run ends, in programs of its own; Python shows where it is now and then."""
    if isinstance(dynamics, AbstractGrowing) and (smaller := dynamics.smaller(problem)) is not None:
        state = _last_state(problem, smaller, ts, show, smaller.outgrown)
        if not smaller.outgrown(state):
            return state
    return _last_state(problem, dynamics, ts, show)


def _last_state(problem, dynamics, ts, show, enough: Callable[[AbstractState], bool] = lambda state: False):
    """Where it ends, or where that is enough."""
    parts, brief = split((problem, dynamics)), is_brief(problem)
    held = sum(leaf.size for leaf in parts[1])
    rounds = ROUNDS if held * len(problem.x) <= SMALL else 1
    # Steps of which each is a chunk are products and factorisations in the main, which XLA leaves to libraries.
    advance = _advance_program(brief and dynamics.chunk == 1)
    state = _init_program(not brief)(*parts, ts)
    while not (bool(state.done) or enough(state)):
        begin = time.perf_counter()
        state = advance(*parts, state, jnp.asarray(rounds))
        show(state)
        rounds = 4 * rounds if time.perf_counter() - begin < PATIENCE else rounds
    return state
