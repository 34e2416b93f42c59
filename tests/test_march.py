"""Marches as `solve` runs them: what compiles anew, where they say they are, and those of a user's own."""

import itertools
import re
import types
from typing import Any

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
from tests import cases
from tests.inside import marching, shown


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
    net = nets.TwoLayerLinear(in_size=1, width_size=4, scaling=nets.Scaling.ntk(), key=jr.key(0))
    problem = Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
    outputs = solve(problem, Halving(), [0.0, 1.0, 30.0], observe=observe.outputs(), progress=progress)["outputs"]
    np.testing.assert_allclose(outputs[:, 0, 0], outputs[0, 0, 0] * np.array([1, 0.25, 0.25**30]), rtol=cases.eps(10))
    assert ("Halving" in capsys.readouterr().err) is (progress is True)


def test_a_long_march_says_where_it_is(monkeypatch, capsys):
    """After ten seconds, by a clock that is a second later at every look, and when twice as many have passed."""
    ticks = itertools.count()
    monkeypatch.setattr(shown, "time", types.SimpleNamespace(monotonic=lambda: float(next(ticks))))
    followed = lambda: solve(MODES, Descent(optax.sgd(0.001)), [0.0, 0.5, 60.0])
    monkeypatch.setattr(marching, "WORK", 16 * marching.LEAST)
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
    net = nets.MLP(
        in_size=3, out_size=1, width_size=4, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    problem = Problem(net, cases.inputs(jr.key(0)), cases.inputs(jr.key(0), 4, 1))
    programs: Any = (marching.init, marching.advance)
    compiled = lambda: tuple(of._cached._cache_size() for of in programs)
    run = lambda rtol, *watched: solve(problem, GradientFlow(rtol=rtol), [0.1, 0.2], observe=watched)
    run(1e-3, observe.outputs())
    before = compiled()
    run(1e-3, observe.kernel_norm())
    assert compiled() == before
    run(1e-2, observe.kernel_norm())  # a tolerance is part of the program
    assert compiled() == tuple(count + 1 for count in before)


@pytest.mark.parametrize("dynamics", [GradientFlow, lambda until: Descent(optax.sgd(0.01), until=until)])
def test_another_threshold_does_not_compile_the_steps_anew(dynamics):
    """Another kind of condition does. Each stops where it does in a trace."""
    net = nets.MLP(
        in_size=3, out_size=1, width_size=4, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    problem = Problem(net, cases.inputs(jr.key(0)), jnp.sign(cases.inputs(jr.key(0), 4, 1)))
    programs: Any = (marching.init, marching.advance)
    start = problem.objective(problem.params)
    grown = []
    conditions = (until.loss_below(start / 2), until.loss_below(start / 3), until.loss_fraction(0.5))
    for condition in (*conditions, until.margin_above(0.01)):
        before = [of._cached._cache_size() for of in programs]
        run = solve(problem, dynamics(until=condition), jnp.inf)
        grown.append([of._cached._cache_size() - then for of, then in zip(programs, before, strict=True)])
        alone = jax.jit(lambda p, c: solve(p, dynamics(until=c), jnp.inf).t_end)(problem, condition)  # noqa: B023
        assert run.result == RESULTS.event
        np.testing.assert_allclose(run.t_end, alone, rtol=cases.eps(1e3))
    assert grown == [[1, 1], [0, 0], [1, 1], [1, 1]]
