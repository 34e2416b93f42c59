"""Gradient flow to convergence, against the solvers of diffrax and SciPy and adaptive Euler, at equal error.

Errors are relative errors of the displacement w(T) - w(0) and of the test outputs against a tight reference; every
method gets the loosest setting that brings both below 1e-3. Ours is run again between its rivals, so that a
ratio compares times of one stretch of the machine.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

import jaxsolve as js
from jaxsolve import integrators
from jaxsolve.sweeps.grid._axes import groups, read_axes
from jaxsolve.sweeps.running._execute import run_group, trace_group

from ._cheapest import cheapest, Choice, errors, refine
from ._flow_rivals import largest_rate, reference_problem, Rival, RIVALS, Run, SMALL_RIVALS
from ._said import Beside, Row
from ._timing import in_turns


GOALS = {10.0: 100.0, 1.0: 40.0, 0.1: 12.0, 0.01: 6.0}  # gamma: ratio of times, the fastest rival's to ours
LARGEST_ERROR = 1e-3
UNTIL = 1e-5
RTOLS = (1.0, 3e-1, 1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
REPEATS = 5
BATCHES = 3  # repetitions of 64 networks
RELAXATIONS = (1.0, 0.01, 10.0), (1.0, 1.0, 10.0), (10.0, 1.0, 30.0)  # gamma, tau, T
STABLE = 3.5  # the largest rate times step at which Tsit5 is stable
HALVINGS = 2  # between two rungs of a ladder of settings, for all alike


def main(*, quick: bool) -> Iterator[Row]:
    """All of it; the quick part is gamma = 10."""
    for gamma, goal in GOALS.items():
        if not quick or gamma == max(GOALS):
            yield from _reference(gamma, goal)
    if quick:
        return
    yield from _small()
    yield from _kinks()
    yield from _many_outputs()
    yield from _batch()
    yield from _long_times()
    yield from _momentum()


# --- ours


class Ours(NamedTuple):
    """What one of our runs gave and cost."""

    run: Run
    t_end: float
    seconds: float
    loss: float
    trust: float


def _flow(integrator: Any, rtol: float, until: float | None = None) -> js.GradientFlow:
    condition = None if until is None else js.until.loss_below(until)
    return js.GradientFlow(integrator, rtol=rtol, until=condition, max_steps=20_000)


def _solve(problem: js.Problem, flow: js.GradientFlow, T: float) -> Ours:
    """A run to T; compiled beforehand if it has been called once."""
    begin = time.perf_counter()
    run = jax.block_until_ready(js.solve(problem, flow, [0.0, T], throw=False))
    seconds = time.perf_counter() - begin
    moved = jax.tree.map(jnp.subtract, run.final.params, problem.params)
    steps = int(run.stats.steps) + int(run.stats.rejected)
    assert run.certificate is not None
    found = Run(moved, run.final.test_outputs, steps, int(run.stats.gradient_evaluations))
    return Ours(found, float(run.t_end), seconds, float(run["loss"][-1]), float(run.certificate.trust))


def _ladder(problem: js.Problem, T: float, reference: Run, integrator: Any) -> tuple[js.GradientFlow, Choice]:
    """Our loosest tolerance at which both errors are at most the goal."""

    def attempt(rtol: float) -> Choice:
        flow = _flow(integrator, rtol)
        _solve(problem, flow, T)
        ours = _solve(problem, flow, T)
        found = errors(ours.run, reference)
        return Choice(rtol, *found, ours.run.steps, ours.run.evaluations, ours.seconds, max(found) <= LARGEST_ERROR)

    looser, choice = np.inf, attempt(RTOLS[0])
    for rtol in RTOLS[1:]:
        if choice.met:
            break
        looser, choice = choice.setting, attempt(rtol)
    if choice.met and np.isfinite(looser):
        choice = refine(attempt, choice, looser, HALVINGS)
    return _flow(integrator, choice.setting), choice


# --- the reference problem


def _tight(problem: js.Problem, rtol: float = 1e-7) -> Ours:
    return _solve(problem, _flow(integrators.FunctionSpace(tableau=integrators.KROGSTAD), rtol, UNTIL), np.inf)


def _reference(gamma: float, goal: float) -> Iterator[Row]:
    problem = reference_problem(gamma)
    tight = _tight(problem)
    T = tight.t_end
    print(
        f"\ngamma = {gamma:g}: to train loss {UNTIL:g} at t = {T:.5g} (reference: {tight.run.steps} steps, trust "
        f"{tight.trust:.1f} digits)"
    )
    yield from _against(problem, T, tight.run, RIVALS, f"gamma = {gamma:g}", goal)


def _against(
    problem: js.Problem, T: float, reference: Run, rivals: Sequence[Rival], what: str, goal: float
) -> Iterator[Row]:
    flow, choice = _ladder(problem, T, reference, integrators.FunctionSpace())
    ours = [_solve(problem, flow, T).seconds for _ in range(REPEATS)]
    _print("jaxsolve FunctionSpace", choice, float(np.median(ours)))
    # The fastest so far bounds how long the others are worth running. This one is never very slow.
    best: tuple[str, float, int] | None = None
    for rival in sorted(rivals, key=lambda rival: rival.name != "adaptive Euler"):
        limit = np.inf if best is None else best[1]
        found = _within(rival, problem, T, reference, limit)
        ours.append(_solve(problem, flow, T).seconds)
        if found is None:
            print(f"  {rival.name:<24} stopped: it would take more than {limit:.0f} s")
            continue
        _print(rival.name, found, found.seconds)
        if found.met and (best is None or found.seconds < best[1]):
            best = rival.name, found.seconds, found.steps
    if best is None:
        print(f"  {what}: no rival reached {LARGEST_ERROR:g}")
        return
    error = max(choice.displacement_error, choice.test_error)
    note = f"{choice.steps} steps, {np.median(ours):.2g} s, error {error:.1e}; rival: {best[2]} steps, {best[1]:.3g} s"
    ratio = float(best[1] / np.median(ours))
    yield Row(f"{what}: fastest rival / jaxsolve, time", ratio, ">=", goal, peer=best[0], note=note)


def _within(rival: Rival, problem: js.Problem, T: float, reference: Run, limit: float) -> Choice | None:
    """The cheapest setting of a rival, or None if its runs take longer than the limit."""
    if not np.isfinite(limit):
        return cheapest(rival, problem, T, reference, LARGEST_ERROR, halvings=HALVINGS)
    setting = rival.ladder(problem, reference)[0]
    few = 200
    rival.run(problem, 1e-9 * T, setting, max_steps=few)
    begin = time.perf_counter()
    run = rival.run(problem, T, setting, max_steps=few)
    per_step = (time.perf_counter() - begin) / max(int(run.steps), 1)
    found = cheapest(
        rival, problem, T, reference, LARGEST_ERROR, max_steps=int(limit / per_step), patience=limit, halvings=HALVINGS
    )
    return found if found.met else None


def _print(name: str, choice: Choice, seconds: float) -> None:
    print(
        f"  {name:<24} setting {choice.setting:<8.2g} {seconds:8.3f} s  {choice.steps:>7} steps "
        f"{choice.evaluations:>8} gradients  errors: displacement {choice.displacement_error:.1e}, "
        f"test outputs {choice.test_error:.1e}",
        flush=True,
    )


def _small() -> Iterator[Row]:
    problem = reference_problem(1.0, width=16)
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
    tight = _tight(problem)
    print(f"\nShrunk to two layers of 16 ({size} parameters), gamma = 1, to t = {tight.t_end:.5g}")
    yield from _against(problem, tight.t_end, tight.run, (*RIVALS, *SMALL_RIVALS), "shrunk", 1.0)


# --- kinks


def _kinks() -> Iterator[Row]:
    """ReLU: times to equal error of outputs."""
    for gamma, T in ((10.0, 300.0), (1.0, 300.0)):
        problem = reference_problem(gamma, activation="relu")
        print(f"\nrelu, gamma = {gamma:g}, to t = {T:g}; errors against Tsit5 at rtol 1e-6")
        reference = _solve(problem, _flow(diffrax.Tsit5(), 1e-6), T).run
        rival = [_at(problem, T, reference, "Tsit5", diffrax.Tsit5(), rtol) for rtol in (3e-4, 1e-4, 3e-5, 1e-5)]
        own = [
            _at(problem, T, reference, "FunctionSpace", integrators.FunctionSpace(), rtol)
            for rtol in (1e-1, 3e-2, 1e-2, 3e-3)
        ]
        default = own[2]
        as_good = [choice.seconds for choice in rival if choice.test_error <= default.test_error]
        seconds = min(as_good, default=rival[-1].seconds)  # the finest has a larger error still
        what = f"relu, gamma = {gamma:g}: Tsit5 / FunctionSpace at its default, time to its test error"
        note = f"{default.steps} steps, {default.seconds:.2g} s, error {default.test_error:.1e}"
        yield Row(what, seconds / default.seconds, ">=", 10, peer="Tsit5", note=note)
        fastest = [
            min((choice.seconds for choice in side if choice.test_error <= LARGEST_ERROR), default=np.nan)
            for side in (rival, own)
        ]
        what = f"relu, gamma = {gamma:g}: Tsit5 / FunctionSpace, time to a test error of {LARGEST_ERROR:g}"
        yield Row(what, fastest[0] / fastest[1], ">=", 10, peer="Tsit5")


def _at(problem: js.Problem, T: float, reference: Run, name: str, integrator: Any, rtol: float) -> Choice:
    flow = _flow(integrator, rtol)
    _solve(problem, flow, T)
    ours = _solve(problem, flow, T)
    choice = Choice(rtol, *errors(ours.run, reference), ours.run.steps, ours.run.evaluations, ours.seconds, True)
    _print(f"{name}, trust {ours.trust:.1f}", choice, ours.seconds)
    return choice


# --- many outputs, many networks, long times


def _median(fn: Callable[[], PyTree], repeats: int) -> float:
    jax.block_until_ready(fn())
    return float(np.median(in_turns([fn], repeats)))


def _gradient_cost(problem: js.Problem) -> float:
    """Seconds of a gradient."""
    gradient = eqx.filter_jit(lambda problem, params: jax.grad(problem.objective)(params))
    return _median(lambda: gradient(problem, problem.params), 9)


def _step_cost(problem: js.Problem, T: float, integrator: Any) -> tuple[float, float, Ours]:
    """Seconds of a step on average over a run, of a gradient, and the run."""
    flow, per_gradient = _flow(integrator, 1e-3), _gradient_cost(problem)
    _solve(problem, flow, T)
    ours = _solve(problem, flow, T)
    return ours.seconds / ours.run.steps, per_gradient, ours


def _many_outputs() -> Iterator[Row]:
    print("\nMany outputs on the training set")
    data = js.data.digits(task="parity", n_train=1000, pca=10, key=jax.random.key(0))
    net = _net(256, 1, jax.random.key(1))
    problem = js.Problem(net, *data.train, test=data.test, centered=True)
    per_step, per_gradient, ours = _step_cost(problem, 1e4, integrators.FunctionSpace())
    what = "n = 1000, one output, to t = 1e4: a step / a gradient evaluation, time"
    yield Row(what, per_step / per_gradient, "<=", 20, limit="a gradient", note=f"{ours.run.steps} steps")
    data = js.data.digits(task="classes", n_train=200, pca=10, key=jax.random.key(0))
    net = _net(256, 10, jax.random.key(1))
    problem = js.Problem(net, *data.train, test=data.test, loss=js.losses.CrossEntropy(), centered=True)
    per_step, per_gradient, ours = _step_cost(problem, 1e3, integrators.FunctionSpace())
    note = f"train loss {ours.loss:.2e}, trust {ours.trust:.1f}; a step {per_step:.2f} s"
    tsit5 = _step_cost(problem, 1e3, diffrax.Tsit5())[2]
    note = f"{note}, {per_step / per_gradient:.0f} gradients; {ours.seconds:.2g} s in all, Tsit5 {tsit5.seconds:.2g} s"
    what = f"ten classes, cross entropy, n c = {problem.y.size}: steps to t = 1e3"
    yield Row(what, ours.run.steps, beside=(Beside("Tsit5", tsit5.run.steps),), note=note)


def _net(width: int, out_size: int, key: jax.Array) -> js.nets.MLP:
    scaling = js.nets.Scaling.lazy(1.0, gain=True)
    return js.nets.MLP(
        in_size=10,
        out_size=out_size,
        width_size=width,
        depth=2,
        activation=js.nets.softplus(5.0),
        scaling=scaling,
        key=key,
    )


def _batch() -> Iterator[Row]:
    """64 networks of different seeds at once."""
    count, ts = 64, jnp.array([100.0])
    data = js.data.digits(task="parity", n_train=200, pca=10, key=jax.random.key(0))
    flow = _flow(integrators.FunctionSpace(), 1e-3)

    def build(seed):
        return js.Problem(_net(64, 1, jax.random.key(seed)), *data.train, centered=True)

    def one(seed):
        return js.solve(build(seed), flow, ts)["loss"]

    seeds = jnp.arange(count)
    (group,) = groups(read_axes({"seed": range(count)}))
    program = trace_group(build, group, flow, (js.observe.loss(),), ts, None)
    program.runner.compile()
    single, looped, batched = jax.jit(one), jax.jit(lambda seeds: jax.lax.map(one, seeds)), jax.jit(jax.vmap(one))
    ways = {
        "one by one": lambda: [jax.block_until_ready(single(seed)) for seed in seeds],
        "lax.map": lambda: looped(seeds),
        "vmap": lambda: batched(seeds),
        "sweep": lambda: list(run_group(program)),
    }
    for way in ways.values():
        jax.block_until_ready(way())
    medians = np.median(in_turns(list(ways.values()), BATCHES), axis=1)
    seconds = dict(zip(ways, medians, strict=True))
    alone = seconds.pop("one by one")
    others = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    print(f"\n{count} networks of width 64 to t = {ts[0]:g}: one by one {alone:.2f} s, {others}")
    winner = min(seconds, key=seconds.__getitem__)
    what, peer = f"{count} in one batch / {count} x one, time", f"{count} x one"
    yield Row(what, seconds[winner] / alone, "<=", 1.0, peer=peer, note=winner)


def _long_times() -> Iterator[Row]:
    problem = reference_problem(10.0, width=64)
    for end in ("1e4", "1e8"):
        run = _solve(problem, _flow(integrators.FunctionSpace(), 1e-4), float(end)).run
        explicit = Beside("what stability leaves Tsit5", float(end) * largest_rate(problem, run.displacement) / STABLE)
        yield Row(f"width 64, gamma = 10: steps to t = {end}", run.steps, beside=(explicit,))


# --- momentum


def _momentum() -> Iterator[Row]:
    """With a constant relaxation time, and with one that grows."""
    end = lambda run: ravel_pytree(run.final.params)[0]
    gradients = lambda problem, run: int(run.stats.gradient_evaluations) * _gradient_cost(problem)
    for gamma, tau, T in RELAXATIONS:
        problem = reference_problem(gamma)
        start = ravel_pytree(problem.params)[0]
        tight, _ = _with_momentum(problem, js.MomentumFlow(tau=tau, integrator=diffrax.Tsit5(), rtol=1e-6), T)
        beside: Beside | None = None
        ways = (diffrax.Tsit5(), 1e-3), (integrators.FunctionSpace(), 1e-2), (integrators.FunctionSpace(), 1e-3)
        for integrator, rtol in ways:
            run, seconds = _with_momentum(problem, js.MomentumFlow(tau=tau, integrator=integrator, rtol=rtol), T)
            error = jnp.linalg.norm(end(run) - end(tight)) / jnp.linalg.norm(end(tight) - start)
            name = type(integrator).__name__
            what = f"momentum, gamma = {gamma:g}, tau = {tau:g}, to t = {T:g}: {name}, rtol {rtol:g}, seconds"
            note = f"{run.stats.steps} steps, displacement {error:.1e} off Tsit5 at rtol 1e-6"
            other = beside or Beside("its gradients, one call each", gradients(problem, run))
            yield Row(what, seconds, beside=(other,), note=note)
            beside = beside or Beside("Tsit5", seconds)
    for gamma in (10.0, 1.0, 0.1):
        problem = reference_problem(gamma)
        flow = js.MomentumFlow(mu=1.0, integrator=diffrax.Tsit5(), rtol=1e-3, max_steps=20_000)
        run, seconds = _with_momentum(problem, flow, 1e4)
        what = f"momentum, gamma = {gamma:g}, tau = t, to t = 1e4: Tsit5, seconds"
        beside = Beside("its gradients, one call each", gradients(problem, run))
        yield Row(what, seconds, beside=(beside,), note=f"{run.stats.steps} steps")


def _with_momentum(problem: js.Problem, flow: js.MomentumFlow, T: float) -> tuple[js.Trajectory, float]:
    """A run, and its seconds without compilation."""
    runs: list[js.Trajectory] = []
    seconds = _median(lambda: runs.append(jax.block_until_ready(js.solve(problem, flow, T))), 3)
    return runs[-1], seconds
