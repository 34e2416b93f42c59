"""Empirical NTKs: time, memory, growth and equality, against neural-tangents and the bare products. Cases are of relu:
A has 200 samples and 2 layers of 256; B 500, and 3 of 512; C 300, 2 of 256, and 10 outputs.

Every contestant gets the same weights and inputs and gives every entry of the train/train kernel, in the order of axes
that comes naturally to it. All are compiled beforehand and called in turns, so that other work on the machine disturbs
all alike; a ratio is one of medians.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import psutil

import jaxsolve as js
from jaxsolve.kernels import neural_tangents, NeuralTangentsUnavailable

from ._foreign import dense, FOREIGN, ours as foreign_ours, theirs as foreign_theirs
from ._neural_tangents_server import Contestant, ntk, Remote, Server, structured_server
from ._said import Beside, rounding, Row


class Case(NamedTuple):
    """A relu network with NTK scaling, its samples, and the ratios that are its goals."""

    n: int
    d: int
    depth: int
    width: int
    c: int
    against_current: float = math.nan
    against_structured: float = math.nan

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.d, *[self.width] * self.depth, self.c)


CASES = {
    "A": Case(200, 10, 2, 256, 1, 60, 1.5),
    "B": Case(500, 64, 3, 512, 1, 200, 1.5),
    "C": Case(300, 64, 2, 256, 10, 40, 2.0),
}
DTYPES = {"float32": 1e-5, "float64": 1e-12}  # and the largest difference allowed
IMPLEMENTATIONS = ("JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS")
SECONDS_PER_CASE, ROUNDS = 5.0, 20  # of repetitions, at least
SLOW = 1.0  # seconds: what takes longer counts from its first call, and is called three times at most
HOPELESS = 1.5  # slower than the faster rival by this: not called again
WALL = 240.0


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; the quick part is case A."""
    start = time.perf_counter()
    with structured_server() as server:
        print(f"neural-tangents on its own JAX: {server.what if isinstance(server, Server) else server}")
        left_out: dict[str, str] = {}
        for name, case in CASES.items():
            for dtype in DTYPES:
                if not quick or (name, dtype) == ("A", "float32"):
                    yield from of_case(name, case, dtype, server, left_out)
        for name in () if quick else FOREIGN:
            yield from _foreign(name)
        for dtype in () if quick else DTYPES:
            yield from _growth(dtype)
    yield Row("Wall time of it all, s", time.perf_counter() - start, "<=", WALL)


# --- one case


def sides(case: Case, dtype: str) -> tuple[js.nets.MLP, list[jax.Array], jax.Array]:
    """The same network for both sides, as a module and as matrices of shape (in, out), and its inputs."""
    keys = jax.random.split(jax.random.key(0))
    scaling = js.nets.Scaling.ntk()
    net = js.nets.MLP(
        in_size=case.d,
        out_size=case.c,
        width_size=case.width,
        depth=case.depth,
        activation="relu",
        scaling=scaling,
        key=keys[0],
        dtype=dtype,
    )
    return net, [w.T for w in net.weights], jax.random.normal(keys[1], (case.n, case.d), dtype)


def _ours(net: Any, x: jax.Array) -> Contestant:
    arrays, static = eqx.partition(net, eqx.is_array)
    return Contestant("jaxsolve", lambda a, x: js.kernels.empirical(eqx.combine(a, static), x).ntk, arrays, x)


