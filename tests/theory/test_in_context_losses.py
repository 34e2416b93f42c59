"""Linear attention in context: plateaus by formula and by gradient flow, closed forms of merged keys and queries."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


EIGENVALUES, CONTEXT = np.array([0.4, 0.3, 0.2, 0.1]), 31
PRINTED = [1, 0.64057971, 0.37737216, 0.2098046, 0.13599507]


def test_printed_losses():
    found = js.theory.in_context_losses(EIGENVALUES[::-1].copy(), CONTEXT)
    np.testing.assert_allclose(found, PRINTED, atol=1e-7)
    cases.assert_fails(
        lambda: np.testing.assert_allclose(js.theory.in_context_losses(EIGENVALUES, 32), PRINTED, atol=1e-7)
    )


def test_last_loss_is_the_best_regression():
    data = js.data.in_context_moments(EIGENVALUES, CONTEXT)
    z = jax.vmap(lambda x: jnp.outer(x[0, :-1], x[1, :-1]).ravel())(data.x)
    _, left, *_ = np.linalg.lstsq(np.asarray(z), np.asarray(data.y), rcond=None)
    np.testing.assert_allclose(
        left / len(z), js.theory.in_context_losses(EIGENVALUES, CONTEXT)[-1:], rtol=cases.eps(50)
    )


def _problem(covariance, **options):
    arrays = 2 if options.get("rank") is None else 3
    size = options.pop("size", 0.1)
    scaling = js.nets.Scaling([1.0] * arrays, [size] * arrays, options.pop("eta", [1.0] * arrays))
    data = js.data.in_context_moments(covariance, CONTEXT)
    net = js.nets.LinearAttention(in_shape=data.x.shape[1:], scaling=scaling, key=jax.random.key(0), **options)
    return js.Problem(net, *data.train)


@pytest.mark.slow
def test_gradient_flow_rests_at_the_printed_losses():
    """Heads of rank one from weights of 1e-3: a plateau is where the loss stays longest about a printed value."""
    problem, ts = _problem(EIGENVALUES, heads=8, rank=1, size=1e-3), jnp.geomspace(100, 1e6, 200)
    loss = 2 * np.asarray(js.solve(problem, js.GradientFlow(), ts)["loss"])

    def check(printed):
        for value in printed:
            near = np.abs(loss / value - 1) < 0.01
            assert near.sum() >= 5  # each 5 % of the time that passed before

    check(PRINTED)
    cases.assert_fails(functools.partial(check, js.theory.in_context_losses(EIGENVALUES, 20)))
    assert np.all(np.diff(loss) < cases.eps(10))


ALIGNED = [np.outer([0.2, -0.1, 0.0], np.eye(3).ravel()), np.array([[0.3, 0.1, 0.5]])]  # hidden vectors: no balance


SOLVED = {
    "SingleNeuronFlow": {"heads": 1, "eta": [0.7, 1.6]},
    "Balanced": {"heads": 4, "init": js.nets.LambdaBalanced()},
    "DecoupledModes": {"heads": 3, "init": js.nets.Given(ALIGNED)},
}


@pytest.mark.parametrize("form", cases.slow_after(1, SOLVED))
@pytest.mark.x64_only  # to 1e-8
def test_white_inputs_are_solved_in_closed_form(form):
    problem = _problem(0.5 * np.ones(3), **SOLVED[form])
    net, ts = problem.net, [0.0, 5.0, 15.0, 60.0]
    same = js.Problem(net.two_layer, jax.vmap(net.features)(problem.x), problem.y)
    found = js.exact(same)
    assert found.name == form
    closed = js.solve(same, found, ts, observe=js.observe.outputs())["outputs"]
    flow = js.solve(
        problem, js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-12), ts, observe=js.observe.outputs()
    )["outputs"]
    np.testing.assert_allclose(closed, flow, atol=1e-8)
    assert np.max(np.abs(flow[2] - flow[0])) > 0.1


def test_a_single_input_lies_on_a_line():
    problem = _problem(np.array([0.5]), heads=4)
    net = problem.net
    same = js.Problem(net.two_layer, jax.vmap(net.features)(problem.x), problem.y)
    assert js.exact(same).name == "TwoLayerLine"


@pytest.mark.x64_only
def test_balanced_and_aligned_is_a_logistic_curve():
    """s(t) = s*/(1 + (s*/s_0 - 1) exp(-2 l^2 sqrt(D) t)) for the product s of the layers along the identity."""
    size, variance, start = 3, 0.5, 0.01
    direction = np.eye(size).ravel() / np.sqrt(size)
    init = js.nets.Given([np.sqrt(start) * direction[None, :], np.full((1, 1), np.sqrt(start))])
    problem = _problem(variance * np.ones(size), heads=1, init=init)
    ts = np.array([0.0, 4.0, 9.0, 20.0])
    run = js.solve(problem, js.GradientFlow(rtol=1e-11, atol=1e-13), ts, observe=js.observe.parameters())
    moved = run.final.params
    rate = 2 * variance**2 * np.sqrt(size)
    end = variance**2 * np.sqrt(size) / (variance**3 * (1 + (1 + size) / CONTEXT))
    product = end / (1 + (end / start - 1) * np.exp(-rate * ts[-1]))
    np.testing.assert_allclose(moved.weights[1][0, 0] * moved.weights[0][0], product * direction, atol=1e-9)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("given", [1.0, [0.5, 0.0], [[0.5]], [0.5, -1.0], []])
def test_bad_eigenvalues(given):
    with pytest.raises(ValueError, match="eigenvalues"):
        js.theory.in_context_losses(jnp.asarray(given), 3)
