"""The cost of the rich limit, against the published fixed point over all times.

The settings are those of the authors' notebooks (Bordelon & Pehlevan 2022): depth, samples, steps, rate and richness.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import jaxsolve as js

from ._said import Beside, Row
from ._timing import in_turns, timed


EQUAL = 1e-8  # sweeps of the fixed point go on until one moves the outputs by less
MOST = 200  # sweeps
NODES = 800  # of the reference


def main(*, quick: bool) -> Iterator[Row]:
    """All of them."""
    one = Setting(3, 1, 4, 200, 0.05, 1.5)
    yield from _linear("Linear, L = 3, P = 1, T = 200", one, goal=0.1, times_faster=20)
    yield from _flow("Linear, L = 3, P = 1, gradient flow to t = 9.95", one, times_faster=20)
    if quick:
        return
    yield from _linear("Linear, L = 5, P = 20, T = 100", Setting(5, 20, 40, 100, 0.025, 1.5), goal=10)
    two = Setting(1, 25, 40, 200, 0.075, 3.0)
    yield from _sampled("Two layers, relu, P = 25, T = 200, S = 4096", two, js.nets.relu, goal=10)
    deep = Setting(3, 10, 25, 100, 0.1, 1.0)
    yield from _sampled("Deep tanh, L = 3, P = 10, T = 100, S = 4096", deep, js.nets.tanh, goal=180)


class Setting(NamedTuple):
    """A training by gradient descent.

    Attributes:
        depth: hidden layers.
        samples, dimension: of the inputs.
        steps: how many.
        rate: of a step.
        richness: 1/(gamma m_L N sigma_L).
    """

    depth: int
    samples: int
    dimension: int
    steps: int
    rate: float
    richness: float

    def data(self) -> tuple[Float[Array, "n d"], Float[Array, "n 1"]]:
        """Gaussian inputs, and targets of one sign for each half."""
        x = jax.random.normal(jax.random.key(0), (self.samples, self.dimension))
        half = jnp.arange(self.samples) < self.samples / 2
        return x, jnp.where(half, 1.0, -1.0)[:, None]

    def problem(self, activation: str | js.nets.Activation) -> js.Problem:
        """The same problem at any width."""
        x, y = self.data()
        scaling = js.nets.Scaling.mean_field(1 / self.richness, eta=self.richness**2)
        net = js.nets.MLP(
            in_size=self.dimension,
            out_size=1,
            width_size=100,
            depth=self.depth,
            activation=activation,
            scaling=scaling,
            key=jax.random.key(1),
        )
        return js.Problem(net, x, y)

    def solve(self, problem: js.Problem) -> Float[Array, "t n"]:
        """The outputs at all times."""
        limit = js.RichLimit(rate=self.rate, nodes=self.steps)
        ts = self.rate * np.arange(self.steps)
        return js.solve(problem, limit, ts, observe=js.observe.outputs())["outputs"][..., 0]


def _linear(what: str, setting: Setting, *, goal: float, times_faster: float | None = None) -> Iterator[Row]:
    problem = setting.problem("linear")
    ours = lambda: setting.solve(problem)
    found, cold = timed(ours)
    f, most = _settled(setting, problem)
    apart = lambda one, other: float(jnp.max(jnp.abs(one - other)))
    off = apart(f, found)
    # No more sweeps than matter beside the difference between the two ways.
    close = (n for n, one in enumerate(_sweeps(setting, problem), 1) if n == most or apart(one, f) <= off / 10)
    count = next(close)
    both = [ours, lambda: fixed_point(setting, problem, count)]
    seconds, theirs = (statistics.median(way) for way in in_turns(both, 5, budget=60))
    peer, note = "the fixed point over all times", f"{cold:.1f} s with compilation"
    yield Row(f"{what}: seconds, warm", seconds, "<=", goal, beside=(Beside(peer, theirs),), note=note)
    note = f"{count} sweeps of {theirs / count:.2g} s ({most} until they settle), {off:.2g} away from ours"
    what = f"{what}: fixed point / ours, time"
    yield Row(what, theirs / seconds, ">=", times_faster or 1.0, peer=peer, note=note)


def _flow(what: str, setting: Setting, *, times_faster: float) -> Iterator[Row]:
    """At equal error: steps as published follow gradient flow to first order. Both take as little as will do."""
    problem = setting.problem("linear")
    kept = np.array([0, 5, 10, 20, 40, setting.steps - 1])  # it learns within the first forty steps
    ts = setting.rate * kept

    def solve(nodes: int) -> Float[Array, "t n"]:
        return js.solve(problem, js.RichLimit(nodes=nodes), ts, observe=js.observe.outputs())["outputs"][..., 0]

    coarse, fine = solve(NODES // 2), solve(NODES)
    reference = fine + (fine - coarse) / 3
    error = lambda f: float(jnp.max(jnp.abs(f - reference)))
    settled, most = _settled(setting, problem)
    allowed = error(settled[kept])
    count = next(n for n, f in enumerate(_sweeps(setting, problem), 1) if error(f[kept]) <= 1.1 * allowed)
    nodes = next(n for n in (4, 8, 16, 32, 64, 128, 256) if error(solve(n)) <= allowed)
    both = [lambda: solve(nodes), lambda: fixed_point(setting, problem, count)]
    seconds, theirs = (statistics.median(way) for way in in_turns(both, 5, budget=60))
    note = (
        f"{seconds:.2g} s, error {error(solve(nodes)):.2g} with {nodes} nodes and {len(ts)} asked for; {theirs:.2g} s, "
        f"error {allowed:.2g} with {setting.steps} and {count} sweeps ({most} until they settle); {NODES} nodes: "
        f"error {error(fine):.1e}"
    )
    what, peer = f"{what}, at equal error: fixed point / ours, time", "the fixed point over all times"
    yield Row(what, theirs / seconds, ">=", times_faster, peer=peer, note=note)


def _settled(setting: Setting, problem: js.Problem) -> tuple[Float[Array, "t n"], int]:
    """Outputs by sweeps until one moves them by less than `EQUAL`, and how many."""
    f = jnp.zeros((setting.steps, setting.samples))
    for count, new in enumerate(islice(_sweeps(setting, problem), MOST), 1):
        f, moved = new, jnp.max(jnp.abs(new - f))
        if moved < EQUAL:
            return f, count
    return f, MOST


def fixed_point(setting: Setting, problem: js.Problem, count: int) -> Float[Array, "t n"]:
    """The outputs after so many sweeps."""
    return next(islice(_sweeps(setting, problem), count - 1, None))


def _sweeps(setting: Setting, problem: js.Problem) -> Iterator[Float[Array, "t n"]]:
    """The outputs after one sweep more each time, from kernels that stand still."""
    y, layers = problem.y[:, 0], _lazy(problem.x @ problem.x.T / setting.dimension, setting)
    while True:
        layers, f = _sweep(setting, y, layers)
        yield f


def _sampled(what: str, setting: Setting, activation: js.nets.Activation, *, goal: float) -> Iterator[Row]:
    problem = setting.problem(activation)
    ours = lambda: setting.solve(problem)
    _, cold = timed(ours)
    (seconds,) = (statistics.median(way) for way in in_turns([ours], 3, budget=60))
    beside = (Beside("bare Grams of its samples", _grams(setting)),)
    yield Row(f"{what}: seconds, warm", seconds, "<=", goal, beside=beside, note=f"{cold:.1f} s with compilation")


def _grams(setting: Setting) -> float:
    """Seconds of the matrix products alone by which equations for kernels get them from samples, once.

    Those of features and of gradients, of each hidden layer. The kernel of training needs them at equal times only. A
    hidden layer needs, of its neighbors, those with all earlier times too: features of the one below, gradients of the
    one above.
    """
    samples, between = js.RichLimit().samples, setting.depth - 1
    signals = jax.random.normal(jax.random.key(0), (setting.steps, setting.samples, samples))
    gram = lambda z: z @ z.T

    def seconds(products: Callable[[Array], Array], z: Array) -> float:
        compiled = jax.jit(products)
        jax.block_until_ready(compiled(z))
        (found,) = in_turns([lambda: compiled(z)], 3)
        return statistics.median(found)

    # Time after time, as they become known: on processors a batch of products takes ten times as long.
    equal = seconds(lambda z: jax.lax.map(gram, z), signals)
    # Two for each pair of neighbors, of which half is earlier.
    return 2 * equal + (between * seconds(gram, signals.reshape(-1, samples)) if between else 0.0)


class _Layer(NamedTuple):
    """Kernels at all pairs of times and samples, and responses.

    Attributes:
        h, g: <h h> and <g g>.
        a, b: <dh/dr> and <dg/du>.
    """

    h: Float[Array, "tn tn"]
    g: Float[Array, "t t"]
    a: Float[Array, "tn t"]
    b: Float[Array, "t tn"]


def _lazy(gram: Array, setting: Setting) -> list[_Layer]:
    """Where the sweeps begin: kernels that stand still, and no responses."""
    t, tn = setting.steps, setting.steps * setting.samples
    still = _Layer(jnp.tile(gram, (t, t)), jnp.ones((t, t)), jnp.zeros((tn, t)), jnp.zeros((t, tn)))
    return [still] * (setting.depth + 2)


@partial(jax.jit, static_argnums=0)
def _sweep(setting: Setting, y: Array, layers: list[_Layer]) -> tuple[list[_Layer], Float[Array, "t n"]]:
    """One sweep through the layers, and the outputs by their kernels.

    (I - C D)^-1 is I + C (I - D C)^-1 D, so that the matrix to be inverted is one of times alone.
    """
    t, n = setting.steps, setting.samples
    tn, earlier, speed = t * n, jnp.tril(jnp.ones((t, t)), -1), setting.rate * setting.richness / n
    f = _outputs(setting, y, layers)
    delta, new = y - f, [layers[0]]
    for l in range(1, setting.depth + 1):
        below, above = layers[l - 1], layers[l + 1]
        driven = jnp.einsum("xsn,sn->xs", below.h.reshape(tn, t, n), delta)
        c = below.a + speed * jnp.repeat(earlier, n, axis=0) * driven
        d = above.b + speed * ((earlier * above.g)[:, :, None] * delta[None]).reshape(t, tn)
        middle = jnp.linalg.inv(jnp.eye(t) - d @ c)
        one = lambda m, c=c, d=d, middle=middle: m + c @ (middle @ (d @ m))
        a, b = c @ middle, middle @ d
        h = one(one(below.h).T) + a @ above.g @ a.T
        g = middle @ above.g @ middle.T + b @ below.h @ b.T
        new.append(_Layer(h, g, a, b))
    return [*new, layers[-1]], _outputs(setting, y, [*new, layers[-1]])


def _outputs(setting: Setting, y: Array, layers: list[_Layer]) -> Float[Array, "t n"]:
    """As published: steps of the NTK, which are those of gradient flow."""
    t, n = setting.steps, setting.samples
    equal = lambda h: jnp.einsum("tntm->tnm", h.reshape(t, n, t, n))
    pairs = zip(layers[:-1], layers[1:], strict=True)
    ntk = sum(equal(low.h) * jnp.diagonal(up.g)[:, None, None] for low, up in pairs)
    one = lambda f, kernel: (f + setting.rate / n * kernel @ (y - f), f)
    return jax.lax.scan(one, jnp.zeros_like(y), ntk)[1]
