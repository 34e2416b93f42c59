"""Two-layer networks on a line under losses other than MSE: the same path by another clock."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import TwoLayerLine
from tests import cases
from tests.linear_cases import assert_every_rate_matters, decades, errors, REFERENCE, scaling, signs


CLOSED = TwoLayerLine()
TS = jnp.array([0.0, 0.01, 0.1, 1.0, 5.0, 20.0])


def line_problem(
    loss, *, separable: bool = True, sigma: Any = 1.3, gamma: Any = -0.7, eta: Any = (0.5, 2.0), **options: Any
):
    """Inputs along a random direction, labels -1 and +1."""
    keys = jax.random.split(jax.random.key(1), 3)
    direction = jax.random.normal(keys[0], (3,))
    along = jnp.array([-1.4, 0.3, 0.9, -0.2, 2.0, 0.6])
    x = along[:, None] * (direction / jnp.linalg.norm(direction))[None, :]
    y = jnp.sign(along) * (1.0 if separable else jnp.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0]))
    net = js.nets.TwoLayerLinear(in_size=3, width_size=5, scaling=scaling(eta, sigma, gamma), key=keys[2])
    return js.Problem(net, x, y, loss=loss, **options)


def cosh_loss(f, y):
    return jnp.sum(jnp.cosh(f - y))


def quartic_loss(f, y):
    return jnp.sum((f - y) ** 4)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (js.losses.Logistic(), {}),
        pytest.param(js.losses.Logistic(), {"separable": False, "centered": True}, marks=pytest.mark.slow),
        pytest.param(cosh_loss, {"sigma": 0.2, "eta": (3.0, 0.1)}, marks=pytest.mark.slow),
        pytest.param(quartic_loss, {"gamma": 0.8}, marks=pytest.mark.slow),
    ],
)
def test_equals_flow_of_the_weights(loss, options):
    problem = line_problem(loss, **options)
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 1e-11  # measured: 1e-12


@pytest.mark.slow
@pytest.mark.x64_only
@settings(max_examples=8, deadline=None)
@given(sigma=decades(-1, 0.4), gamma=st.tuples(decades(-0.5, 0.5), signs), ratio=decades(-1, 1))
def test_equals_flow_over_drawn_problems(sigma, gamma, ratio):
    problem = line_problem(js.losses.Logistic(), sigma=sigma, gamma=gamma[0] * gamma[1], eta=(ratio, 1 / ratio))
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 1e-10


@pytest.mark.slow
@pytest.mark.x64_only
def test_twins_without_a_rate_fail():
    assert_every_rate_matters(line_problem(js.losses.Logistic()), CLOSED, TS)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(
    "start",
    [{}, *(pytest.param(start, marks=pytest.mark.slow) for start in ({"sigma": 1e-3}, {"eta": (100.0, 0.01)}))],
)
def test_on_mse_the_clock_is_the_closed_form(start):
    as_function = lambda f, y: jnp.sum((f - y) ** 2) / 2
    by_clock, exact = (line_problem(loss, **start) for loss in (as_function, js.losses.MSE()))
    ts = jnp.array([0.0, 1e-300, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e300, jnp.inf])
    runs = [js.solve(p, CLOSED, ts, observe=[js.observe.outputs(), js.observe.kernel()]) for p in (by_clock, exact)]
    for name in runs[0].observed:
        size = float(jnp.max(jnp.abs(runs[1][name])))
        np.testing.assert_allclose(runs[0][name], runs[1][name], atol=1e-12 * size)


@pytest.mark.slow
@pytest.mark.x64_only
def test_separable_logistic_outputs_grow_without_end():
    ts = jnp.array([1e2, 1e10, 1e100, 1e280, jnp.inf])
    outputs = js.solve(line_problem(js.losses.Logistic()), CLOSED, ts, observe=js.observe.outputs())["outputs"]
    margin = jnp.min(jnp.abs(outputs[..., 0]), axis=1)
    assert np.all(np.diff(margin[:4]) > 0)
    # The smallest margin m grows like log t: f = (k/2) P e^2s makes dm/dt = 2 m K e^-m with K of the order of one.
    assert np.all(np.abs(np.asarray(margin[1:4]) / np.log(ts[1:4]) - 1) < 0.2)
    assert np.all(np.isinf(outputs[-1]))


@pytest.mark.parametrize("loss", [js.losses.Logistic(), js.losses.SoftHinge()])
def test_every_start_ends_at_a_minimum_that_is_finite(loss):
    """Where a root of the speed is found by rounding, its sign there is rounding's as well: every eighth was at inf."""

    @jax.jit
    @jax.vmap
    def outputs(key):
        net = js.nets.TwoLayerLinear(in_size=3, width_size=5, scaling=scaling((1.0, 1.0), 0.5), key=key)
        x = jnp.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
        problem = js.Problem(net, x, jnp.array([[1.0], [-1.0]]), loss=loss)
        return js.solve(problem, CLOSED, [1e4, jnp.inf], observe=js.observe.outputs())["outputs"]

    found = outputs(jax.random.split(jax.random.key(0), 64))
    np.testing.assert_allclose(found[:, 1], found[:, 0], atol=cases.eps(1e3))


