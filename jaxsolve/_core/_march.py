"""A whole march, inside one program or as a sequence of program calls."""

import dataclasses
import time
from collections.abc import Callable

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import samples_in
from ._dynamics import AbstractGrowing, AbstractMarching, AbstractState, advance_alone, March, Undecided
from ._problem import Problem


# Looking at a state from Python takes as long as many steps of a small march. So the first look comes after WORK units
# of work, where a round (a chunk of steps) costs the numbers held times the samples, plus LEAST. Later looks come less
# and less often, as long as the time between two of them is below PATIENCE seconds.
WORK, LEAST, PATIENCE = 16_000_000, 5_000, 0.25


def march(problem: Problem, dynamics: AbstractMarching | Undecided, ts: Float[Array, " times"]) -> March:
    """A whole march, for use inside jit."""
    if isinstance(dynamics, Undecided):
        run = _march_one_of(problem, dynamics, ts)
    else:
        run = _march(problem, dynamics, ts, jnp.array(True))
    # JAX would only say that a loop has no reverse mode.
    message = (
        f"reverse-mode derivatives (jax.grad, jax.vjp, jax.jacrev) do not go through the steps of {dynamics.name}, "
        "whose number is not known beforehand. Use forward mode (jax.jvp, jax.jacfwd), or a closed form (js.exact) "
        "where there is one, which supports both modes"
    )
    return eqxi.nondifferentiable_backward(run, msg=message)


def _march(problem: Problem, dynamics: AbstractMarching, ts: Float[Array, " times"], wanted: Bool[Array, ""]) -> March:
    """The run, or one without steps if it is not wanted."""
    state = dynamics.init(problem, ts)
    chunk = jnp.asarray(dynamics.chunk)
    going = lambda state: ~state.done & wanted
    state = jax.lax.while_loop(going, lambda state: dynamics.advance(problem, state, chunk), state)
    return dynamics.finish(problem, state)


def _march_one_of(problem: Problem, dynamics: Undecided, ts: Float[Array, " times"]) -> March:
    """The run of the way that the numbers select. Under `jax.vmap` a lane enters all ways but steps along its own."""
    names = [""] * len(dynamics.ways)

    def along(place: int) -> March:
        run = _march(problem, dynamics.ways[place], ts, dynamics.way == place)
        names[place] = "".join(run.integrators)
        # All branches must return the same static text, and arrays where defaults are Python numbers.
        return jax.tree.map(jnp.asarray, dataclasses.replace(run, integrators=()))

    run = jax.lax.switch(dynamics.way, [lambda place=place: along(place) for place in range(len(names))])
    return dataclasses.replace(run, integrators=tuple(names), way=dynamics.way)


@eqx.filter_jit
def init(problem: Problem, dynamics: AbstractMarching, ts: Float[Array, "..."]) -> AbstractState:
    """The initial state, as a separate program."""
    return dynamics.init(problem, jnp.atleast_1d(ts))


@eqx.filter_jit
def advance(
    problem: Problem, dynamics: AbstractMarching, state: AbstractState, rounds: Int[Array, ""]
) -> AbstractState:
    """The state `rounds` chunks of steps later, or at the end of the run, as a separate program."""
    # A single run is checked after every step: a step beyond its end may cost a gradient over all samples.
    return advance_alone(problem, dynamics, state, rounds * dynamics.chunk)[0]


def last_state(
    problem: Problem, dynamics: AbstractMarching, ts: Float[Array, "..."], show: Callable[[AbstractState], None]
) -> AbstractState:
    """The final state of a run, from separate program calls between which Python shows progress."""
    if isinstance(dynamics, AbstractGrowing) and (smaller := dynamics.smaller(problem)) is not None:
        state = _last_state(problem, smaller, ts, show, smaller.outgrown)
        if not smaller.outgrown(state):
            return state
    return _last_state(problem, dynamics, ts, show)


def _last_state(problem, dynamics, ts, show, enough: Callable[[AbstractState], bool] = lambda state: False):
    """The final state of a run, or the first state shown that is `enough`."""
    held = sum(leaf.size for leaf in jax.tree.leaves((problem, dynamics)) if eqx.is_array(leaf))
    rounds = max(1, WORK // (LEAST + held * samples_in(problem.x)))
    state = init(problem, dynamics, ts)
    while not (bool(state.done) or enough(state)):
        begin = time.perf_counter()
        # Rounds are an array, so that another number of them does not recompile.
        state = advance(problem, dynamics, state, jnp.asarray(rounds))
        show(state)
        rounds = 4 * rounds if time.perf_counter() - begin < PATIENCE else rounds
    return state
