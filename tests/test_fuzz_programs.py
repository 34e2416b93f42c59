"""Whole programs at random: networks, losses, dynamics, observables, dtypes, data, scales and times.

Each must end in a value that misses nothing a right run has, or in an error of jaxsolve that helps. What is drawn
depends on the seed and an index alone, so that what fails can be run again:
`JAXSOLVE_FUZZ_PROGRAMS=5000 JAXSOLVE_FUZZ_SEED=1 uv run pytest -n0 -m slow tests/test_fuzz_programs.py -k "[17]"`.
"""

import contextlib
import itertools
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from jax.flatten_util import ravel_pytree

import jaxsolve as js
from tests import drawn_programs as drawn
from tests.drawn_programs import Drawn, Program, Structure


PACKAGE = str(Path(js.__file__).parent)
PROGRAMS = int(os.environ.get("JAXSOLVE_FUZZ_PROGRAMS", "60"))
SEED = int(os.environ.get("JAXSOLVE_FUZZ_SEED", "0"))
EACH = 10  # programs of a structure
SECONDS = 60  # of a processor, after which a program hangs
FAILURES = ("max_steps", "diverged", "tolerance", "not_applicable", "invalid", "unstable")
RESULTS = ("successful", "event", "max_time", *FAILURES)
# What has no value in some runs where all is well, as it says of itself; and what has none where it divides by 0.
WITHOUT_VALUE = re.compile("critical_rate|edge_eigenvalues|kernel_between|kernel_within|update_alignment")
RATIO = re.compile("change|distance|align|cosine|rank|ratio|entropy|power|position|nonlinear|size|stability|velocity")


# --- by hand


class Hand(eqx.Module):
    """A problem by hand: its loss and outputs as functions of all parameters in one vector."""

    start: Any
    rest: Any
    state: Any
    x: Any
    y: Any
    eta: Any
    loss_name: str = eqx.field(static=True)  # a function
    centered: bool = eqx.field(static=True)  # changes the program

    @property
    def flat(self):
        return ravel_pytree(self.start)[0]

    @property
    def rates(self):
        return ravel_pytree(jax.tree.map(lambda r, p: jnp.broadcast_to(r, p.shape), self.eta, self.start))[0]

    def network(self, w):
        net = eqx.combine(ravel_pytree(self.start)[1](w), self.rest)
        if self.state is None:
            return jax.vmap(net)(self.x)
        return jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(self.x, self.state)[0]

    def outputs(self, w):
        return self.network(w) - (self.network(self.flat) if self.centered else 0)

    def loss(self, w):
        f, each = self.outputs(w), drawn.LOSSES[self.loss_name][1]
        if self.loss_name == "CrossEntropy" and self.y.ndim == 2:  # labels at positions, some of them masked
            return jnp.sum(jnp.where(self.y >= 0, jax.vmap(jax.vmap(each))(f, self.y), 0)) / jnp.sum(self.y >= 0)
        return jnp.mean(jax.vmap(each)(f, self.y))

    def astype(self, dtype: Any) -> "Hand":
        return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, self)


def by_hand(problem: js.Problem, x: Any, y: Any, loss: str) -> Hand:
    """In float64, whatever the dtype of the network."""
    net = problem.net
    parts = (*js.nets.partition(net), problem.state, x, y, js.nets.rates(net))
    return Hand(*parts, loss, problem.centered).astype(float)


@eqx.filter_jit
def at(hand: Hand, w, what: Callable):
    return what(hand, w)


def outputs_of(hand: Hand, w):
    return hand.outputs(w).reshape(len(hand.y), -1)


def velocity_of(hand: Hand, w):
    return -hand.rates * jax.grad(hand.loss)(w)


def kernel_of(hand: Hand, w):
    jacobian = jax.jacobian(lambda w: hand.outputs(w).ravel())(w)
    return (jacobian * hand.rates) @ jacobian.T


def size_of(hand: Hand) -> float:
    """Of the network's own outputs at the start, by which all outputs of a centered problem are rounded."""
    return float(jnp.max(jnp.abs(at(hand, hand.flat, Hand.network))))


def natural(hand: Hand) -> float:
    """L/(eta |dL/dw|^2) at the start; 1 where that is no number to count on."""
    speed = float(jnp.sum(at(hand, hand.flat, velocity_of) ** 2 / hand.rates))
    unit = float(at(hand, hand.flat, Hand.loss)) / (speed or 1)
    return unit if 0 < unit < 1e30 else 1.0


