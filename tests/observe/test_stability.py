"""Sharpness and stability, against Hessians in closed form or formed whole, and against runs at the edge."""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import Descent, FrozenKernel, GradientFlow, losses, nets, observe, Problem, RESULTS, solve, View
from tests import cases
from tests.inside import check_observables


def _read(problem, params, observable=observe.sharpness()):
    return observable(View(problem, jnp.zeros(()), params))


def _stack(sets):
    return jax.tree.map(lambda *rows: jnp.stack(rows), *sets)


def _hessians(problem, sets):
    """The Hessian of the training loss at some sets of parameters, by jax.hessian."""
    thetas = jnp.stack([ravel_pytree(params)[0] for params in sets])
    unravel = ravel_pytree(sets[0])[1]
    return np.asarray(jax.jit(jax.vmap(jax.hessian(lambda theta: problem.objective(unravel(theta)))))(thetas))


def _largest(hessian, eta, params):
    """The largest eigenvalue of sqrt(eta) H sqrt(eta)."""
    rates = ravel_pytree(jax.tree.map(lambda e, p: jnp.broadcast_to(e, p.shape), eta, params))[0]
    root = np.sqrt(np.asarray(rates))
    return np.linalg.eigvalsh(root[:, None] * hessian * root)[-1]


def _check(found, expected, off, units):
    """Found is expected to so many units of rounding, and not what leaves a term or rate out."""
    close = lambda value: np.testing.assert_allclose(found, value, rtol=cases.eps(units))
    close(expected)
    cases.assert_fails(lambda: close(off))


# Against Hessians


def test_of_a_quadratic():
    """Weights that decay one by one at known rates, by Lanczos, whatever the weights."""
    rates = np.array([0.3, 2.5, 0.1, 1.9, 0.7, 0.2, 1.1, 0.4])
    problem = cases.modes(np.linspace(-1, 1, 8), rates)
    found = jax.jit(lambda p: (_read(problem, p), _read(problem, p, observe.stability(optax.sgd(0.5, momentum=0.6)))))(
        problem.params
    )
    # The twins leave out the largest rate, and the momentum.
    for value, expected, off in zip(found, (2.5, 0.5 * 2.5 / 3.2), (1.9, 0.5 * 2.5 / 2), strict=True):
        _check(value, expected, off, 15)


def test_the_first_eigenvalues():
    rates = np.array([0.3, 2.5, 0.1, 1.9, 0.7, 0.2, 1.1, 0.4])
    problem = cases.modes(np.linspace(-1, 1, 8), rates)
    found = _read(problem, problem.params, observe.stability(optax.sgd(0.5, momentum=0.6), count=3))
    _check(found, 0.5 * np.array([2.5, 1.9, 1.1]) / 3.2, 0.5 * np.array([2.5, 1.1, 0.7]) / 3.2, 15)
    run = solve(problem, GradientFlow(), [0.0, 1.0], observe=observe.sharpness(count=2))
    np.testing.assert_allclose(run["sharpness"], [[2.5, 1.9]] * 2, rtol=cases.eps(50))
    assert run.to_xarray().sharpness.dims == ("t", "eigenvalue")
    with pytest.raises(ValueError, match="k must be at most 8"):
        _read(problem, problem.params, observe.sharpness(count=9))
    with pytest.raises(ValueError, match="count must be"):
        observe.stability(optax.sgd(0.1), count=0)


def _neuron(eta):
    return nets.TwoLayerLinear(in_size=1, width_size=1, scaling=cases.scaling(2, eta=eta), key=jr.key(0))


