"""Marches as `solve` runs them: what compiles anew, where they say they are, and those of a user's own."""

import itertools
import re
import types
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import (
    AbstractMarching,
    AbstractState,
    Descent,
    GradientFlow,
    March,
    nets,
    observe,
    Problem,
    Quantity,
    RESULTS,
    solve,
    until,
)
from jaxsolve.integrators import FunctionSpace
from tests import cases
from tests.inside import looped, marching, shown


MODES = cases.modes([2.0, -1.0], [1.0, 3.0])


class Halving(AbstractMarching):
    """A march of a user's own, with no more in its state than the class asks for: weights halve in every step."""

    @property
    def name(self):
        return "Halving"

    @property
    def provides(self):
        return frozenset(Quantity)

    @property
    def chunk(self):
        return 1

    def times(self, ts):
        return jnp.floor(ts)

    def init(self, problem, ts):
        return Halved(ts[-1] < 1, jnp.zeros((), int), RESULTS.successful, ts)

    def advance(self, problem, state, n):
        last = jnp.floor(state.ts[-1]).astype(int)
        steps = jnp.minimum(state.steps + n, last)
        return Halved(steps == last, steps, state.result, state.ts)

    def finish(self, problem, state):
        at = lambda t: jax.tree.map(lambda leaf: leaf * 0.5 ** jnp.floor(t), problem.params)
        end, nothing = state.ts[-1], jnp.zeros((), int)
        saved = jax.vmap(at)(state.ts)
        return March(state.ts, saved, at(end), end, state.result, state.steps, nothing, nothing, None)


class Halved(AbstractState):
    done: jax.Array
    steps: jax.Array
    result: RESULTS
    ts: jax.Array


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_march_of_a_users_own(progress, capsys):
    net = nets.TwoLayerLinear(1, 4, scaling=nets.Scaling.ntk(), key=jr.key(0))
    problem = Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
    outputs = solve(problem, Halving(), [0.0, 1.0, 30.0], observe=observe.outputs(), progress=progress)["outputs"]
    np.testing.assert_allclose(outputs[:, 0, 0], outputs[0, 0, 0] * np.array([1, 0.25, 0.25**30]), rtol=cases.eps(10))
    assert ("Halving" in capsys.readouterr().err) is (progress is True)


def test_a_long_march_says_where_it_is(monkeypatch, capsys):
    """After ten seconds, by a clock that is a second later at every look, and when twice as many have passed."""
    ticks = itertools.count()
    monkeypatch.setattr(shown, "time", types.SimpleNamespace(monotonic=lambda: float(next(ticks))))
    followed = lambda: solve(MODES, Descent(optax.sgd(0.001)), [0.0, 0.5, 60.0])
    monkeypatch.setattr(marching, "PATIENCE", 0.0)  # looks stay as close as the first two
    run = followed()
    said = re.findall(r"Descent\(sgd\): (\d+) steps in (\d+) s, at (\d) of 3 times\n", capsys.readouterr().err)
    assert [seconds for _, seconds, _ in said[:3]] == ["10", "20", "40"]
    steps = [int(count) for count, _, _ in said]
    assert 0 < steps[0] < steps[-1] < run.stats.steps
    assert {at for _, _, at in said} == {"2"}
    monkeypatch.setattr(shown, "SILENT", np.inf)
    followed()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("form", [cases.ModesDecay(), GradientFlow(), GradientFlow(until=until.loss_below(1e-9))])
def test_errors_within_a_run_are_said_in_their_own_words(form):
    """Those of `eqx.error_if`, here in the loss of a user, without XLA's."""
    loss = lambda f, y: eqx.error_if(jnp.sum((f - y) ** 2) / 2, jnp.all(jnp.abs(f) >= 0), "the loss is on strike")
    problem = Problem(MODES.net, MODES.x, MODES.y, loss=loss)
    with pytest.raises(RuntimeError, match="the loss is on strike") as caught:
        solve(problem, form, [0.0, 1.0])
    assert "XLA" not in str(caught.value)


def test_what_is_observed_does_not_compile_the_steps_anew():
    net = nets.MLP(3, 4, 1, 1, "tanh", scaling=nets.Scaling.ntk(), key=jr.key(0))
    problem = Problem(net, cases.inputs(jr.key(0)), cases.inputs(jr.key(0), 4, 1))
    programs: Any = (marching._init_program(False), marching._advance_program(False))
    compiled = lambda: tuple(of._cache_size() for of in programs)
    run = lambda rtol, *watched: solve(problem, GradientFlow(rtol=rtol), [0.1, 0.2], observe=watched)
    run(1e-3, observe.outputs())
    before = compiled()
    run(1e-3, observe.kernel_norm())
    assert compiled() == before
    run(1e-2, observe.kernel_norm())  # a tolerance is part of the program
    assert compiled() == tuple(count + 1 for count in before)