@pytest.mark.slow
@pytest.mark.x64_only
def test_into_the_saddle():
    # u = -v (P = 0): the layers shrink for ever, and the output vanishes.
    u = np.array([0.4, -0.3, 0.8])
    net = js.nets.TwoLayerLinear(
        in_size=1,
        width_size=3,
        scaling=js.nets.Scaling.standard(),
        init=js.nets.Given([-u[:, None], u[None, :]]),
        key=jax.random.key(0),
    )
    problem = js.Problem(net, jnp.array([[1.0], [-0.5]]), jnp.array([1.0, -1.0]), loss=js.losses.Logistic())
    run = js.solve(
        problem, CLOSED, jnp.array([1.0, 30.0, 1e3, jnp.inf]), observe=[js.observe.outputs(), js.observe.weight_norms()]
    )
    flow = js.solve(problem, REFERENCE, 1.0, observe=js.observe.outputs())
    np.testing.assert_allclose(run["outputs"][0], flow["outputs"], atol=1e-11)
    np.testing.assert_allclose(run["weight_norms"][-1], 0.0, atol=1e-150)
    assert np.all(np.isfinite(run["outputs"]))


@pytest.mark.slow
@pytest.mark.x64_only
def test_a_kinked_loss_is_refused_with_its_error():
    problem = line_problem(js.losses.Hinge())
    missed = CLOSED.check(problem).missed()
    assert "smooth enough for the clock's quadrature (violation" in missed
    with pytest.raises(js.NotApplicable, match="smooth enough"):
        js.solve(problem, CLOSED, 1.0)


def waves(f, y):
    return jnp.sum(1 - jnp.cos(2 * (f - y)) + 0.05 * (f - y) ** 2)


@pytest.mark.x64_only
@pytest.mark.slow
def test_with_several_minima_what_is_not_refused_is_right():
    """A small start falls into the nearest minimum; a larger one passes others, where its pace nearly stops."""
    near, far = (line_problem(waves, sigma=sigma, gamma=1.0, eta=(1.0, 1.0)) for sigma in (0.3, 1.0))
    near, far = (js.Problem(p.net, 3 * p.x, 3 * p.y, loss=waves) for p in (near, far))
    assert bool(CLOSED.check(near).exact)
    assert max(errors(near, CLOSED, TS / 4).values()) < 1e-9
    assert "smooth enough for the clock's quadrature" in CLOSED.check(far).missed()


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("t", [0.7, pytest.param(40.0, marks=pytest.mark.slow)])
def test_gradients_equal_finite_differences(t):
    @jax.jit
    def f(scales):
        problem = line_problem(
            js.losses.Logistic(), separable=False, sigma=scales[0], gamma=scales[1], eta=(scales[2], 2.0)
        )
        return jnp.sum(CLOSED.at(problem, jnp.asarray(t)).net.weights[0])

    at = jnp.array([1.3, -0.7, 0.5])
    differences = jnp.stack([(f(at + h) - f(at - h)) / 2e-5 for h in 1e-5 * jnp.eye(3)])
    np.testing.assert_allclose(jax.grad(f)(at), differences, atol=1e-8)


def test_runs_in_the_dtype_of_the_problem():
    # Logistic loss at the root of its clock: the end is where the slopes of all points balance.
    problem = line_problem(js.losses.Logistic(), separable=False)
    assert bool(CLOSED.check(problem).exact)
    end = CLOSED.at(problem, jnp.asarray(jnp.inf)).outputs
    assert end.dtype == problem.x.dtype
    slopes = problem.loss.gradient(end, problem.y)[:, 0]
    along = problem.x @ problem.x[0]
    np.testing.assert_allclose(jnp.sum(along * slopes), 0.0, atol=cases.eps(10) * float(jnp.max(jnp.abs(along))))


def test_reduce_is_for_mse():
    with pytest.raises(js.NotApplicable, match="is that of MSE, this problem has Logistic"):
        CLOSED.reduce(line_problem(js.losses.Logistic()))


@pytest.mark.parametrize("start", [{}, {"sigma": 1e-3}])
def test_the_end_is_reached_without_a_jump(start):
    """Beyond the table the angle approaches its end as it does under MSE, in single precision too."""
    as_function = lambda f, y: jnp.sum((f - y) ** 2) / 2
    by_clock, exact = (line_problem(loss, **start) for loss in (as_function, js.losses.MSE()))
    ts = jnp.linspace(0.0, 120.0 if start else 60.0, 400)
    runs = [js.solve(p, CLOSED, ts, observe=js.observe.outputs())["outputs"] for p in (by_clock, exact)]
    np.testing.assert_allclose(runs[0], runs[1], atol=cases.eps(1e3) * float(jnp.max(jnp.abs(runs[1]))))


def _end(loss, gamma):
    net = js.nets.TwoLayerLinear(in_size=1, width_size=3, scaling=js.nets.Scaling.ntk(gamma), key=jax.random.key(0))
    problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)), loss=loss)
    return CLOSED.at(problem, jnp.asarray(jnp.inf, problem.x.dtype)).outputs[0, 0]


@pytest.mark.parametrize("loss", [js.losses.QuadraticHinge(), quartic_loss])
def test_ends_at_a_flat_root_have_their_derivatives(loss):
    """The output ends at 1, whatever gamma is."""
    value, slope = jax.value_and_grad(lambda gamma: _end(loss, gamma))(0.9)
    np.testing.assert_allclose(value, 1.0, rtol=1e-3)
    np.testing.assert_allclose(slope, 0.0, atol=1e-2)  # f/gamma where the end is a constant


def test_ends_in_a_kink_have_none():
    assert not np.isfinite(jax.grad(lambda gamma: _end(js.losses.Hinge(), gamma))(0.9))