@eqx.filter_jit
def step_of(hand: Hand, make: Callable, rate, params, memory):
    """A step of an optimizer, and its memory; None before the first one."""
    optimizer = make(rate)
    memory = optimizer.init(params) if memory is None else memory
    gradient = jax.grad(lambda tree: hand.loss(ravel_pytree(tree)[0]))(params)
    updates, memory = optimizer.update(gradient, memory, params)
    return jax.tree.map(lambda p, eta, u: p + eta * u, params, hand.eta, updates), memory


def by_optax(hand: Hand, make: Callable, rate: float, factor: Any, steps: int):
    """The end of a plain loop, from that multiple of the start."""
    params, memory = jax.tree.map(lambda p: p * factor, hand.start), None
    for _ in range(steps):
        params, memory = step_of(hand, make, hand.flat.dtype.type(rate), params, memory)
    return ravel_pytree(params)[0]


class _Enough(Exception):
    pass


def by_scipy(hand: Hand, t_end: float, tau: float | None = None, most: int = 3000):
    """The end of a flow by an explicit method of order 8; None where that takes too long."""
    calls, flat = itertools.count(), np.asarray(hand.flat)
    velocity = lambda moved: np.asarray(at(hand, flat + moved, velocity_of))

    def field(_, state):
        if next(calls) > most:
            raise _Enough
        if tau is None:
            return velocity(state)
        moved, speed = np.split(state, 2)
        return np.concatenate([speed, (velocity(moved) - speed) / tau])

    # By how far it has moved, which may be little beside where it is.
    start = np.zeros(flat.size * (1 if tau is None else 2))
    least = 1e-10 * np.max(np.abs(velocity(0 * flat))) * min(natural(hand), t_end) + 1e-300
    with contextlib.suppress(_Enough), np.errstate(all="ignore"):
        run = scipy.integrate.solve_ivp(field, (0, t_end), start, "DOP853", rtol=1e-8, atol=least)
        return jnp.asarray(flat + run.y[: flat.size, -1]) if run.success else None
    return None


def digits_of(s: Structure, *runs: Any) -> float:
    """Digits that runs say they have, and at most two or three."""
    least = 2 if drawn.KINKED & {s.net, s.loss} else 3
    return min([least, *(float(run.certificate.trust) for run in runs if run.certificate is not None)])


def reference(s: Structure, p: Program, hand: Hand, run: Any) -> str:
    """What is wrong with the last outputs beside those of another program; empty if nothing is, or none is known."""
    t_end, start, spread, tolerance = float(run.t_end), hand.flat, 0.0, 10 ** (1 - digits_of(s, run))
    if s.dynamics in drawn.OPTIMIZERS:
        make, times = drawn.OPTIMIZERS[s.dynamics]
        steps = round(t_end / (p.rate * times))
        if steps != int(run.stats.steps):
            return f"{run.stats.steps} steps until {t_end}, not {steps}"
        # An unstable descent forgets where it came from: how soon, another start shows.
        own, factors = hand.astype(s.dtype), (1, 1 + 8 * jnp.finfo(s.dtype).eps)
        found, other = (by_optax(own, make, p.rate, factor, min(steps, 100)) for factor in factors)
        spread = 10 * float(jnp.max(jnp.abs(at(own, found, outputs_of) - at(own, other, outputs_of))))
        found, tolerance = None if steps > 100 else found.astype(float), 1e-4
    elif s.dynamics in drawn.FLOWS or s.dynamics == "tau":
        found = by_scipy(hand, t_end, p.rate if s.dynamics == "tau" else None)
    elif s.dynamics in ("frozen", "infinite") and s.loss == "MSE" and s.net != "tokens":
        kernel, first = at(hand, start, kernel_of), at(hand, start, outputs_of)
        if s.dynamics == "infinite":
            kernel = js.kernels.infinite(p.problem.net, hand.x.astype(s.dtype), eta=js.nets.rates(p.problem.net)).ntk
            kernel = jnp.kron(kernel, jnp.eye(s.out, dtype=s.dtype))
        decay = scipy.linalg.expm(-np.asarray(kernel, float) * t_end / s.n)
        expected = hand.y + (decay @ (first - hand.y).ravel()).reshape(first.shape)
        return differ(p, hand, run.final.outputs, expected, tolerance)
    else:
        return ""
    if found is None or not at(hand, found, Hand.loss) < 10 * at(hand, start, Hand.loss):
        return ""
    return differ(p, hand, run.final.outputs, at(hand, found, outputs_of), tolerance, spread)