@pytest.mark.parametrize("dynamics", [GradientFlow, lambda until: Descent(optax.sgd(0.01), until=until)])
def test_another_kind_of_condition_does_not_compile_the_steps_anew(dynamics):
    """And each stops where it does by itself, as in a trace, where each has a program of its own."""
    net = nets.MLP(3, 4, 1, 1, "tanh", scaling=nets.Scaling.ntk(), key=jr.key(0))
    problem = Problem(net, cases.inputs(jr.key(0)), jnp.sign(cases.inputs(jr.key(0), 4, 1)))
    programs: Any = (marching._init_program(False), marching._advance_program(False))
    start = problem.objective(problem.params)
    grown = []
    for condition in (until.loss_below(start / 2), until.loss_fraction(0.5), until.margin_above(0.01)):
        before = [of._cache_size() for of in programs]
        run = solve(problem, dynamics(until=condition), jnp.inf)
        grown.append([of._cache_size() - then for of, then in zip(programs, before, strict=True)])
        alone = jax.jit(lambda p, c: solve(p, dynamics(until=c), jnp.inf).t_end)(problem, condition)  # noqa: B023
        assert run.result == RESULTS.event
        np.testing.assert_allclose(run.t_end, alone, rtol=cases.eps(1e3))
    assert grown == [[1, 1], [0, 0], [0, 0]]


IMAGES = jax.ShapeDtypeStruct((2, 3, 8, 8), jnp.float32)
WINDOWS = jax.ShapeDtypeStruct((5, 3, 3, 3), jnp.float32)
ROWS = jax.ShapeDtypeStruct((7, 3, 4), jnp.float32)


@pytest.mark.parametrize(
    ("function", "given", "numbers"),
    [
        (jnp.tanh, [ROWS], 84),
        (lambda x, y: jnp.einsum("nik,mjk->nimj", x, y), [ROWS, ROWS], 21**2),  # a product: what it returns
        (lambda x: jnp.einsum("nik,njk->nij", x, x), [ROWS], 7 * 9 * 4),  # of matrices that stand in loops
        (lambda x, w: jax.lax.conv(x, w, (2, 2), "SAME"), [IMAGES, WINDOWS], 2 * 5 * 16 * 27),
        (lambda x: jax.lax.scan(lambda c, row: (c + jnp.sum(row), None), 0.0, x)[0], [ROWS], 7 * (12 + 1)),
        (jax.jit(jnp.tanh), [ROWS], 84),
    ],
)
def test_numbers_computed_in_loops(function, given, numbers):
    assert looped(jax.make_jaxpr(function)(*given)) == numbers


def test_only_what_takes_a_moment_is_not_optimised(monkeypatch):
    """Convolutions of as many weights take fifty times as long without, products of matrices no longer."""
    scaling = nets.Scaling.ntk()
    dense = nets.MLP(196, 32, 1, 1, "tanh", scaling=scaling, key=jr.key(0))
    convolutions = nets.ConvNet((1, 14, 14), 8, 1, "tanh", scaling=scaling, key=jr.key(0))
    brief = lambda net, n: marching.is_brief(Problem(net, jnp.ones((n, *net.in_shape)), jnp.ones((n, 1))))
    assert [brief(dense, 40), brief(convolutions, 4), brief(convolutions, 40)] == [True, True, False]
    assert not brief(nets.MLP(2, 2, 1, 1, "tanh", scaling=scaling, key=jr.key(0)), 2500)  # of which a kernel is large

    problem = Problem(MODES.net, MODES.x, MODES.y)
    kinds = ("_init_program", "_advance_program")
    programs: Any = [getattr(marching, kind)(flag) for kind in kinds for flag in (False, True)]
    for most, flow, grown in (
        (10**9, GradientFlow(diffrax.Tsit5(), rtol=2e-3), [1, 0, 1, 0]),
        (10**9, GradientFlow(FunctionSpace(), rtol=2e-3), [1, 0, 0, 1]),  # long steps
        (0, GradientFlow(FunctionSpace(), rtol=3e-3), [0, 1, 1, 0]),
    ):
        monkeypatch.setattr(marching, "FEW", most)
        before = [program._cache_size() for program in programs]
        solve(problem, flow, [0.1])
        assert [of._cache_size() - then for of, then in zip(programs, before, strict=True)] == grown