def test_of_two_weights_of_unequal_rates():
    """L = (c u w - y)^2/2 with x = 1: H = [[c^2 u^2, g], [g, c^2 w^2]], g = c (2 c u w - y), and its derivatives."""
    c, y, (w, u), (eta_w, eta_u) = 0.75 * 0.8 * 1.3, 0.9, (0.8, -1.1), (1.7, 0.4)
    problem = Problem(_neuron([eta_w, eta_u]), jnp.ones((1, 1)), jnp.full((1, 1), y))

    def sharpness(theta):
        params = eqx.tree_at(lambda p: p.weights, problem.params, (theta[:1, None], theta[1:, None]))
        return _read(problem, params)

    def formula(w, u, network=1.0):
        a, d = eta_w * c**2 * u**2, eta_u * c**2 * w**2
        b = np.sqrt(eta_w * eta_u) * c * (c * u * w + network * (c * u * w - y))
        return (a + d) / 2 + np.sqrt((a - d) ** 2 / 4 + b**2)

    value, slope = jax.jit(jax.value_and_grad(sharpness))(jnp.array([w, u]))
    _check(value, formula(w, u), formula(w, u, network=0.0), 5)  # without the curvature of the network
    step = 1e-5
    expected = [
        (formula(w + step, u) - formula(w - step, u)) / (2 * step),
        (formula(w, u + step) - formula(w, u - step)) / (2 * step),
    ]
    np.testing.assert_allclose(slope, expected, rtol=max(6e-11, cases.eps(10)))


@pytest.mark.parametrize(
    "loss",
    [losses.CrossEntropy(), pytest.param(losses.MSE(), marks=pytest.mark.slow)],
    ids=lambda loss: type(loss).__name__,
)
def test_of_a_network(loss, getkey):
    """By Lanczos for a batch of parameters; a set of NaNs has no sharpness and leaves the others theirs."""
    labels = jax.nn.one_hot(jnp.array([0, 1, 1, 0]), 2)
    problem = Problem(cases.mlp(getkey(), depth=1), cases.inputs(getkey(), 4), labels, loss=loss, centered=True)
    sets = [cases.randomized(problem.params, getkey()) for _ in range(2)]
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), problem.params)
    found = jax.jit(jax.vmap(lambda p: _read(problem, p)))(_stack([*sets, broken]))
    off = eqx.tree_at(lambda eta: eta.weights[1], problem.eta, replace_fn=lambda rate: 0 * rate)
    for value, hessian, params in zip(found[:2], _hessians(problem, sets), sets, strict=True):
        _check(value, _largest(hessian, problem.eta, params), _largest(hessian, off, params), 30)
    assert np.isnan(found[2])


class _Normalized(eqx.Module):
    """f(x) = u tanh(z), z = w.x normalized over the batch."""

    w: jax.Array
    u: jax.Array
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.w, self.u = jr.normal(key, (1, 3)), jr.normal(jr.fold_in(key, 1), (1, 1))
        self.norm = eqx.nn.BatchNorm(1, "batch", channelwise_affine=False, momentum=0.0, mode="batch")

    def __call__(self, x, state):
        z, state = self.norm(self.w @ x, state)
        return self.u @ jnp.tanh(z), state


@pytest.mark.x64_only
def test_of_a_network_with_state(getkey):
    """The statistics move with the parameters: the Hessian of the whole batch."""
    net, state = eqx.nn.make_with_state(_Normalized)(getkey())
    problem = Problem(net, cases.inputs(getkey(), 5), jr.normal(getkey(), (5, 1)), state=state)
    params = cases.randomized(problem.params, getkey())
    value = jax.jit(lambda p: _read(problem, p))(params)
    (hessian,) = _hessians(problem, [params])
    off = eqx.tree_at(lambda eta: eta.w, problem.eta, replace_fn=lambda rate: 0 * rate)
    _check(value, _largest(hessian, problem.eta, params), _largest(hessian, off, params), 30)


# Against runs


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_descent_on_a_quadratic_is_stable_below_1(momentum):
    """1 % below the edge the loss falls, 1 % above it the run diverges."""
    problem = cases.modes([1.0, 1.0], [1.0, 3.0])
    for side, result in ((0.99, RESULTS.successful), (1.01, RESULTS.diverged)):
        rate = side * 2 * (1 + momentum) / 3
        value = _read(problem, problem.params, observe.stability(optax.sgd(rate, momentum=momentum)))
        np.testing.assert_allclose(value, side, rtol=cases.eps(10))
        dynamics = Descent(optax.sgd(rate, momentum=momentum))
        run = solve(problem, dynamics, 600 * rate / (1 - momentum), throw=False)
        assert run.result == result
        assert (run.final.loss < 1e-8) == (side < 1)  # measured: below 1e-10