def products(case: Case) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of the matrix products in the layerwise formula.

    Forward and backward passes, less what is no product (the output itself and the signal that starts at it), and per
    layer the Grams of its inputs and of the signals propagated back to it.
    """
    n, nc, sizes = case.n, case.n * case.c, case.sizes
    hidden = range(len(sizes) - 2)
    forward = [(n, sizes[index], sizes[index + 1]) for index in hidden]
    backward = [(nc, sizes[index + 1], sizes[index]) for index in hidden if index]
    return [
        *forward,
        *backward,
        *[(n, size, n) for size in sizes[:-1]],
        *[(nc, sizes[index + 1], nc) for index in hidden],
    ]


def _bare(case: Case, dtype: str) -> Contestant:
    rng = np.random.default_rng(0)
    draw = lambda rows, columns: jnp.asarray(rng.standard_normal((rows, columns)), dtype)
    pairs = [(draw(rows, inner), draw(columns, inner)) for rows, inner, columns in products(case)]
    return Contestant("bare matrix products", lambda pairs: [a @ b.T for a, b in pairs], pairs)


def of_case(
    name: str,
    case: Case,
    dtype: str,
    server: Server | str,
    left_out: dict[str, str],
    rivals_of: str = "the fastest of neural-tangents on this JAX",
) -> Iterator[Row]:
    """Its rows; `rivals_of` says what is left of the rivals."""
    outputs = "one output" if case.c == 1 else f"{case.c} outputs"
    print(f"\n{name}, {dtype}: n = {case.n}, d = {case.d}, {case.depth} hidden layers of {case.width}, {outputs}")
    net, weights, x = sides(case, dtype)
    ours, bare = _ours(net, x), _bare(case, dtype)
    module = _ours(dense(case.sizes, dtype), x)
    module.name = "jaxsolve, of eqx.nn"
    current = _current_rivals(f"{name} {dtype}", weights, x, left_out)
    structured = _structured_rival(weights, x, server)
    rivals = [*current, *([structured] if structured else [])]
    seconds = take_turns([ours, module, bare, *rivals], may_drop=[rival.name for rival in current])
    medians = {key: float(np.median(value)) for key, value in seconds.items()}
    kernel = ours.answer()
    differences = {rival.name: _difference(np.moveaxis(rival.answer(), 2, 1), kernel) for rival in rivals}
    for contestant in [ours, module, bare, *rivals]:
        _print_times(contestant, seconds[contestant.name], differences.get(contestant.name))
    fastest = min((rival.name for rival in current), key=lambda rival: medians[rival], default=None)
    if fastest:
        _leave_out(name, medians, left_out)
        ratio = medians[fastest] / medians[ours.name]
        what = f"{name} {dtype}: {rivals_of} / jaxsolve, time"
        note = f"{1e3 * medians[ours.name]:.3g} ms; {len(seconds[fastest])} calls of the other"
        yield Row(what, ratio, ">=", case.against_current, peer=fastest, note=note)
    if structured:
        ratio = medians[structured.name] / medians[ours.name]
        what = f"{name} {dtype}: STRUCTURED_DERIVATIVES of neural-tangents on jax 0.4.23 / jaxsolve, time"
        yield Row(what, ratio, ">=", case.against_structured, peer=structured.name)
    ratio = medians[module.name] / medians[ours.name]
    yield Row(f"{name} {dtype}: eqx.nn / js.nets, time", ratio, "<=", 1.3, limit="the same of js.nets")
    ratio = medians[ours.name] / medians[bare.name]
    yield Row(f"{name} {dtype}: jaxsolve / bare matrix products, time", ratio, "<=", 2, limit=bare.name)
    itemsize = jnp.dtype(dtype).itemsize
    needed = itemsize * (kernel.size + case.n * sum(case.sizes[:-1]))
    what, limit = f"{name} {dtype}: memory planned by XLA / (kernel + activations)", "kernel + activations"
    yield Row(what, ours.bytes / needed, "<=", 2, limit=limit)
    if rivals:
        worst = max(differences.values())
        what, beside = f"{name} {dtype}: largest relative difference to neural-tangents", (rounding(dtype),)
        yield Row(what, worst, "<=", DTYPES[dtype], beside=beside)


def _current_rivals(where: str, weights: Any, x: Any, left_out: dict[str, str]) -> list[Contestant]:
    """neural-tangents on this JAX, in every way that works and has not yet lost clearly."""
    try:
        nt = neural_tangents()
    except NeuralTangentsUnavailable as error:
        print(f"  neural-tangents on this JAX was not measured: {error}")
        return []
    found = []
    for implementation in IMPLEMENTATIONS:
        for vmap_axes in (0, None):
            name = f"{implementation}, vmap_axes={vmap_axes}"
            reason = left_out.get(name) or left_out.get(f"{name} {where}")
            if reason is None:
                contestant = Contestant(name, ntk(nt, implementation, vmap_axes=vmap_axes), weights, x)
                if contestant.bytes > 0.5 * psutil.virtual_memory().available:
                    reason = f"it needs {contestant.bytes / 1e9:.1f} GB, more than half of what is free"
                else:
                    found.append(contestant)
            if reason is not None:
                print(f"  {name} was not measured: {reason}")
    return found


def _structured_rival(weights: Any, x: Any, server: Server | str) -> Remote | None:
    try:
        if isinstance(server, Server):
            return server.contestant(weights, x)
        reason = server
    except RuntimeError as error:
        reason = str(error)
    print(f"  neural-tangents' STRUCTURED_DERIVATIVES was not measured: {reason}")
    return None


def _leave_out(case: str, medians: dict[str, float], left_out: dict[str, str]) -> None:
    """What has lost: a way of calling for good, an implementation that takes long in this case's other precision."""
    for implementation in IMPLEMENTATIONS:
        best, other = (medians.get(f"{implementation}, vmap_axes={axes}", math.nan) for axes in (0, None))
        name = f"{implementation}, vmap_axes=None"
        if other > best:
            left_out[f"{implementation}, vmap_axes=None"] = (
                f"{other / best:.1f} times slower than vmap_axes=0 on {case}"
            )
    names = [f"{implementation}, vmap_axes=0" for implementation in IMPLEMENTATIONS]
    fastest = min(medians.get(name, math.inf) for name in names)
    for name in names:
        if SLOW < medians.get(name, 0.0) > HOPELESS * fastest:
            left_out[f"{name} {case} float64"] = f"{medians[name] / fastest:.1f} times slower than the other in float32"


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"unequal answers: {a.shape} {a.dtype}, {b.shape} {b.dtype}"
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def _print_times(contestant: Any, seconds: Sequence[float], difference: float | None) -> None:
    low, median, high = 1e3 * np.quantile(np.asarray(seconds), [0.25, 0.5, 0.75])
    memory = "" if math.isnan(contestant.bytes) else f", memory {contestant.bytes / 1e6:.1f} MB"
    equal = "" if difference is None else f", difference {difference:.1e}"
    print(
        f"  {contestant.name:<42} {median:>10.2f} ms  (quartiles {low:.2f}, {high:.2f}; {len(seconds)} calls; "
        f"compiled in {contestant.compile_seconds:.2f} s{memory}{equal})"
    )


