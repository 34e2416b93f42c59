"""What `js.Monitor` adds to a training loop: 64 samples measured every 100 steps, for a perceptron, a residual network
and a transformer, each in float32 and in batches of 128.

A share is the time of a look after 30 steps beside that of 100 steps, both called in turns. It is of processor time on
a CPU, which other work on the machine disturbs least, and of wall time on an accelerator. A step is one call of a
compiled function, as users write it.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js

from ._said import Beside, Row
from ._timing import timed


EVERY, PROBES, BATCH = 100, 64, 128
SHARE = 0.05  # of the time of the steps, at most
ROUNDS, SECONDS = 25, 25.0  # of calls in turns
BEFORE = 30  # steps before a look
TOKENS, SYMBOLS = 32, 32
OPTIMIZER = optax.adam(1e-3)
# A number of the monitor, and of the diagnosis.
SAME = {
    "kernel_change": "kernel_change",
    "kernel_centered_alignment": "kernel_alignment",
    "nonlinearity": "nonlinearity",
    "residual_position": "residual_position",
}
Loss = Callable[[Any, jax.Array, jax.Array], jax.Array]


class Training(NamedTuple):
    """A loop: its network, the loss of a batch, the data, and the problem of the samples to look at."""

    net: Any
    loss: Loss
    x: jax.Array
    y: jax.Array
    problem: js.Problem
    at_once: int  # steps that are timed together


class Transformer(eqx.Module):
    """Four pre-norm blocks, which predict the next of `SYMBOLS` symbols at every place of a text."""

    embed: eqx.nn.Embedding
    place: jax.Array
    attention: list[eqx.nn.MultiheadAttention]
    dense: list[eqx.nn.MLP]
    norms: list[eqx.nn.LayerNorm]
    read: eqx.nn.Linear

    def __init__(self, width: int, depth: int, key: jax.Array):
        first, second, last, *keys = jr.split(key, 3 + 2 * depth)
        self.embed = eqx.nn.Embedding(SYMBOLS, width, key=first)
        self.place = 0.02 * jr.normal(second, (TOKENS, width))
        self.attention = [eqx.nn.MultiheadAttention(4, width, key=one) for one in keys[:depth]]
        self.dense = [eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=one) for one in keys[depth:]]
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2 * depth + 1)]
        self.read = eqx.nn.Linear(width, SYMBOLS, key=last)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits at all places, (tokens, symbols)."""
        h = jax.vmap(self.embed)(tokens) + self.place
        seen = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        for k, (attention, dense) in enumerate(zip(self.attention, self.dense, strict=True)):
            z = jax.vmap(self.norms[2 * k])(h)
            h = h + attention(z, z, z, mask=seen)
            h = h + jax.vmap(lambda one, k=k, dense=dense: dense(self.norms[2 * k + 1](one)))(h)
        return jax.vmap(lambda one: self.read(self.norms[-1](one)))(h)


def main(*, quick: bool) -> Iterator[Row]:
    """All three loops; the quick part is the perceptron alone."""
    with jax.enable_x64(False):
        images, labels, source = digits()
        loops = {"MLP 784-256-10": lambda: _perceptron(images, labels)}
        if not quick:
            loops["WRN-10-1 with group norm, 14 x 14"] = lambda: _residual(images, labels)
            loops["transformer, 4 layers of 64"] = _transformer
        print(f"images: {source}")
        for name, make in loops.items():
            yield from of_loop(name, make())


def digits() -> tuple[np.ndarray, np.ndarray, str]:
    """2,048 or fewer images of 28 x 28 digits, (n, 1, 28, 28), their classes, one-hot, and where they are from."""
    try:
        data = js.data.mnist(n_train=2048, n_test=0, flatten=False, official_split=False, key=jr.key(0))
        return np.asarray(data.x), np.asarray(data.y), "MNIST"
    except FileNotFoundError:
        data = js.data.digits(n_train=1797, n_test=0, key=jr.key(0))
        images = jax.image.resize(data.x.reshape(-1, 1, 8, 8), (len(data.x), 1, 28, 28), "linear")
        return np.asarray(images), np.asarray(data.y), "scikit-learn's digits, scaled up, as MNIST is not here"


