"""InfiniteWidth against networks that grow, and where the limit is no kernel."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import kernels, nets, observe
from tests import cases


TS = (0.0, 0.5, 2.0)
OUTPUTS = [observe.outputs(), observe.test_outputs()]

DATA = jnp.ones((2, 3)), jnp.ones((2, 1))


def _problem(width=16, seed=0, *, rule: Any = None, out_size=1, loss="mse", sigma: Any = 1.0, centered=True):
    keys = jr.split(jr.key(3), 4)
    rule = nets.Scaling.ntk(0.8, sigma=sigma, eta=jnp.array([0.6, 1.7])) if rule is None else rule
    net = nets.MLP(
        in_size=3, out_size=out_size, width_size=width, depth=1, activation="relu", scaling=rule, key=jr.key(seed)
    )
    x, x_test = cases.inputs(keys[0], 4), cases.inputs(keys[1], 3)
    y, y_test = (jnp.sign(jr.normal(key, (n, out_size))) for key, n in ((keys[2], 4), (keys[3], 3)))
    return js.Problem(net, x, y, test=(x_test, y_test), loss=loss_of(loss), centered=centered)


def loss_of(name: str) -> Any:
    return js.losses.MSE() if name == "mse" else js.losses.Logistic()


def _kernels(problem: js.Problem):
    assert problem.x_test is not None
    kernel = lambda x: kernels.infinite(problem.net, x, problem.x, eta=problem.eta).ntk
    return kernel(problem.x), kernel(problem.x_test)


@pytest.mark.slow
def test_moves_as_the_exponential_of_the_kernel():
    """Two outputs that start where the network does: each follows y + exp(-K t/n) (f_0 - y)."""
    problem = _problem(out_size=2, centered=False)
    trajectory = js.solve(problem, js.InfiniteWidth(), [*TS, jnp.inf], observe=[*OUTPUTS, observe.kernel()])
    k, cross = (np.asarray(kernel, np.float64) for kernel in _kernels(problem))
    start, y = np.asarray(problem.outputs(problem.params), np.float64), np.asarray(problem.y, np.float64)
    assert np.abs(start).max() > 0.1
    values, vectors = np.linalg.eigh((k + k.T) / 2)
    for row, t in enumerate(TS):
        moved = vectors @ ((1 - np.exp(-values * t / 4))[:, None] * (vectors.T @ (y - start)))
        close = lambda f, moved=moved: np.testing.assert_allclose(f - start, moved, rtol=1e-3, atol=cases.eps(100))
        close(np.asarray(trajectory["outputs"][row]))
        np.testing.assert_allclose(trajectory["outputs"][row], start + moved, atol=cases.eps(300))
        test = np.asarray(problem.test_outputs(problem.params)) + cross @ np.linalg.solve(k, moved)
        np.testing.assert_allclose(trajectory["test_outputs"][row], test, atol=cases.eps(3e4))
        if t > 0:
            cases.assert_fails(lambda close=close: close(start))  # nothing has moved
    np.testing.assert_allclose(trajectory["outputs"][-1], y, atol=cases.eps(1e3))
    kernel = np.asarray(trajectory["kernel"][0])
    np.testing.assert_allclose(kernel, k[:, None, :, None] * np.eye(2)[:, None, :], atol=cases.eps(100))


@pytest.mark.slow
@pytest.mark.x64_only
def test_frozen_kernels_approach_it_like_width_to_minus_one_half():
    """The size of the fluctuations of the finite kernel; centered, the limit is the same for all seeds."""
    widths, errors, t = (32, 1024), [], jnp.asarray(2.0)
    for width in widths:
        outputs = lambda seed, width=width: js.FrozenKernel().at(_problem(width, seed), t).test_outputs
        found = jax.jit(jax.vmap(outputs))(jnp.arange(16))
        limit = js.InfiniteWidth().at(_problem(width), t).test_outputs
        errors.append(np.sqrt(np.mean((np.asarray(found) - np.asarray(limit)) ** 2)))
    slope = np.log(errors[1] / errors[0]) / np.log(widths[1] / widths[0])
    assert slope == pytest.approx(-0.5, abs=0.1)


@pytest.mark.slow
@pytest.mark.x64_only
def test_gradient_flow_approaches_it_like_width_to_minus_one_half():
    widths, errors, seeds = (16, 256), [], {"seed": jnp.arange(16)}
    for width in widths:
        make = lambda seed, width=width: _problem(width, seed)
        flows = (js.GradientFlow(rtol=1e-4, atol=1e-5), js.InfiniteWidth())
        flow, limit = (js.sweep(make, seeds, one, TS, observe=OUTPUTS, progress=False) for one in flows)
        assert np.all(flow.result == 0)
        assert np.all(limit.result == 0)
        errors.append(np.sqrt(np.mean((flow.test_outputs.values - limit.test_outputs.values) ** 2)))
    slope = np.log(errors[1] / errors[0]) / np.log(widths[1] / widths[0])
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_other_losses_march():
    problem = _problem(loss="logistic")
    trajectory = js.solve(problem, js.InfiniteWidth(), [0.0, 1e-3, 9.0], observe=[observe.loss(), *OUTPUTS])
    assert trajectory.dynamics == "InfiniteWidth"
    k, cross = _kernels(problem)
    for name, kernel in (("outputs", k), ("test_outputs", cross)):
        first = 1e-3 / 4 * kernel @ (problem.y / 2)  # the slope of log(1 + exp(-y f)) at f = 0
        np.testing.assert_allclose(trajectory[name][1], first, rtol=2e-3, atol=1e-7)
    assert trajectory["loss"][2] < 0.9 * trajectory["loss"][0]


# --- what is refused


@pytest.mark.parametrize("rule", [nets.Scaling.mean_field(), nets.Scaling.mup()])
@pytest.mark.parametrize("loss", ["mse", "logistic"])
def test_no_kernel_limit(rule, loss):
    message = (
        r"needs m sigma sqrt\(fan_in\) of the last layer at least fan_in\^\(-1/4\) = 0\.5 of that of the others "
        r"\(violation 0\.5.*mean field, mup"
    )
    with pytest.raises(js.NotApplicable, match=message):
        js.solve(_problem(rule=rule, loss=loss), js.InfiniteWidth(), 1.0)


@pytest.mark.slow
def test_kernel_limits_are_known_at_any_width():
    for width in (2, 8, 32, 128, 4096):
        shape = lambda rule, width=width: eqx.filter_eval_shape(lambda: _problem(width, rule=rule)).net.weights
        fans = [(3, width), (width, 1)]
        ntk, lazy = nets.Scaling.ntk(sigma=1e-3), nets.Scaling.lazy(100.0)
        for rule in (nets.Scaling.ntk(), ntk, nets.Scaling.standard(), nets.Scaling.kaiming(), lazy):
            assert _violation(rule(fans), shape(rule)) == 0
        for rule in (nets.Scaling.mean_field(), nets.Scaling.mup()):
            np.testing.assert_allclose(_violation(rule(fans), shape(rule)), 1 - width**-0.25, rtol=cases.eps(100))


def _violation(values, weights):
    net = eqx.tree_at(lambda n: (n.scaling, n.weights), _problem(2).net, (values, weights))
    problem = eqx.tree_at(lambda p: p.net, _problem(2), net)
    (assumption,) = js.InfiniteWidth().assumptions(problem)
    return float(assumption.violation)


@pytest.mark.parametrize("loss", ["mse", pytest.param("logistic", marks=pytest.mark.slow)])
def test_lanes_without_a_kernel_limit_are_not_applicable(loss):
    make = lambda sigma: _problem(sigma=jnp.stack([jnp.ones(()), sigma]), loss=loss)
    dynamics = js.InfiniteWidth(flow=None if loss == "mse" else js.GradientFlow(rtol=1e-3, atol=1e-3))
    swept = js.sweep(make, {"sigma": [1.0, 0.4]}, dynamics, [0.0, 0.5], progress=False)
    assert list(js.result_names(swept.result.values)) == ["successful", "not_applicable"]


@pytest.mark.usefixtures("as_users")
def test_bad_arguments():
    strange: Any = 3
    with pytest.raises(TypeError, match=r"flow must be a marching dynamics such as GradientFlow\(\).*got int 3"):
        js.InfiniteWidth(flow=strange)
    x, y = cases.inputs(jr.key(0)), jnp.ones((4, 1))
    with pytest.raises(TypeError, match="the infinite width of Linear is not known"):
        js.solve(js.Problem(cases.Linear(jnp.ones((1, 3))), x, y), js.InfiniteWidth(), 1.0)
    with pytest.raises(ValueError, match="'layer_alignment' needs parameters, but InfiniteWidth provides only"):
        js.solve(_problem(), js.InfiniteWidth(), 1.0, observe=observe.layer_alignment())


@pytest.mark.slow
def test_derivative_in_a_hyperparameter():
    value = jax.jit(lambda sigma: js.solve(_problem(sigma=sigma), js.InfiniteWidth(), 1.5)["loss"])
    tangent = jax.jit(lambda s: jax.jvp(value, (s,), (jnp.ones(()),))[1])(jnp.asarray(0.8))
    step = 1e-4 if cases.X64 else 1e-2
    difference = (value(jnp.asarray(0.8 + step)) - value(jnp.asarray(0.8 - step))) / (2 * step)
    close = lambda slope: np.testing.assert_allclose(slope, difference, rtol=1e-6 if cases.X64 else 3e-3)
    close(tangent)
    of_one_layer = jax.jit(
        lambda s: js.solve(_problem(sigma=jnp.stack([s, jnp.asarray(0.8)])), js.InfiniteWidth(), 1.5)["loss"]
    )
    cases.assert_fails(lambda: close(jax.jvp(of_one_layer, (jnp.asarray(0.8),), (jnp.ones(()),))[1]))


def test_a_padded_width_is_refused():
    """Its arrays are larger than the network, so that their sizes do not tell how it grows."""
    rule, key = nets.Scaling.mean_field(), jr.key(0)
    problem = lambda width: js.Problem(
        nets.MLP(in_size=3, out_size=1, width_size=width, depth=1, activation="tanh", scaling=rule, key=key), *DATA
    )
    for width in (10, nets.Padded(10, 1000)):
        assert not js.InfiniteWidth().check(problem(width)).applies
    with pytest.raises(js.NotApplicable, match="a width without padding: it has padding; make it with an integer"):
        js.solve(problem(nets.Padded(10, 1000)), js.InfiniteWidth(), 1.0)


def test_a_flow_that_augments_inputs_is_refused():
    class Shifted(js.data.AbstractAugmentation):
        def __call__(self, x, *, key):
            return x + 1

    flow = js.Descent(optax.sgd(0.1), augmentation=Shifted(), key=jr.key(0))
    for of in (js.FrozenKernel, js.InfiniteWidth):
        with pytest.raises(ValueError, match="gets no inputs, so it can neither augment them"):
            of(flow=flow)