@functools.cache
def _sharpening():
    """A small tanh network whose sharpness rises ninefold along the flow, from 2.7."""
    keys = jr.split(jr.key(1), 3)
    net = nets.MLP(
        in_size=2, out_size=1, width_size=8, depth=2, activation="tanh", scaling=nets.Scaling.standard(), key=keys[0]
    )
    return Problem(net, jr.normal(keys[1], (8, 2)), jnp.sign(jr.normal(keys[2], (8, 1))))


TS = np.r_[0.0, np.geomspace(1, 3000, 40)]


@pytest.mark.slow
@pytest.mark.x64_only
def test_the_flow_sharpens_past_the_edge_where_descent_stays():
    problem, rate = _sharpening(), 0.2
    watched = [observe.loss(), observe.sharpness(), observe.stability(optax.sgd(rate))]
    flow = solve(problem, GradientFlow(diffrax.Dopri8()), TS, observe=watched)
    descent = solve(problem, Descent(optax.sgd(rate)), TS, observe=watched)
    for run in (flow, descent):
        np.testing.assert_allclose(run["stability"], rate * run["sharpness"] / 2, rtol=1e-12)
        assert run["stability"][0] < 0.3
        assert run["loss"][-1] < 1e-10
    assert flow["stability"][-1] > 2.4  # the flow passes the edge and goes on
    assert 1.8 < rate * descent["sharpness"][-1] < 2.2
    late = descent.ts > 200
    np.testing.assert_allclose(np.median(descent["stability"][late]), 1, atol=0.02)
    # both come to the edge at the same time, as they are one until then
    arrived = [float(observe.edge_time(run.ts, run["stability"])) for run in (flow, descent)]
    np.testing.assert_allclose(*arrived, rtol=0.1)
    assert 20 < arrived[0] < 60


# When the edge is reached


def test_edge_time():
    ts = np.array([0.0, 1.0, 3.0, 4.0])
    lanes = np.array([[0.2, 0.6, 1.4, 0.9], [0.1, 0.2, 0.3, 0.99], [1.3, 0.2, 0.1, 0.1], [0.5, 0.9, 1.0, 1.1]])
    np.testing.assert_allclose(observe.edge_time(ts, lanes), [2.0, np.inf, 0.0, 3.0])
    np.testing.assert_array_equal(observe.edge_time(ts, np.array([0.5, np.nan, np.nan, np.nan])), np.inf)
    assert observe.edge_time(ts, lanes[0]).shape == ()
    np.testing.assert_allclose(observe.edge_time(ts, np.array([0.2, np.nan, 1.4, 0.9])), 3.0)
    assert observe.edge_time(np.array([2.0]), np.array([1.5])) == 2


# Bad input


@pytest.mark.usefixtures("as_users")
def test_bad_input():
    with pytest.raises(TypeError, match=r"optimizer must be one of optax, such as optax\.sgd\(0\.1\); got float 0\.1"):
        observe.stability(0.1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="got the function sgd: call it"):
        observe.critical_rate(optax.sgd)  # pyright: ignore[reportArgumentType]
    problem = _sharpening()
    with pytest.raises(ValueError, match="the steps of adam depend on earlier steps.*keep_state=True"):
        _read(problem, problem.params, observe.stability(optax.adam(0.1)))
    state = optax.lion(0.1).init(problem.params)
    view = View(problem, jnp.zeros(()), problem.params, optimizer_state=state)
    with pytest.raises(ValueError, match=r"stability of .* is not known: its state \(.*\) is not one whose steps"):
        observe.stability(optax.lion(0.1))(view)
    with pytest.raises(ValueError, match=r"need times and stability.*shapes \(2,\) and \(3,\)"):
        observe.edge_time(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="'sharpness' needs parameters, but FrozenKernel provides only"):
        check_observables(observe.sharpness(), FrozenKernel())
    made = lambda rate: observe.stability(optax.sgd(rate))
    assert made(0.1) == made(0.1)  # does not recompile
    assert hash(made(0.1)) == hash(made(0.1))
    assert made(0.1) != made(0.2)