def _cross_entropy(net: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(optax.softmax_cross_entropy(jax.vmap(net)(x), y))


def _of_images(net: Any, x: Any, y: Any, at_once: int) -> Training:
    problem = js.Problem(net, x[:PROBES], y[:PROBES], loss=js.losses.CrossEntropy())
    return Training(net, _cross_entropy, jnp.asarray(x), jnp.asarray(y), problem, at_once)


def _perceptron(images: np.ndarray, labels: np.ndarray) -> Training:
    net = eqx.nn.MLP(784, 10, 256, 1, jax.nn.relu, key=jr.key(1))
    return _of_images(net, images.reshape(len(images), -1), labels, 50)


def _residual(images: np.ndarray, labels: np.ndarray) -> Training:
    kinds = {"normalization": js.nets.GroupNorm(8), "scaling": js.nets.Scaling.kaiming()}
    net = js.nets.WideResNet(in_shape=(1, 14, 14), out_size=10, k=1, b=1, key=jr.key(1), **kinds)
    halves = images.reshape(-1, 1, 14, 2, 14, 2).mean(axis=(3, 5))
    return _of_images(net, halves, labels, 1)


def _transformer() -> Training:
    """On texts of a random chain of symbols. The samples that are looked at are read at their last place."""
    jumps = jr.dirichlet(jr.key(2), jnp.full(SYMBOLS, 0.2), (SYMBOLS,))
    move = lambda now, key: (jr.categorical(key, jnp.log(jumps[now])), now)
    text = lambda key: jax.lax.scan(move, jr.randint(key, (), 0, SYMBOLS), jr.split(key, TOKENS + 1))[1]
    texts = jax.vmap(text)(jr.split(jr.key(3), 2048))
    x, y = texts[:, :-1], texts[:, 1:]
    net = Transformer(64, 4, jr.key(1))

    def loss(net: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(jax.vmap(net)(x), y))

    last = js.nets.Function(lambda net, tokens: net(tokens.astype(int))[-1], net)
    problem = js.Problem(last, x[:PROBES], y[:PROBES, -1], loss=js.losses.CrossEntropy())
    return Training(net, loss, x, y, problem, 1)


class Loop:
    """The loop as users write it."""

    def __init__(self, training: Training):
        @eqx.filter_jit
        def step(net, state, x, y):
            params, rest = js.nets.partition(net)
            gradient = jax.grad(lambda params: training.loss(eqx.combine(params, rest), x, y))(params)
            updates, state = OPTIMIZER.update(gradient, state)
            return eqx.apply_updates(net, updates), state

        self.training, self._step, self.steps = training, step, 0
        self.net = training.net
        self.state: Any = OPTIMIZER.init(js.nets.partition(training.net)[0])

    def after(self, steps: int) -> tuple[Any, Any]:
        """The network and the optimizer's state after so many more steps."""
        net, state, x, y = self.net, self.state, self.training.x, self.training.y
        for step in range(self.steps, self.steps + steps):
            begin = step * BATCH % (len(x) - BATCH)
            net, state = self._step(net, state, x[begin : begin + BATCH], y[begin : begin + BATCH])
        return net, state

    def run(self, steps: int) -> None:
        """Goes on by so many steps."""
        self.net, self.state = self.after(steps)
        self.steps += steps


def of_loop(name: str, training: Training) -> Iterator[Row]:
    """The rows of one loop."""
    loop = Loop(training)
    watched = [*js.Monitor(training.problem).observe, js.observe.residual_position()]
    same = js.Monitor(training.problem, observe=watched, every=1)
    loop.run(BEFORE)
    yield _agreement(name, loop, same(BEFORE, loop.net, loop.state) or {})

    dear = {
        "sharpness": js.observe.sharpness(),
        "stability(adam)": js.observe.stability(OPTIMIZER),
        "critical_rate(adam)": js.observe.critical_rate(OPTIMIZER),
        "residual_position": js.observe.residual_position(),
    }
    monitor = js.Monitor(training.problem, every=EVERY)
    first = timed(lambda: monitor(0, loop.net, loop.state))[1]
    yield _row(f"{name}: default observables, share of the time of the steps", loop, monitor, SHARE)
    yield Row(f"{name}: the first row of these, which compiles, s", first)
    for kind, observable in dear.items():
        alone = js.Monitor(training.problem, observe=observable, every=EVERY)
        compiled = timed(lambda alone=alone: alone(0, loop.net, loop.state))[1]
        yield _row(f"{name}: {kind} besides, share of the time of the steps", loop, alone, math.nan, compiled)


def _row(what: str, loop: Loop, monitor: js.Monitor, goal: float, compiled: float = math.nan) -> Row:
    """How long a look takes in units of `EVERY` steps."""
    # From one place on, as some observables take more products later in a training.
    steps = lambda: eqx.filter(loop.after(loop.training.at_once), eqx.is_array)
    steps()
    found = _in_turns(steps, lambda: monitor(0, loop.net, loop.state)) / [[loop.training.at_once], [1]]
    on_cpu = jax.default_backend() == "cpu"
    trusted, other = found if on_cpu else found[::-1]
    share = lambda seconds: float(seconds[1] / (EVERY * seconds[0]))
    step, look = np.median(trusted, axis=1)
    measured = share((step, look))
    enough = max(1, math.ceil(EVERY * measured / SHARE))
    note = f"a step {1e3 * step:.3g} ms, a look {1e3 * look:.3g} ms; {SHARE:.0%} at every={enough}"
    if not math.isnan(compiled):
        note += f"; the first row {compiled:.1f} s"
    beside = (
        Beside("that of wall time" if on_cpu else "that of processor time", share(np.median(other, axis=1))),
        Beside(f"that of the fastest of {trusted.shape[1]} calls", share(np.min(trusted, axis=1))),
    )
    return Row(what, measured, "" if math.isnan(goal) else "<=", goal, beside=beside, note=note)


def _in_turns(*ways: Callable[[], Any]) -> np.ndarray:
    """Seconds of the processor and of the wall, (2, ways, calls), of ways that are called in turns."""
    found: list[np.ndarray] = []
    clocks = lambda: np.array([time.process_time(), time.perf_counter()])
    start = time.perf_counter()
    while len(found) < ROUNDS and (len(found) < 3 or time.perf_counter() - start < SECONDS):
        row = []
        for way in ways:
            begin = clocks()
            jax.block_until_ready(way())
            row.append(clocks() - begin)
        found.append(np.array(row))
    return np.transpose(found, (2, 1, 0))


def _agreement(name: str, loop: Loop, row: dict[str, float]) -> Row:
    """The largest difference of a row from a diagnosis of the same networks."""
    problem = loop.training.problem
    now = jax.tree.unflatten(jax.tree.structure(problem.params), jax.tree.leaves(js.nets.partition(loop.net)[0]))
    nets = [problem.net, problem.network(now)]
    report = js.diagnose_checkpoints(nets, problem.x, problem.y, loss=problem.loss, steps=[0, BEFORE], probes=PROBES)
    apart = {ours: abs(row[ours] - report[theirs]) / abs(report[theirs]) for ours, theirs in SAME.items()}
    worst = max(apart, key=lambda ours: apart[ours])
    what = f"{name}: largest relative difference from js.diagnose_checkpoints"
    said = ", ".join(f"{theirs} {report[theirs]:.3g}" for theirs in SAME.values())
    eps = Beside("rounding", float(jnp.finfo(problem.dtype).eps))
    return Row(what, apart[worst], "<=", 1e-4, ".1e", beside=(eps,), note=f"of {worst}; {said}")
