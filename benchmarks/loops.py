"""Is jaxsolve as fast as a plain loop? jaxsolve against hand-written code. Above 1 jaxsolve is slower.

By hand means a jitted `lax.scan` of optax, its `vmap`, the best solver of diffrax, and a contraction of `vmap(jacrev)`.
Both sides do the same work on the same network, which is checked, and are called in turns. Times are of the processor,
all threads together (of the clock where the device is an accelerator). Descents, sweeps and kernels are in single
precision, as JAX has it; flows in double, since their errors are compared. A call of `js.solve` may take a millisecond
more than the loop.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js

from ._cheapest import cheapest, errors
from ._flow_rivals import dopri8, Rival, RIVALS, Run
from ._foreign import Block
from ._said import Row
from ._timing import clock, in_turns, own_process


CALL = 1e-3  # seconds that a call may take beyond the loop
REPEATS, SECONDS = 7, 4.0  # of both sides together
FIRST = 3  # processes for each side of a first call
WITHIN = 1e-3  # relative difference of parameters, after thousands of steps in single precision
LOOP, VMAP, JACREV = "jit(lax.scan)", "jit(vmap(lax.scan))", "jit(vmap(jacrev))"


def main(*, quick: bool) -> Iterator[Row]:
    """All rows; the quick part is the smaller ones of each kind."""
    for what, case in DESCENTS.items():
        if not (quick and case.large):
            yield _descent(what, case)
    if not quick:
        yield _one_step()
    for lanes in LANES[:1] if quick else LANES:
        yield from _sweep(lanes)
    for what, make in FLOWS.items():
        yield _flow(what, make())
    for samples in KERNELS[:1] if quick else KERNELS:
        yield from _kernel(samples)
    for what in ("minibatches", "flow"):
        yield _first(what, f"{FIRST_CALLS[what]}, first call in a process", 1.5, 1 if quick else FIRST)


def _seconds(*ways: Callable[[], Any]) -> list[float]:
    """The median of each way, compiled before."""
    for way in ways:
        jax.block_until_ready(way())
    return [statistics.median(part) for part in in_turns(ways, REPEATS, SECONDS, clock)]


def _said(ours: float, theirs: float) -> str:
    return f"{1e3 * ours:.3g} ms, by hand {1e3 * theirs:.3g} ms"


def _gap(a: Any, b: Any) -> float:
    """The relative difference of two trees of arrays that have the same leaves."""
    flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (a, b)]
    return float(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1]))


def _require(gap: float, within: float, what: str) -> None:
    if not gap <= within:
        raise ArithmeticError(f"{what}: both sides should find the same, but they differ by {gap:.2g}")


# --- descents


class Descent(NamedTuple):
    """A network of Equinox, samples, and how it is trained.

    Attributes:
        sizes: of its layers.
        large: whether the quick part leaves it out.
    """

    sizes: tuple[int, ...]
    n: int
    optimizer: Callable[[float], optax.GradientTransformation]
    rate: float
    steps: int
    batch: int | None = None
    large: bool = False

    def data(self) -> tuple[eqx.nn.MLP, jax.Array, jax.Array]:
        """The network, its inputs and its targets."""
        keys, sizes = jr.split(jr.key(0), 3), self.sizes
        net = eqx.nn.MLP(sizes[0], sizes[-1], sizes[1], len(sizes) - 2, jax.nn.relu, key=keys[0])
        return net, jr.normal(keys[1], (self.n, sizes[0])), jr.normal(keys[2], (self.n, sizes[-1]))


DESCENTS = {
    "minibatches of 32 of 5,000 samples, 784-128-10, 300 steps": Descent(
        (784, 128, 10), 5000, optax.sgd, 0.01, 300, batch=32
    ),
    "17 steps, 5,000 samples, 784-128-10": Descent((784, 128, 10), 5000, optax.sgd, 0.01, 17, large=True),
    "20 steps of Adam, 5,000 samples, 784-128-10": Descent((784, 128, 10), 5000, optax.adam, 1e-3, 20, large=True),
    "10,000 steps, 30 samples, 5-16-1": Descent((5, 16, 1), 30, optax.sgd, 0.01, 10_000),
    "10,000 steps of Adam, 30 samples, 5-16-1": Descent((5, 16, 1), 30, optax.adam, 1e-3, 10_000),
    "8 steps of Adam, 32 samples, 1000-2500-2500-10 (9 million parameters)": Descent(
        (1000, 2500, 2500, 10), 32, optax.adam, 1e-4, 8, large=True
    ),
}
KEY = 7


def _ours(case: Descent) -> Callable[[], Any]:
    net, x, y = case.data()
    problem, key = js.Problem(net, x, y), None if case.batch is None else jr.key(KEY)
    descent = js.Descent(case.optimizer(case.rate), batch_size=case.batch, key=key)
    return lambda: js.solve(problem, descent, case.steps * case.rate).final.params


def _train(case: Descent, static: Any, params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    """What one would write."""
    optimizer = case.optimizer(case.rate)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sum((jax.vmap(eqx.combine(params, static))(x) - y) ** 2, axis=1)) / 2

    def step(carry: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], None]:
        params, state = carry
        gradient = jax.grad(loss)(params, *((x, y) if batch is None else (x[batch], y[batch])))
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    batches = None if case.batch is None else _batches(case, key)
    return jax.lax.scan(step, (params, optimizer.init(params)), batches, case.steps)[0][0]


def _batches(case: Descent, key: jax.Array) -> jax.Array:
    size = case.batch or case.n
    each = case.n // size
    epochs = jnp.arange(math.ceil(case.steps / each))
    orders = jax.vmap(lambda epoch: jr.permutation(jr.fold_in(key, epoch), case.n))(epochs)
    return orders[:, : each * size].reshape(-1, size)[: case.steps]


def _by_hand(case: Descent) -> Callable[[], Any]:
    net, x, y = case.data()
    params, static = eqx.partition(net, eqx.is_inexact_array)
    run = jax.jit(lambda params, x, y, key: _train(case, static, params, x, y, key))
    return lambda: run(params, x, y, jr.key(KEY))


def _descent(what: str, case: Descent) -> Row:
    with jax.enable_x64(False):
        ways = _ours(case), _by_hand(case)
        gap = _gap(*(way() for way in ways))
        _require(gap, WITHIN, what)
        ours, theirs = _seconds(*ways)
    note = f"{_said(ours, theirs)}; parameters differ by {gap:.1g}"
    return Row(f"{what}: less 1 ms", (ours - CALL) / theirs, "<=", 1.1, peer=LOOP, note=note)


def _one_step() -> Row:
    """With gradients of more than 5 ms, beside which nothing else should be seen."""
    case = DESCENTS["17 steps, 5,000 samples, 784-128-10"]._replace(steps=1)
    with jax.enable_x64(False):
        net, x, y = case.data()
        problem = js.Problem(net, x, y)
        gradient = eqx.filter_jit(lambda problem: jax.value_and_grad(problem.objective)(problem.params))
        ours, one = _seconds(_ours(case), lambda: gradient(problem))
    note = f"{1e3 * ours:.3g} ms, the gradient {1e3 * one:.3g} ms"
    return Row("one step, 5,000 samples, 784-128-10", ours / one, "<=", 1.5, limit="one gradient", note=note)


# --- sweeps

SMALL = Descent((5, 16, 1), 30, optax.sgd, 0.03, 500)
LANES = 60, 360, 1000


def _sweep_of(lanes: int) -> Callable[[], Any]:
    _, x, y = SMALL.data()

    def problem(seed: Any) -> js.Problem:
        return js.Problem(eqx.nn.MLP(5, 1, 16, 1, jax.nn.relu, key=jr.key(seed)), x, y)

    descent, ts = js.Descent(SMALL.optimizer(SMALL.rate)), SMALL.steps * SMALL.rate
    return lambda: js.sweep(problem, {"seed": range(lanes)}, descent, ts, progress=False)["loss"].values


def _vmapped(lanes: int) -> Callable[[], Any]:
    _, x, y = SMALL.data()

    def lane(seed: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        net = eqx.nn.MLP(5, 1, 16, 1, jax.nn.relu, key=jr.key(seed))
        params, static = eqx.partition(net, eqx.is_inexact_array)
        params = _train(SMALL, static, params, x, y, jr.key(KEY))
        return jnp.mean(jnp.sum((jax.vmap(eqx.combine(params, static))(x) - y) ** 2, axis=1)) / 2

    run = jax.jit(jax.vmap(lane, in_axes=(0, None, None)))
    return lambda: run(jnp.arange(lanes), x, y)


def _sweep(lanes: int) -> Iterator[Row]:
    what = f"{lanes} networks 5-16-1, 30 samples, 500 steps"
    with jax.enable_x64(False):
        ways = _sweep_of(lanes), _vmapped(lanes)
        begin = clock()
        found = [np.asarray(ways[0]())]
        middle = clock()
        found.append(np.asarray(ways[1]()))
        first = middle - begin, clock() - middle
        gap = _gap(*found)
        _require(gap, WITHIN, what)
        warm = _seconds(*ways)
    note = f"{_said(*warm)}; losses differ by {gap:.1g}"
    yield Row(f"{what}: later sweep", warm[0] / warm[1], "<=", 1.3, peer=VMAP, note=note)
    if lanes == LANES[0]:  # the others find our program compiled, as its batches are the same
        yield Row(f"{what}: first sweep", first[0] / first[1], "<=", 1.3, peer=VMAP, note=_said(*first))


# --- flows


def _linear() -> js.Problem:
    keys = jr.split(jr.key(0), 3)
    net = eqx.nn.MLP(3, 1, 4, 1, lambda z: z, use_bias=False, use_final_bias=False, key=keys[0])
    return _flow_problem(net, jr.normal(keys[1], (16, 3)), jr.normal(keys[2], (16, 1)))


def _factors() -> js.Problem:
    """A matrix of rank 3 in two factors, from a small start: one sample is the whole matrix."""
    keys = jr.split(jr.key(0), 4)
    start = (0.1 * jr.normal(keys[0], (20, 5)), 0.1 * jr.normal(keys[1], (5, 20)))
    net = js.nets.Function(lambda factors, x: x[0] * (factors[0] @ factors[1]).ravel(), start)
    target = jr.normal(keys[2], (20, 3)) @ jr.normal(keys[3], (3, 20)) / 3
    return _flow_problem(net, jnp.ones((1, 1)), target.reshape(1, -1))


def _convolutional() -> js.Problem:
    keys = jr.split(jr.key(0), 5)
    layers = [
        eqx.nn.Conv2d(1, 8, 3, key=keys[0]),
        eqx.nn.Lambda(jax.nn.gelu),
        eqx.nn.Conv2d(8, 8, 3, key=keys[1]),
        eqx.nn.Lambda(jax.nn.gelu),
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(128, 1, key=keys[2]),
    ]
    return _flow_problem(eqx.nn.Sequential(layers), jr.normal(keys[3], (32, 1, 8, 8)), jr.normal(keys[4], (32, 1)))


def _attentive() -> js.Problem:
    keys = jr.split(jr.key(0), 3)
    net = Block(16, 1, "float64", keys[0])
    return _flow_problem(net, jr.normal(keys[1], (32, 6, 16)), jr.normal(keys[2], (32, 1)))


def _flow_problem(net: Any, x: jax.Array, y: jax.Array) -> js.Problem:
    return js.Problem(net, x, y, test=(x, y))


FLOWS: dict[str, Callable[[], js.Problem]] = {
    "linear 3-4-1, 16 samples": _linear,
    "two factors of a 20 x 20 matrix": _factors,
    "convolutions, gelu, 32 images": _convolutional,
    "transformer block, 32 sequences": _attentive,
}
T, REFERENCE = 5.0, 1e-11


def _run_of(problem: js.Problem, run: js.Trajectory) -> Run:
    moved = jax.tree.map(jnp.subtract, run.final.params, problem.params)
    return Run(moved, problem.test_outputs(run.final.params), int(run.stats.steps), -1)


def _flow(what: str, problem: js.Problem) -> Row:
    """Of the diffrax solvers the one that takes least time to be no less accurate than ours."""
    reference = dopri8(problem, T, REFERENCE)
    ours = lambda: js.solve(problem, js.GradientFlow(), T)
    run = ours()
    error = max(errors(_run_of(problem, run), reference))
    rivals = [rival for rival in RIVALS if rival.name.startswith("diffrax")]
    found = {rival: cheapest(rival, problem, T, reference, error, halvings=2) for rival in rivals}
    ways = {rival: _setting(rival, problem, choice.setting) for rival, choice in found.items() if choice.met}
    mine, *others = _seconds(lambda: ours().final.params, *ways.values())
    theirs, best = min(zip(others, ways, strict=True), key=lambda pair: pair[0])
    steps = f"{int(run.stats.steps)} steps of {run.stats.integrator}, {found[best].steps} by hand"
    note = f"{_said(mine, theirs)}; {steps}; error {error:.1g}"
    return Row(f"flow, {what}: less 1 ms", (mine - CALL) / theirs, "<=", 1.3, peer=best.name, note=note)


def _setting(rival: Rival, problem: js.Problem, setting: float) -> Callable[[], Any]:
    return lambda: rival.run(problem, T, setting)


# --- kernels

KERNELS = 60, 200


def _kernel(samples: int) -> Iterator[Row]:
    with jax.enable_x64(False):
        keys = jr.split(jr.key(0), 4)
        layers = [
            eqx.nn.Conv2d(3, 16, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(16, 16, 3, padding=1, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(lambda z: jnp.mean(z, (1, 2))),
            eqx.nn.Linear(16, 1, key=keys[2]),
        ]
        net, x = eqx.nn.Sequential(layers), jr.normal(keys[3], (samples, 3, 12, 12))
        params, static = eqx.partition(net, eqx.is_inexact_array)

        @jax.jit
        def by_hand(params: Any, x: jax.Array) -> jax.Array:
            rows = jax.vmap(jax.jacrev(lambda p, x: eqx.combine(p, static)(x)), (None, 0))(params, x)
            flat = jnp.concatenate([leaf.reshape(samples, 1, -1) for leaf in jax.tree.leaves(rows)], axis=2)
            return jnp.einsum("iap,jbp->iajb", flat, flat)

        @jax.jit
        def traced(params: Any, x: jax.Array) -> jax.Array:
            return js.kernels.empirical(eqx.combine(params, static), x).ntk

        ways = {
            "called": lambda: js.kernels.empirical(net, x).ntk,
            "in jit": lambda: traced(params, x),
            "by hand": lambda: by_hand(params, x),
        }
        gap = max(_gap(ways[way](), ways["by hand"]()) for way in ("called", "in jit"))
        _require(gap, 1e-4, "the kernel")
        *ours, theirs = _seconds(*ways.values())
    for way, mine in zip(ways, ours, strict=False):
        what = f"kernel of convolutions 3-16-16, {samples} images of 12 x 12, {way}"
        note = f"{_said(mine, theirs)}; entries differ by {gap:.1g}"
        yield Row(what, mine / theirs, "<=", 1.0, peer=JACREV, note=note)


# --- first calls

FIRST_CALLS = {
    "minibatches": next(iter(DESCENTS)),
    "flow": f"flow, {list(FLOWS)[-1]}",
}


def first_call(what: str, *, by_hand: bool) -> float:
    """Seconds of one first call, for use in a process of its own."""
    if what == "flow":
        jax.config.update("jax_enable_x64", True)
        problem = FLOWS[list(FLOWS)[-1]]()
        ours = lambda: js.solve(problem, js.GradientFlow(), T).final.params
        way = (lambda: RIVALS[0].run(problem, T, 1e-5)) if by_hand else ours
    else:
        way = (_by_hand if by_hand else _ours)(DESCENTS[FIRST_CALLS[what]])
    begin = clock()
    jax.block_until_ready(way())
    return clock() - begin


def _first(what: str, said: str, goal: float, repeats: int) -> Row:
    code = "from benchmarks.loops import first_call; print(first_call({!r}, by_hand={}))"
    run = lambda by_hand: own_process(code.format(what, by_hand), JAX_ENABLE_X64="0")[0]
    sides = [(run(False), run(True)) for _ in range(repeats)]
    ours, theirs = (statistics.median(side) for side in zip(*sides, strict=True))
    return Row(
        said, ours / theirs, "<=", goal, peer=RIVALS[0].name if what == "flow" else LOOP, note=_said(ours, theirs)
    )
