"""How well `GradientFlow()` chooses its integrator: its time beside the best of all, on a grid of problems.

Every run is in a process of its own, which has imported everything and compiled nothing: the first call counts as a
user meets it, the later ones without compilation. All integrators run at their default tolerances. The time of
`GradientFlow()` is its own, with what choosing costs.
"""

import itertools
import multiprocessing
import queue
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._said import Row


RUNS = 10  # that the first call is held against: most problems are solved once, or a few times
LONGEST = 45.0  # seconds for one integrator on one problem, compilation and repeats included
REPEATS, SECONDS = 5, 2.0
GOAL = 1.3
SAID = {"first": "first call", "later": "later call", "together": f"first and {RUNS} later calls"}
WAYS = ("Tsit5", "FunctionSpace", "ParameterSpace", "RungeKuttaChebyshev")
PARAMETERS = 1000  # beyond so many, ParameterSpace is not tried


class Case(NamedTuple):
    """A network, its data and its loss.

    Attributes:
        n: samples, of digits.
        shape: principal components, widths of the hidden layers, outputs: 1 for parity, 10 for classes.
        foreign: whether the network is made with `eqx.nn`.
    """

    n: int
    shape: tuple[int, ...]
    activation: str = "tanh"
    loss: str = "MSE"
    gamma: float = 1.0
    foreign: bool = False

    @property
    def parameters(self) -> int:
        """How many weights there are."""
        return sum(a * b for a, b in itertools.pairwise(self.shape))

    def __str__(self) -> str:
        said = f"n = {self.n}, {'-'.join(map(str, self.shape))} {self.activation}"
        said += "" if self.loss == "MSE" else f", {self.loss}"
        said += "" if self.gamma == 1 else f", gamma {self.gamma:g}"
        return said + (", by eqx.nn" if self.foreign else "")


SHORT, MIDDLE, LONG = 3.0, 300.0, 3e4
TIMES = (SHORT, MIDDLE, LONG)
CASES = [
    *itertools.product(
        [
            Case(16, (2, 8, 1), "linear"),
            Case(50, (10, 32, 32, 1)),
            Case(100, (5, 3, 1), "erf"),
            Case(100, (10, 64, 64, 1), "softplus"),
            Case(100, (10, 64, 64, 1), "relu"),
            Case(100, (10, 64, 64, 1), "gelu", foreign=True),
            Case(200, (10, 160, 160, 160, 1), "gelu"),
            Case(200, (10, 256, 256, 1), "tanh"),
            Case(50, (10, 32, 32, 10), "tanh", "CrossEntropy"),
            Case(300, (20, 64, 64, 10), "tanh"),
            Case(1000, (10, 64, 64, 1), "tanh"),
        ],
        TIMES,
    ),
    (Case(100, (10, 64, 64, 1), "softplus", "SoftHinge"), MIDDLE),
    (Case(100, (10, 64, 64, 1), "softplus", gamma=10.0), MIDDLE),
    (Case(100, (10, 64, 64, 1), "softplus", gamma=0.1), MIDDLE),
    (Case(300, (20, 64, 64, 10), "relu", "CrossEntropy"), MIDDLE),
    (Case(300, (20, 64, 64, 10), "relu", foreign=True), MIDDLE),
    (Case(1000, (20, 32, 32, 10), "tanh"), SHORT),
    (Case(1000, (20, 32, 32, 10), "tanh"), MIDDLE),
]
QUICK = CASES[::8]


class Time(NamedTuple):
    """Seconds of the first call and of a later one, the digits that the run is trusted to, and what integrated."""

    first: float
    later: float
    trust: float
    integrator: str

    @property
    def together(self) -> float:
        """What a user waits for in all: the first call and ten later ones."""
        return self.first + RUNS * self.later


UNFINISHED = Time(LONGEST, LONGEST, 0.0, "")


def main(*, quick: bool) -> Iterator[Row]:
    """All 40 problems; five in the quick part."""
    found: dict[str, list[float]] = {"first": [], "later": [], "together": []}
    for case, T in QUICK if quick else CASES:
        default = seconds(case, T, "")
        few = case.parameters <= PARAMETERS
        ways = {way: seconds(case, T, way) for way in WAYS if few or way != "ParameterSpace"}
        done = {way: time for way, time in ways.items() if time != UNFINISHED}
        if not done:
            yield Row(f"{case}, to t = {T:g}: seconds in which no integrator finished", LONGEST, note="not counted")
            continue
        note = ", ".join(
            f"{way} {t.first:.3g} s, {1e3 * t.later:.3g} ms, {t.trust:.1f} digits" for way, t in done.items()
        )
        for part, ratios in found.items():
            best = min(ways, key=lambda way: getattr(ways[way], part))
            ratios.append(getattr(default, part) / getattr(ways[best], part))
            what = f"{case}, to t = {T:g}: {SAID[part]} of GradientFlow() / of the best integrator"
            yield Row(what, ratios[-1], "<=", GOAL, peer=best, note=f"{default.integrator}; {note}")
    for part, ratios in found.items():
        share = statistics.mean(ratio <= GOAL for ratio in ratios)
        yield Row(f"problems within {GOAL} of the best, {SAID[part]}: share", share, note=f"worst {max(ratios):.3g}")


def seconds(case: Case, T: float, way: str) -> Time:
    """The time of one integrator, or of the default one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxsolve", "diffrax", "jaxsolve.nets", "jaxsolve.data", "jaxsolve.integrators"])
    found = context.Queue()
    child = context.Process(target=_measure, args=(case, T, way, found), daemon=True)
    child.start()
    try:
        return Time(*found.get(timeout=LONGEST))
    except queue.Empty:
        return UNFINISHED
    finally:
        child.kill()
        child.join()


def _measure(case: Case, T: float, way: str, found: Any) -> None:
    import diffrax
    import jax

    import jaxsolve as js

    jax.config.update("jax_enable_x64", True)
    problem = make(case)
    integrator = None if not way else diffrax.Tsit5() if way == "Tsit5" else getattr(js.integrators, way)()

    def call() -> tuple[Any, float]:
        begin = time.perf_counter()
        run = js.solve(problem, js.GradientFlow(integrator), [0.0, T], throw=False)
        jax.block_until_ready(run.observed)
        return run, time.perf_counter() - begin

    run, first = call()
    if not float(run.t_end) >= T:
        found.put(UNFINISHED)
        return
    later: list[float] = []
    while len(later) < REPEATS and sum(later) < SECONDS:
        later.append(call()[1])
    found.put((first, statistics.median(later), float(run.certificate.trust), run.stats.integrator))


def make(case: Case) -> Any:
    """The problem of a case."""
    import equinox as eqx
    import jax

    import jaxsolve as js

    inputs, *widths, outputs = case.shape
    task = "parity" if outputs == 1 else "classes"
    data = js.data.digits(task=task, n_train=case.n, pca=inputs, key=jax.random.key(0))
    phi, key = js.nets.softplus(5.0) if case.activation == "softplus" else case.activation, jax.random.key(1)
    if case.foreign:
        net: Any = eqx.nn.MLP(inputs, outputs, widths[0], len(widths), getattr(jax.nn, case.activation), key=key)
    else:
        scaling = js.nets.Scaling.lazy(case.gamma, gain=True)
        net = js.nets.MLP(
            in_size=inputs,
            out_size=outputs,
            width_size=widths[0],
            depth=len(widths),
            activation=phi,
            scaling=scaling,
            key=key,
        )
    return js.Problem(net, *data.train, loss=getattr(js.losses, case.loss)(), centered=not case.foreign)
