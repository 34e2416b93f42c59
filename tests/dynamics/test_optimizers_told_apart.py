"""What tells two optimizers apart: names that they read, traced numbers, and answers to large and to no gradients."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, nets, Problem, result_names, RESULTS, solve, until
from tests import cases
from tests.inside import result_code


class Linear(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return self.w @ x


LINE = Problem(Linear(jnp.ones((1, 1))), jnp.ones((1, 1)), jnp.zeros((1, 1)))  # w' = -w
PEAK = 0.1


def _half(value):
    return value * FACTOR_OF_HALF


FACTOR_OF_HALF = 0.5


def test_a_function_that_reads_another_number_of_its_module_is_another(monkeypatch):
    def run():
        # As a cell of a notebook that is run again: the lambda is a new one.
        schedule = lambda step: _half(PEAK) / (1 + step)
        descent = Descent(optax.sgd(schedule), rate=schedule)
        first = PEAK * FACTOR_OF_HALF
        found = solve(LINE, descent, [first * (1 + 1 / 2 + 1 / 3)])
        expected = np.prod([(1 - first / (1 + k)) ** 2 for k in range(3)]) / 2
        np.testing.assert_allclose(found["loss"][0], expected, rtol=cases.eps(100))
        assert found.stats.steps == 3

    run()
    monkeypatch.setitem(globals(), "PEAK", 0.3)
    run()
    monkeypatch.setitem(globals(), "FACTOR_OF_HALF", 1.0)  # of a function that the function calls
    run()


SETTINGS = {"rates": [0.1, 0.05]}


class Chosen:
    """A schedule whose number is set from outside."""

    def __init__(self):
        self.rate = 0.1

    def __call__(self, step):
        return self.rate / (1 + step)


def test_settings_that_have_changed_make_another_optimizer(monkeypatch):
    """In a dict of the module, or in an object: the last program ran again, with the numbers of then."""
    chosen = Chosen()
    for schedule in (lambda step: SETTINGS["rates"][0] / (1 + step), chosen):
        for rate in (0.1, 0.3):
            monkeypatch.setitem(SETTINGS, "rates", [rate, 0.0])
            chosen.rate = rate
            found = solve(LINE, Descent(optax.sgd(schedule), rate=schedule), [rate * (1 + 1 / 2 + 1 / 3)])
            expected = np.prod([(1 - rate / (1 + k)) ** 2 for k in range(3)]) / 2
            np.testing.assert_allclose(found["loss"][0], expected, rtol=cases.eps(100))


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("schedule", [False, True])
def test_momentum_may_be_traced_and_zero(schedule, nesterov):
    late = optax.piecewise_constant_schedule(0.1, {1000: 0.5})

    def run(beta):
        rate, time = (late, lambda step: late(step) / (1 - beta)) if schedule else (0.1, None)
        descent = Descent(optax.sgd(rate, momentum=beta, nesterov=nesterov), rate=time, max_steps=60)
        found = solve(LINE, descent, [1.0], throw=False)
        return found.ts[0], found["loss"][0], found.stats.steps

    betas = (0.0, 0.5, 0.9)
    together = jax.jit(jax.vmap(run))(jnp.array(betas))
    for lane, (beta, steps) in enumerate(zip(betas, (10, 5, 1), strict=True)):
        t, loss, made = (float(value) for value in run(beta))
        assert made == steps  # the time of a step is 0.1/(1 - beta)
        np.testing.assert_allclose([value[lane] for value in together], [t, loss, made], rtol=cases.eps(1e3))


MUP = {
    "sgd": optax.sgd(0.1),
    "sgd from 0": optax.sgd(optax.linear_schedule(0.0, 0.1, 3)),
    "clipped sgd": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "sgd with decay": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
    "slow sgd": optax.sgd(1e-9),
    "adam": optax.adam(0.1),
    "adam from 0": optax.adam(optax.linear_schedule(0.0, 0.1, 3)),
    "adamw": optax.adamw(0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("name", MUP)
def test_mup_knows_descent_from_adam(name):
    for adam in (False, True):
        scaling = nets.Scaling.mup(adam=adam)
        net = nets.MLP(in_size=3, out_size=1, width_size=8, depth=1, activation="tanh", scaling=scaling, key=jr.key(1))
        problem = Problem(net, jr.normal(jr.key(0), (4, 3)), jnp.ones((4, 1)))
        start = lambda problem=problem: Descent(MUP[name], rate=0.1).init(
            problem, jnp.array([0.0, 0.1], problem.x.dtype)
        )
        if ("adam" in name) == adam:
            start()
        else:
            with pytest.raises(ValueError, match=rf"behaves like .*use nets.Scaling.mup\(adam={not adam}\)"):
                start()


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_clipped_descent_is_descent_at_every_depth(depth):
    """The norm of what it is asked grows with the number of layers, unless that is seen to."""
    clipped = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1))
    for adam in (False, True):
        scaling = nets.Scaling.mup(adam=adam)
        net = nets.MLP(
            in_size=3,
            out_size=1,
            width_size=8,
            depth=depth,
            activation="tanh",
            bias=True,
            scaling=scaling,
            key=jr.key(1),
        )
        problem = Problem(net, jr.normal(jr.key(0), (4, 3)), jnp.ones((4, 1)))
        start = lambda problem=problem: Descent(clipped).init(problem, jnp.array([0.0, 0.1], problem.x.dtype))
        if not adam:
            start()
            continue
        with pytest.raises(ValueError, match=r"behaves like .*use nets.Scaling.mup\(adam=False\)"):
            start()


@pytest.mark.usefixtures("as_users")
def test_what_is_no_optimizer_of_gradients_alone_is_refused():
    with pytest.raises(TypeError, match=r"a second set of parameters \(optax\.lookahead\) need more"):
        Descent(optax.lookahead(optax.sgd(0.1), 3, 0.5), rate=0.1)
    gathering: Any = optax.MultiSteps(optax.sgd(0.1), 4)
    with pytest.raises(TypeError, match=r"optax\.MultiSteps\(\.\.\.\)\.gradient_transformation\(\)"):
        Descent(gathering, rate=0.1)
    with pytest.raises(ValueError, match="whose steps hold NaN"):
        solve(LINE, Descent(optax.sgd(float("nan"))), 1.0)


@pytest.mark.parametrize("adam", [True, False])
def test_mup_inside_of_other_modules_and_steps_that_gather_gradients(adam):
    net = nets.MLP(
        in_size=3,
        out_size=1,
        width_size=8,
        depth=1,
        activation="tanh",
        scaling=nets.Scaling.mup(adam=adam),
        key=jr.key(1),
    )
    wrapped = nets.Function(lambda net, x: net(x), net)
    problem = Problem(wrapped, jr.normal(jr.key(0), (4, 3)), jnp.ones((4, 1)))
    wrong, right = (optax.sgd(0.1), optax.adam(0.1)) if adam else (optax.adam(0.1), optax.sgd(0.1))
    with pytest.raises(ValueError, match=rf"use nets.Scaling.mup\(adam={not adam}\)"):
        solve(problem, Descent(wrong), 0.1)
    gathered = optax.MultiSteps(right, 2).gradient_transformation()
    for optimizer in (Descent(right), Descent(gathered, rate=0.05)):  # of the first steps of the latter nothing shows
        assert solve(problem, optimizer, 0.2).stats.steps > 0


@pytest.mark.parametrize("first", [0.0, 0.1])
def test_descent_that_warms_up_may_diverge(first):
    schedule = optax.linear_schedule(first, 2.5, 3)
    run = solve(LINE, Descent(optax.sgd(schedule), rate=schedule), [2.5 * 100], throw=False)
    assert run.result == RESULTS.diverged
    assert run.stats.steps < 60  # where the loss passes 1e9 times that of the start


def test_rates_that_are_traced_and_bad_are_invalid():
    @jax.jit
    def run(rate):
        found = solve(LINE, Descent(optax.sgd(rate), max_steps=1000), [0.0, 1.0], throw=False)
        return found.result, found.stats.steps

    assert run(0.1)[0] == RESULTS.successful
    for bad in (0.0, -0.1, jnp.nan, jnp.inf):
        assert run(bad)[0] == RESULTS.invalid
    assert run(0.0)[1] == 0


def test_gathered_gradients_diverge_as_others():
    net = nets.Function(lambda p, x: p * x, jnp.ones(1))
    problem = Problem(net, jnp.ones((1, 1)), jnp.zeros((1, 1)))
    gathered = optax.MultiSteps(optax.sgd(2.2), 2).gradient_transformation()
    run = solve(problem, Descent(gathered, rate=1.1), 440.0, throw=False)
    assert run.result == RESULTS.diverged
    assert 100 < int(run.stats.steps) < 130  # 1.2^k passes 1e9


def test_rates_that_are_no_numbers_are_invalid():
    problem = Problem(nets.Function(lambda p, x: p * x, jnp.ones(1)), jnp.ones((1, 1)), jnp.zeros((1, 1)))

    def run(beta):
        schedule = optax.cosine_decay_schedule(0.1, 100)
        descent = Descent(optax.sgd(schedule, momentum=beta), rate=lambda step: schedule(step) / (1 - beta))
        return solve(problem, descent, [0.0, 1.0], throw=False)

    found = jax.jit(jax.vmap(run))(jnp.array([0.5, 1.0, jnp.nan]))
    assert list(result_names(result_code(found.result))) == ["successful", "invalid", "invalid"]
    falls = lambda end: Descent(optax.sgd(1.0), rate=lambda k: 0.1 * (1 - k / 40)).times(jnp.array([end]))
    assert float(falls(1.0)[0]) == pytest.approx(1.0, abs=0.1)  # below 0 from step 41 on, which is far away
    assert jnp.isnan(falls(3.0)[0])
    early = Descent(optax.sgd(1.0), rate=lambda k: 0.1 * (1 - k / 40), until=until.loss_below(0.4))
    assert solve(LINE, early, jnp.inf, throw=False).result == RESULTS.event  # before that step