def differ(p: Program, hand: Hand, found: Any, expected: Any, tolerance: float, spread: float = 0.0) -> str:
    """What is wrong with outputs, relative to how far they have moved, and to rounding."""
    own = p.problem.outputs(p.problem.params)
    found, expected, own, first = (
        np.asarray(a, float) for a in (found, expected, own, at(hand, hand.flat, outputs_of))
    )
    largest = max(size_of(hand), np.max(np.abs(expected)))
    rounding = np.max(np.abs(own - first)) + float(jnp.finfo(p.problem.dtype).eps) * largest
    allowed = tolerance * np.max(np.abs(expected - first)) + 100 * rounding + spread
    error = np.max(np.abs(found - expected))
    return "" if error <= allowed else f"outputs are off by {error:.3g} of {allowed:.3g}: {found}, not {expected}"


# --- what must be


def misses(s: Structure, d: Drawn, p: Program, hand: Hand, run: Any, solve: Callable) -> Iterator[str]:
    """What a value misses; `solve` runs another problem of this structure."""
    how = next(name for name in RESULTS if bool(run.result == getattr(js.RESULTS, name)))
    asked, found, fine, eps = np.atleast_1d(p.ts), np.atleast_1d(run.ts), how not in FAILURES, jnp.finfo(s.dtype).eps
    if run.ts.shape != np.shape(p.ts):
        yield f"ts have shape {run.ts.shape}"
        return
    finite, reached = np.isfinite(asked), found <= (np.inf if fine else float(run.t_end))
    plain = d.inputs == "gaussian" and d.scale == d.targets == 1 and np.std(p.problem.y, axis=0).all()
    for name, rows in run.observed.items():
        rows = np.asarray(rows).reshape(len(asked), -1)
        if rows.dtype.kind == "f" and rows.dtype != s.dtype:
            yield f"{name} is {rows.dtype}"
        has_value = not WITHOUT_VALUE.search(name) and (plain or not RATIO.search(name))
        if has_value and (fine or how == "max_steps") and not np.isfinite(rows[reached]).all():
            yield f"{name} is not finite, and the run is {how}"
    loss, first = np.atleast_1d(run["loss"]), float(at(hand, hand.flat, Hand.loss))
    step = p.rate * drawn.OPTIMIZERS.get(s.dynamics, (None, 1))[1] if s.dynamics != "schedule" else 0.1
    near = 1e-6 * asked + (0.51 * step if s.dynamics in drawn.STEPPING else 0)
    if not fine:
        return
    if np.any(np.abs(found[finite] - asked[finite]) > near[finite]):
        yield f"ts are {found}, not {asked}"
    lost = 100 * eps * (size_of(hand) if s.loss == "MSE" else (1 + size_of(hand)))
    slack = 1e3 * eps * first + lost * (first**0.5 + lost if s.loss == "MSE" else 1 + d.targets)
    if s.dynamics not in drawn.FROM_ZERO and np.any(np.abs(loss - first)[found == 0] > slack):
        yield f"the loss at t = 0 is {loss[found == 0]}, not {first}"
    if s.dynamics in drawn.FALLING and np.any(
        np.diff(loss) > slack + (0.05 if drawn.KINKED & {s.net, s.loss} else 0.01) * first
    ):
        yield f"the loss of a flow rises: {loss}"
    if js.Quantity.PARAMS in p.dynamics.provides:
        last = float(at(hand, ravel_pytree(run.final.params)[0].astype(float), Hand.loss))
        if abs(last - loss[-1]) > slack + 1e-3 * abs(last):
            yield f"the last loss is {loss[-1]}, that of the last parameters {last}"
    if how != "successful" or not finite.all():
        return
    if abs(float(run.t_end) - found[-1]) > 1e-6 * found[-1]:
        yield f"it ends at {run.t_end}, not {found[-1]}"
    yield reference(s, p, hand, run)
    if s.dynamics in drawn.FLOWS and asked[-1] > 0:
        yield in_two_parts(s, p, hand, run, solve)


def in_two_parts(s: Structure, p: Program, hand: Hand, run: Any, solve: Callable) -> str:
    """What is wrong with half of a run, and the other half from there."""
    one = solve(p.problem, p.ts / 2)
    two = solve(eqx.tree_at(lambda problem: problem.net, p.problem, one.final.net), p.ts / 2)
    if any(bool(half.result != js.RESULTS.successful) for half in (one, two)):
        return f"its halves fail: {one} {two}"
    wrong = differ(p, hand, two.final.outputs, run.final.outputs, 10 ** (1 - digits_of(s, one, two, run)))
    return wrong and f"in two parts {wrong}"