def take_turns(
    contestants: Sequence[Any], *, may_drop: Sequence[str] = (), budget: float = SECONDS_PER_CASE
) -> dict[str, list[float]]:
    """Seconds of each contestant's calls: all in turns, another one first in each round.

    What is tenfold slower than the fastest comes in every fourth round only. What is SLOW comes three times at most, or
    once if it is among `may_drop` and clearly loses to another of these; it may use up the budget, not the ROUNDS.
    """
    first = {one.name: one.call() for one in contestants}
    fastest = min((first[name] for name in may_drop), default=math.inf)
    dropped = {name for name in may_drop if SLOW < first[name] > HOPELESS * fastest}
    seconds = {name: [took] if name in dropped else [] for name, took in first.items()}  # the first finds cold caches
    often = 10 * min(first.values())
    end, turn = time.perf_counter() + budget, 0
    while turn < ROUNDS or time.perf_counter() < end:
        for one in [*contestants[turn % len(contestants) :], *contestants[: turn % len(contestants)]]:
            if first[one.name] > SLOW:
                late = time.perf_counter() + first[one.name] > end
                if (late and seconds[one.name]) or one.name in dropped or len(seconds[one.name]) >= 3:
                    continue
            elif first[one.name] > often and turn % 4:
                continue
            # A few at a time: the first finds the caches filled by another's answers.
            stop = time.perf_counter() + 0.02
            for _ in range(5):
                seconds[one.name].append(one.call())
                if time.perf_counter() > stop:
                    break
        turn += 1
    return seconds


# --- networks that were written elsewhere


