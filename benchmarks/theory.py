"""Closed forms: a first and a later call, against simulation of the same outputs to a relative error of 1e-6.

The simulations are `js.GradientFlow` with its own integrator, and a plain `diffrax.diffeqsolve` by Tsit5 of the
gradient of the loss. Each takes a tolerance just tight enough for outputs within 1e-6 of a run of Dopri8 at 1e-12,
relative to the largest output, at all of 20 times; only calls whose programs are compiled are compared.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import jaxsolve as js

from ._said import Beside, Row
from ._timing import in_turns, timed


ERROR = 1e-6
LOOSEST, TRIES = 1e-3, 6  # relative tolerances that are tried
TIMES = 20
REPEATS, SECONDS = 15, 20.0
SIZE = 8  # of inputs


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; the first two in the quick part."""
    for form, make, end in CASES[: 2 if quick else None]:
        yield from _case(form, make(), jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-3 * end, end, TIMES - 1)]))


def _line() -> js.Problem:
    data = js.data.line(50, SIZE, key=jax.random.key(0))
    net = js.nets.TwoLayerLinear(in_size=SIZE, width_size=100, scaling=js.nets.Scaling.ntk(0.5), key=jax.random.key(1))
    return js.Problem(net, *data.train)


def _deep() -> js.Problem:
    scaling = js.nets.Scaling(multiplier=[1.0] * 4, sigma=[1.0] * 4, eta=[1.0] * 4)
    init = js.nets.Given([0.3 * jnp.eye(SIZE)] * 4)
    net = js.nets.DeepLinear(
        in_size=SIZE, out_size=SIZE, width_size=SIZE, depth=3, scaling=scaling, init=init, key=jax.random.key(0)
    )
    return js.Problem(net, SIZE**0.5 * jnp.eye(SIZE), SIZE**0.5 * jnp.diag(jnp.linspace(3.0, 1.0, SIZE)))


def _silent() -> js.Problem:
    scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1e-4, 1e-4], eta=[1.0, 1.0])
    net = js.nets.TwoLayerLinear(in_size=SIZE, width_size=100, scaling=scaling, key=jax.random.key(0))
    return js.Problem(net, SIZE**0.5 * jnp.eye(SIZE), jnp.linspace(1.0, 2.0, SIZE))


def _neuron() -> js.Problem:
    net = js.nets.SingleNeuron(in_size=SIZE, scaling=js.nets.Scaling.standard(), key=jax.random.key(0))
    return js.Problem(net, SIZE**0.5 * jnp.eye(SIZE), jnp.linspace(-1.0, 2.0, SIZE))


CASES: tuple[tuple[Any, Callable[[], js.Problem], float], ...] = (
    (js.theory.TwoLayerLine(), _line, 30.0),
    (js.theory.DeepBalanced(), _deep, 100.0),
    (js.theory.SilentAlignment(), _silent, 30.0),
    (js.theory.SingleNeuronFlow(), _neuron, 30.0),
)


def _case(form: Any, problem: js.Problem, ts: jax.Array) -> Iterator[Row]:
    watched = js.observe.outputs()
    solve = lambda dynamics: js.solve(problem, dynamics, ts, observe=watched, throw=False)
    closed, first = timed(lambda: solve(form)["outputs"])
    reference, _ = _by_diffrax(problem, ts, diffrax.Dopri8(), 1e-12)
    gap = lambda outputs: float(jnp.max(jnp.abs(outputs - reference)) / jnp.max(jnp.abs(reference)))
    sizes = f"{sum(w.size for w in jax.tree.leaves(problem.params))} weights, n = {len(problem.x)}"

    def flow(rtol: float) -> tuple[jax.Array, Any]:
        run = solve(js.GradientFlow(rtol=rtol))
        return run["outputs"], run.stats.steps

    plain = lambda rtol: _by_diffrax(problem, ts, diffrax.Tsit5(), jnp.asarray(rtol))
    names, found = ("GradientFlow", "plain Tsit5 of diffrax"), [_loosest(way, gap) for way in (flow, plain)]
    firsts = tuple(Beside(name, other.first) for name, other in zip(names, found, strict=True))
    yield Row(f"{form.name}: seconds of the first call", first, beside=firsts, note=sizes)
    calls = [lambda way=way, rtol=one.rtol: way(rtol) for way, one in zip((flow, plain), found, strict=True)]
    nothing = jax.jit(lambda problem, form, ts: (problem.params, ts))
    times = in_turns([lambda: solve(form)["outputs"], *calls, lambda: nothing(problem, form, ts)], REPEATS, SECONDS)
    ours, *others, empty = (float(np.median(part)) for part in times)
    what, limit = f"{form.name}: milliseconds of a later call, {TIMES} times", "a call that returns its arguments"
    yield Row(what, 1e3 * ours, beside=(Beside(limit, 1e3 * empty),), note=f"error {gap(closed):.0e}")
    for name, seconds, (_, said, _) in zip(names, others, found, strict=True):
        what = f"{form.name}: {name} at error {ERROR:g} / closed form, time"
        yield Row(what, seconds / ours if said else np.nan, ">=", 1, peer=name, note=said or "no tolerance was enough")


class Loosest(NamedTuple):
    """The first rtol tried that is accurate enough, and what it took; nothing said if none is.

    Attributes:
        rtol: of the run.
        said: its steps and error.
        first: seconds of the first call of all.
    """

    rtol: float
    said: str
    first: float


def _loosest(way: Callable[[float], tuple[jax.Array, Any]], gap: Callable[[Any], float]) -> Loosest:
    rtol, spent = LOOSEST, list[float]()
    for _ in range(TRIES):
        (outputs, steps), seconds = timed(lambda rtol=rtol: way(rtol))
        spent.append(seconds)
        error = gap(outputs)
        if error <= ERROR:
            return Loosest(rtol, f"rtol {rtol:.0e}, {int(steps)} steps, error {error:.0e}", spent[0])
        rtol *= min(max(0.7 * ERROR / error, 1e-3), 0.5)  # as if errors went with it; each is another program
    return Loosest(rtol, "", spent[0])


@eqx.filter_jit
def _by_diffrax(problem: js.Problem, ts: jax.Array, solver: Any, rtol: Any) -> tuple[jax.Array, jax.Array]:
    start, unravel = ravel_pytree(problem.params)
    rates, _ = ravel_pytree(jax.tree.map(lambda eta, w: jnp.broadcast_to(eta, w.shape), problem.eta, problem.params))
    velocity = lambda t, w, args: -rates * jax.grad(lambda w: problem.objective(unravel(w)))(w)
    outputs = lambda t, w, args: problem.outputs(unravel(w))
    # The absolute tolerance must see the smallest weights at the start.
    steps = diffrax.PIDController(rtol=rtol, atol=1e-6 * rtol, pcoeff=0.3, icoeff=0.4)
    keep, term = diffrax.SaveAt(ts=ts, fn=outputs), diffrax.ODETerm(velocity)
    solution = diffrax.diffeqsolve(
        term, solver, 0.0, ts[-1], None, start, saveat=keep, stepsize_controller=steps, max_steps=10**6, throw=False
    )
    return jnp.asarray(solution.ys), solution.stats["num_steps"]