class Outcome(NamedTuple):
    """How a program ended."""

    kind: str  # value, refusal, or what is wrong: silent, cryptic, hang
    said: str
    seconds: float


def outcome(s: Structure, d: Drawn) -> Outcome:
    begin = time.process_time()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        kind, said = _outcome(s, d)
    seconds = time.process_time() - begin
    others = [w for w in warned if not issubclass(w.category, UserWarning)]
    if others and kind == "value":
        kind, said = "cryptic", f"{others[0].category.__name__} in {others[0].filename}: {others[0].message}"
    return Outcome(kind if seconds < SECONDS else "hang", said, seconds)


def _outcome(s: Structure, d: Drawn) -> tuple[str, str]:
    hands: list[Hand] = []

    def unit_of(problem: js.Problem, x: Any, y: Any) -> float:
        hands.append(by_hand(problem, x, y, s.loss))
        return natural(hands[0]) if d.natural else 1.0

    try:
        p = drawn.make(s, d, unit_of)
        watched = [drawn.observable(name) for name in {"loss": None, **dict.fromkeys(s.watched)}]
        solve = lambda problem, ts: js.solve(problem, p.dynamics, ts, observe=watched, throw=d.throw)
        run = jax.block_until_ready(solve(p.problem, p.ts))
    except Exception as error:
        return _judged(error)
    missed = [said for said in misses(s, d, p, hands[0], run, solve) if said]
    return ("silent", "; ".join(missed)) if missed else ("value", "")


def _judged(error: Exception) -> tuple[str, str]:
    """Whether an error is one of jaxsolve that helps."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_code.co_filename
    ours = (ValueError, TypeError, MemoryError, js.SolveError, js.NotApplicable)
    helps = re.search(
        r"\b(got|has|have|needs?|give|take|must|use|lower|raise|leave|known)\b", str(error), re.IGNORECASE
    )
    said = f"{type(error).__name__} in {Path(where).name}: {str(error)[:300]}"
    return ("refusal" if where.startswith(PACKAGE) and isinstance(error, ours) and helps else "cryptic"), said


@contextlib.contextmanager
def limit():
    """Ends what takes twice the processor time that it may."""

    def stop(*_):
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def outcomes(index: int, seed: int = SEED) -> Iterator[tuple[Structure, Drawn, Outcome]]:
    """Each program of a structure, and how it ended."""
    draw, before = np.random.default_rng([seed, index]), ""
    s = drawn.draw_structure(draw)
    for _ in range(EACH):
        d = drawn.draw_numbers(draw)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), limit():
            end = outcome(s, d)
        yield s, d, end
        if end.kind in ("refusal", "cryptic") and end.said == before:
            break  # no numbers will change that
        before = end.said
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("index", range(PROGRAMS // EACH))
def test_programs_end_in_a_value_or_in_words_that_help(index):
    wrong = [(end, s, d) for s, d, end in outcomes(index) if end.kind not in ("value", "refusal")]
    assert not wrong, "\n".join(map(str, itertools.chain(*wrong)))


PLAIN = Structure("tanh", "MSE", "sgd", ("outputs",), "float64", 7, 2, 2, False, False, False)
NUMBERS = Drawn(0, "gaussian", 1.0, 1.0, True, 0.1, 10.0, "from 0", False)


def _spoil(run: Any, kind: str) -> Any:
    if kind == "error":
        return jnp.linalg.cholesky("text")
    if kind == "NaN":
        return eqx.tree_at(lambda r: r.observed["outputs"], run, run["outputs"].at[1, 0, 0].set(jnp.nan))
    if kind == "times":
        return eqx.tree_at(lambda r: r.ts, run, 1.1 * run.ts)
    return eqx.tree_at(lambda r: r.final.params, run, jax.tree.map(lambda p: 1.05 * p, run.final.params))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("kind", ["error", "NaN", "times", "parameters"])
@pytest.mark.parametrize("dynamics", ["sgd", "flow"])
def test_the_fuzzer_finds_what_is_there(monkeypatch, kind, dynamics):
    """The twin: runs that are right, and the same spoilt."""
    s, solve = PLAIN._replace(dynamics=dynamics), js.solve
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert outcome(s, NUMBERS).kind == "value"
        monkeypatch.setattr(js, "solve", lambda *given, **options: _spoil(solve(*given, **options), kind))
        assert outcome(s, NUMBERS).kind == ("cryptic" if kind == "error" else "silent")