def _foreign(name: str) -> Iterator[Row]:
    print(f"\n{name}, float32: {FOREIGN[name].__doc__}")
    try:
        nt = neural_tangents()
    except NeuralTangentsUnavailable as error:
        print(f"  neural-tangents on this JAX was not measured: {error}")
        return
    case = FOREIGN[name]("float32")
    function, arrays = foreign_ours(case)
    ours, rivals = Contestant("jaxsolve", function, *arrays), []
    for implementation in IMPLEMENTATIONS:
        function, arrays = foreign_theirs(case, nt, implementation, 0)
        rival = Contestant(implementation, function, *arrays)
        if rival.bytes > 0.5 * psutil.virtual_memory().available:
            print(f"  {implementation} was not measured: it needs {rival.bytes / 1e9:.1f} GB")
        else:
            rivals.append(rival)
    seconds = take_turns([ours, *rivals], may_drop=[rival.name for rival in rivals])
    medians, kernel = {key: float(np.median(value)) for key, value in seconds.items()}, ours.answer()
    ordered = lambda answer: np.moveaxis(answer, 2, 1) if answer.ndim == 4 else answer
    for contestant in [ours, *rivals]:
        answer = kernel if contestant is ours else ordered(contestant.answer())
        _print_times(contestant, seconds[contestant.name], _difference(answer, kernel))
    if rivals:
        fastest = min((rival.name for rival in rivals), key=lambda rival: medians[rival])
        ratio, note = medians[fastest] / medians[ours.name], f"{1e3 * medians[ours.name]:.3g} ms"
        yield Row(f"{name}: the fastest of neural-tangents / jaxsolve, time", ratio, ">=", 30, peer=fastest, note=note)
        case = FOREIGN[name]("float64")
        one, other = foreign_ours(case), foreign_theirs(case, nt, fastest, 0)
        answer, kernel = (np.asarray(jax.jit(function)(*arrays)) for function, arrays in (other, one))
        what = f"{name} float64: largest relative difference to neural-tangents"
        yield Row(what, _difference(ordered(answer), kernel), "<=", DTYPES["float64"], beside=(rounding("float64"),))


# --- growth


def _growth(dtype: str) -> Iterator[Row]:
    print(f"\nGrowth, {dtype}")
    # With n = d = width, and one output, the products grow exactly linearly with depth.
    depths = [Case(256, 256, depth, 256, 1) for depth in (1, 2, 4, 8)]
    yield from _exponent(
        f"depth 1, 2, 4, 8 ({dtype}, n = d = width = 256)", depths, [case.depth for case in depths], dtype, 1.1
    )
    for depth in (1, 3):
        cases = [Case(256, 256, depth, width, 1) for width in (128, 256, 512, 1024)]
        # A matrix between hidden layers has width^2 entries: only without one can the time be linear.
        own = _slope([case.width for case in cases], [_multiplications(case) for case in cases])
        what = f"width 128, 256, 512, 1024 ({dtype}, n = d = 256, depth {depth})"
        yield from _exponent(what, cases, [case.width for case in cases], dtype, 1.1 if depth == 1 else own + 0.1)


def _multiplications(case: Case) -> int:
    return sum(rows * inner * columns for rows, inner, columns in products(case))


def _slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(np.asarray(sizes)), np.log(np.asarray(values)), 1)[0])


def _exponent(what: str, cases: Sequence[Case], sizes: Sequence[int], dtype: str, goal: float) -> Iterator[Row]:
    contestants = []
    for case, size in zip(cases, sizes, strict=True):
        net, _, x = sides(case, dtype)
        contestants.append(_ours(net, x))
        contestants[-1].name = str(size)
    seconds = take_turns(contestants, budget=2.0)
    medians = [float(np.median(seconds[str(size)])) for size in sizes]
    print(f"  {what}: " + ", ".join(f"{1e3 * median:.2f}" for median in medians) + " ms")
    own = _slope(sizes, [_multiplications(case) for case in cases])
    what, beside = f"{what}: exponent (multiplications alone: {own:.2f})", (Beside("multiplications alone", own),)
    yield Row(what, _slope(sizes, medians), "<=", goal, beside=beside)
