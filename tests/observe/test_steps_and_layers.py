"""Observables of the optimizer's steps, of linearization and of layers, each against NumPy or a formula."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import Descent, GradientFlow, nets, observe, Problem, solve, sweep, View
from tests import cases


@functools.cache
def _view(activation="tanh", n=6):
    net = cases.mlp(jr.key(0), cases.ACTIVATIONS[activation][0], bias=False)
    problem = cases.problem(net, jr.key(1), n=n)
    return View(problem, jnp.zeros(()), cases.randomized(problem.params, jr.key(2)))


def _read(observable, view):
    return np.asarray(eqx.filter_jit(observable)(view))


def _names(observable, problem):
    assert observable.names is not None
    return observable.names(problem)


def _start(view):
    return View(view.problem, view.t, view.problem.params)


# Linearization


@pytest.mark.x64_only
def test_nonlinearity_by_finite_differences():
    view = _view()
    hand, start = cases.by_hand(view.problem, "tanh"), ravel_pytree(view.problem.params)[0]
    theta, theta_0 = np.asarray(ravel_pytree(view.params)[0]), np.asarray(start)
    along, step = theta - theta_0, 1e-5
    linear = (hand.outputs(theta_0 + step * along) - hand.outputs(theta_0 - step * along)) / (2 * step)
    moved = hand.outputs(theta) - hand.outputs(theta_0)
    expected = np.linalg.norm(moved - linear) / np.linalg.norm(moved)
    close = lambda value: np.testing.assert_allclose(_read(observe.nonlinearity(), view), value, rtol=1e-8)
    close(expected)
    cases.assert_fails(lambda: close(np.linalg.norm(linear) / np.linalg.norm(moved)))
    assert _read(observe.nonlinearity(), _start(view)) == 0


def test_residual_position_of_the_kernel():
    view = _view()
    kernel = np.asarray(view.kernel).reshape(12, 12)
    residual = np.asarray(view.outputs - view.problem.y).ravel()
    expected = residual @ kernel @ residual / (residual @ residual * np.linalg.eigvalsh(kernel)[-1])
    np.testing.assert_allclose(_read(observe.residual_position(), view), expected, rtol=cases.eps(1e3))
    assert 0 < expected < 1


@pytest.mark.x64_only
def test_progress_by_hand():
    view = _view()
    hand, start = cases.by_hand(view.problem, "tanh"), ravel_pytree(view.problem.params)[0]
    pull = lambda theta: np.linalg.norm(hand.outputs(np.asarray(theta)) - np.asarray(view.problem.y))
    expected = 1 - pull(ravel_pytree(view.params)[0]) / pull(start)
    np.testing.assert_allclose(_read(observe.progress(), view), expected, rtol=1e-12)
    assert _read(observe.progress(), _start(view)) == 0


def test_progress_ends_where_the_parameters_see_nothing_more():
    """Of targets that one slope cannot fit 5/8 are left: without the rule, progress ends at 1 - sqrt(5/8)."""
    net = nets.Function(lambda w, x: w * x, jnp.zeros(()))
    problem = Problem(net, jnp.array([[1.0], [1.0]]), jnp.array([[2.0], [-0.5]]))
    for w, expected in ((0.75, 1.0), (0.5, None)):
        view = View(problem, jnp.zeros(()), eqx.tree_at(lambda p: p.params, problem.params, jnp.asarray(w)))
        left = np.linalg.norm([2 - w, -0.5 - w]) / np.linalg.norm([2, -0.5])
        found = _read(observe.progress(), view)
        np.testing.assert_allclose(found, 1 - left if expected is None else expected, rtol=cases.eps(10))


def test_chizat_ratio_of_a_product():
    """f = a b x from (a, b): along u = (b, a), f' = a^2 + b^2 and f'' = 2ab; the loss ends after 2L/(slope of it)."""
    a, b, y, rate = 1.5, 0.5, 2.0, 0.3
    net = nets.Function(lambda p, x: p[0] * p[1] * x, jnp.array([a, b]))
    problem = Problem(net, jnp.ones((1, 1)), jnp.full((1, 1), y))
    view = View(problem, jnp.zeros(()), problem.params)
    r, size = a * b - y, np.hypot(a, b)
    u = np.array([b, a]) / size  # the residual is negative: both grow
    first, second = u @ [b, a], 2 * u[0] * u[1]
    expected = second * (r**2 / 2 / (-r * first)) / (2 * first)
    np.testing.assert_allclose(_read(observe.chizat_ratio(optax.sgd(rate)), view), expected, rtol=cases.eps(20))
    assert np.isnan(_read(observe.chizat_ratio(optax.sgd(-rate)), view))  # uphill


# Steps


def test_critical_rate_of_a_quadratic():
    """s = 2 |g|^2/(rate g H g) for gradient descent: the multiple is found to a factor of 1.1 between 1/4 and 4."""
    rates = np.array([0.3, 2.5, 0.1, 1.9])
    problem = cases.modes(np.linspace(0.5, 1, 4), rates)
    g = ravel_pytree(jax.grad(problem.objective)(problem.params))[0]
    hessian = jax.hessian(lambda theta: problem.objective(ravel_pytree(problem.params)[1](theta)))
    theta = ravel_pytree(problem.params)[0]
    eta = ravel_pytree(jax.tree.map(lambda e, p: jnp.broadcast_to(e, p.shape), problem.eta, problem.params))[0]
    for rate in (0.5, 2.0):
        update = -rate * eta * g
        expected = float(-2 * (g @ update) / (update @ hessian(theta) @ update))
        view = View(problem, jnp.zeros(()), problem.params)
        found = float(_read(observe.critical_rate(optax.sgd(rate)), view))
        assert 1 / 1.1 < found / expected < 1.1, (rate, found, expected)


CURVATURES = np.array([0.3, 2.5, 0.1, 1.9])


def _matrix():
    """A problem of the loss |(W - W*) diag(CURVATURES)^(1/2)|^2/2, far from its minimum."""
    keys = jr.split(jr.key(3))
    net = nets.Function(lambda w, x: w @ x, jr.normal(keys[0], (4, 4)))
    return Problem(net, 2 * jnp.diag(jnp.sqrt(CURVATURES)), jr.normal(keys[1], (4, 4)))


def test_critical_rate_of_muon_on_a_quadratic():
    """The loss of a step -h O, O = polar(G), is lower than before exactly for h < 2 |G|_*/<O, H[O]>."""
    # Muon without momentum; thirty cubic iterations make its polar factors exact.
    muon = optax.contrib.muon(1.0, beta=0.0, nesterov=False, ns_coeffs=(1.5, -0.5, 0.0), ns_steps=30)
    problem = _matrix()
    start, rebuild = ravel_pytree(problem.params)
    g = np.asarray(ravel_pytree(jax.grad(problem.objective)(problem.params))[0]).reshape(4, 4)
    left, sizes, right = np.linalg.svd(g)
    edge = 2 * np.sum(sizes) / np.sum(CURVATURES * (left @ right) ** 2)
    of_descent = 2 * np.sum(g**2) / np.sum(CURVATURES * g**2)
    view = View(problem, jnp.zeros(()), problem.params, optimizer_state=muon.init(problem.params))
    found = float(_read(observe.critical_rate(muon), view))
    assert 1 / 1.1 < found / edge < 1.1
    assert not 1 / 1.1 < found / of_descent < 1.1  # which is that of gradient descent
    loss = lambda rate: problem.objective(rebuild(start - (rate * left @ right).ravel()))
    assert loss(0.99 * edge) < loss(0.0) < loss(1.01 * edge)


@pytest.mark.slow
def test_muon_settles_where_its_critical_rate_is_one():
    """Steps of one size end in going to and fro across a valley; those of gradient descent would come to rest."""
    optimizer = optax.contrib.muon(0.03)
    ts, descent = 0.03 * np.array([0.0, *range(600, 640)]), Descent(optimizer, keep_state=True)
    critical = np.asarray(solve(_matrix(), descent, ts, observe=observe.critical_rate(optimizer))["critical_rate"])
    assert critical[0] > 10
    assert 0.8 < np.median(critical[1:]) < 1.25


def test_a_step_uphill_and_none():
    view = _view()
    assert _read(observe.critical_rate(optax.sgd(-0.1)), view) == 0
    assert np.isnan(_read(observe.critical_rate(optax.sgd(0.0)), view))
    assert np.isnan(_read(observe.stability(optax.sgd(-0.1)), view))


@pytest.mark.parametrize(
    ("optimizer", "share"),
    [
        (optax.sgd(0.1), 0.1),
        (optax.sgd(0.1, momentum=0.8), 0.1 / 1.8),
        (optax.sgd(0.1, momentum=0.8, nesterov=True), 0.1 * 2.6 / 1.8),
        (optax.chain(optax.scale(2.0), optax.sgd(0.1)), 0.2),
    ],
    ids=["sgd", "heavy ball", "nesterov", "chain"],
)
def test_stability_is_a_share_of_the_sharpness(optimizer, share):
    view = _view()
    expected = share * _read(observe.sharpness(), view) / 2
    np.testing.assert_allclose(_read(observe.stability(optimizer), view), expected, rtol=cases.eps(1e3))


def test_stability_of_adam_weighs_the_hessian_whole():
    view, optimizer = _view(), optax.adam(0.1, b1=0.9, b2=0.99, eps=1e-6)
    problem, params = view.problem, view.params
    state: Any = optimizer.init(params)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        for _ in range(5):
            _, state = optimizer.update(jax.grad(problem.objective)(params), state, params)
    found = _read(observe.stability(optimizer), View(problem, view.t, params, optimizer_state=state))
    flat = lambda tree: np.asarray(ravel_pytree(tree)[0])
    g, nu = flat(jax.grad(problem.objective)(params)), flat(state[0].nu)
    hat = (0.99 * nu + 0.01 * g**2) / (1 - 0.99**6)
    eta = flat(jax.tree.map(lambda e, p: jnp.broadcast_to(e, p.shape), problem.eta, params))
    rate = eta * 0.1 * 0.1 / (1.9 * (np.sqrt(hat) + 1e-6))
    unravel = ravel_pytree(params)[1]
    hessian = np.asarray(jax.hessian(lambda theta: problem.objective(unravel(theta)))(ravel_pytree(params)[0]))
    root = np.sqrt(rate)
    expected = np.linalg.eigvalsh(root[:, None] * hessian * root)[-1] / 2
    np.testing.assert_allclose(found, expected, rtol=cases.eps(1e4))
    # Other libraries keep the state in trees of their own; what counts is the order of its arrays.
    again = View(problem, view.t, params, optimizer_state=jax.tree.leaves(state))
    np.testing.assert_array_equal(_read(observe.stability(optimizer), again), found)
    with pytest.raises(ValueError, match="is not one of adam for this network: it has 0 arrays"):
        _read(observe.stability(optimizer), View(problem, view.t, params, optimizer_state=optax.EmptyState()))


# Layers


def test_update_size():
    view = _view()
    now, start = ([np.asarray(w) for w in tree.weights] for tree in (view.params, view.problem.params))
    expected = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(now, start, strict=True)]
    np.testing.assert_allclose(_read(observe.update_size(), view), expected, rtol=cases.eps(50))
    assert _names(observe.update_size(), view.problem) == ("weights[0]", "weights[1]", "weights[2]")


def test_update_size_over_decades():
    """Squares of neither overflow nor vanish, and a layer from 0 has moved without measure."""
    view = _view()
    for size in (1e-30, 1e30):
        problem = eqx.tree_at(lambda p: p.net.weights[0], view.problem, size * view.problem.params.weights[0])
        params = eqx.tree_at(lambda p: p.weights[0], view.params, 3 * problem.params.weights[0])
        found = _read(observe.update_size(), View(problem, view.t, params))
        np.testing.assert_allclose(found[0], 2, rtol=cases.eps(50))
    problem = eqx.tree_at(lambda p: p.net.weights[1], view.problem, 0 * view.problem.params.weights[1])
    assert np.isinf(_read(observe.update_size(), View(problem, view.t, view.params))[1])


def test_update_alignment():
    view = _view()
    found, read = _read(observe.update_alignment(), view), np.asarray(view.problem.x)
    for layer, (w, w_0) in enumerate(zip(view.params.weights, view.problem.params.weights, strict=True)):
        change = np.asarray(w - w_0)
        expected = np.linalg.norm(read @ change.T) / (np.linalg.norm(change) * np.linalg.norm(read))
        np.testing.assert_allclose(found[layer], expected, rtol=cases.eps(100))
        read = np.tanh(float(view.problem.net.scaling.multiplier[layer]) * read @ np.asarray(w).T)
    assert np.all(np.isnan(_read(observe.update_alignment(), _start(view))))


def test_update_alignment_over_decades():
    """Squares of neither the change nor the data overflow or vanish."""
    view = _view()
    problem, params = view.problem, view.params
    expected = _read(observe.update_alignment(), view)[0]
    change = params.weights[0] - problem.params.weights[0]
    most = float(jnp.finfo(change.dtype).max)
    for size in (most**-0.7, most**0.7):
        start = eqx.tree_at(lambda p: p.net.weights[0], problem, jnp.zeros_like(change))
        moved = eqx.tree_at(lambda p: p.weights[0], params, size * change)
        for inputs in (1.0, 1 / size):
            scaled = eqx.tree_at(lambda p: p.x, start, inputs * problem.x)
            found = _read(observe.update_alignment(), View(scaled, view.t, moved))[0]
            np.testing.assert_allclose(found, expected, rtol=cases.eps(100))


class _Two(eqx.Module):
    """A convolution and a matrix, in plain JAX."""

    kernel: jax.Array
    matrix: jax.Array

    def __call__(self, x):
        z = jax.lax.conv(x[None], self.kernel, (1, 1), "SAME")[0]
        return self.matrix @ jax.nn.relu(z).ravel()


def _two():
    k = jr.split(jr.key(3), 5)
    net = _Two(jr.normal(k[0], (3, 2, 3, 3)), jr.normal(k[1], (2, 3 * 16)))
    problem = Problem(net, jr.normal(k[2], (5, 2, 4, 4)), jr.normal(k[3], (5, 2)))
    return View(problem, jnp.zeros(()), cases.randomized(problem.params, k[4]))


def test_of_a_convolution_patches_are_read():
    view = _two()
    x, w = np.asarray(view.problem.x), np.asarray(view.params.kernel - view.problem.params.kernel)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.array([padded[:, :, i : i + 3, j : j + 3] for i in range(4) for j in range(4)]).reshape(-1, 18)
    moved = patches @ w.reshape(3, 18).T
    expected = np.linalg.norm(moved) / (np.linalg.norm(w) * np.linalg.norm(patches))
    kernel = np.asarray(view.params.kernel).reshape(3, 18)
    hidden = np.maximum(patches @ kernel.T, 0).reshape(16, 5, 3).transpose(1, 2, 0).reshape(5, -1)
    dm = np.asarray(view.params.matrix - view.problem.params.matrix)
    other = np.linalg.norm(hidden @ dm.T) / (np.linalg.norm(dm) * np.linalg.norm(hidden))
    np.testing.assert_allclose(_read(observe.update_alignment(), view), [expected, other], rtol=cases.eps(100))
    assert _names(observe.update_alignment(), view.problem) == ("kernel", "matrix")


def test_dormant_units_are_counted():
    """Two of three channels are dead: with -1 for all weights of positive inputs relu is 0 everywhere."""
    view = _two()
    kernel = jnp.ones((3, 2, 3, 3)).at[1:].set(-1.0)
    problem = eqx.tree_at(lambda p: p.x, view.problem, jnp.abs(view.problem.x) + 0.1)
    params = eqx.tree_at(lambda p: p.kernel, view.params, kernel)
    found = _read(observe.dormant_units(), View(problem, view.t, params))
    np.testing.assert_allclose(found, [2 / 3], rtol=cases.eps(5))
    assert _names(observe.dormant_units(), problem) == ("matrix",)
    # A unit a hundred times smaller than its layer's mean sleeps by the threshold of the paper, not by 0.
    params = eqx.tree_at(lambda p: p.kernel, params, kernel.at[1].set(1e-3).at[2].set(1.0))
    for threshold, expected in ((0.025, 1 / 3), (0.0, 0.0)):
        found = _read(observe.dormant_units(threshold=threshold), View(problem, view.t, params))
        np.testing.assert_allclose(found, [expected], rtol=cases.eps(5))


@pytest.mark.usefixtures("as_users")
def test_layers_that_are_not_there_are_refused():
    view = View(cases.modes([1.0], [1.0]), jnp.zeros(()), cases.modes([1.0], [1.0]).params)
    with pytest.raises(ValueError, match="no product of data with parameters was found|all layers of this network"):
        observe.dormant_units()(view)
    problem = Problem(nets.Function(lambda w, x: w * x, jnp.ones(2)), jnp.eye(2), jnp.eye(2))
    with pytest.raises(ValueError, match="need a network with a matrix or a convolution"):
        observe.dormant_units()(View(problem, jnp.zeros(()), problem.params))
    net, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="batch", dtype=float)
    problem = Problem(net, jnp.eye(2), jnp.eye(2), state=state)
    with pytest.raises(ValueError, match="no product of data with parameters was found"):
        observe.dormant_units()(View(problem, jnp.zeros(()), problem.params))
    with pytest.raises(ValueError, match="threshold must be one finite number >= 0"):
        observe.dormant_units(threshold=-1)


# Traced kernels, and where observables are used


def test_traced_is_the_kernel_summed_over_outputs():
    view = _view()
    kernel = lambda params: np.einsum("icjc->ij", np.asarray(view.problem.kernel(params, view.problem.x)))
    now, start = kernel(view.params), kernel(view.problem.params)
    expected = np.linalg.norm(now - start) / np.linalg.norm(start)
    close = lambda value: np.testing.assert_allclose(
        _read(observe.traced(observe.kernel_change()), view), value, rtol=cases.eps(200)
    )
    close(expected)
    cases.assert_fails(lambda: close(_read(observe.kernel_change(), view)))
    whole = np.asarray(view.kernel)
    given = View(view.problem, view.t, given_kernel=jnp.asarray(whole), given_initial_kernel=view.initial_kernel)
    np.testing.assert_allclose(_read(observe.traced(observe.kernel_change()), given), expected, rtol=cases.eps(200))


@pytest.mark.usefixtures("as_users")
def test_what_has_no_kernel_is_refused():
    bad: Any
    for bad, error in ((observe.loss(), ValueError), (observe.kernel(), ValueError), ("kernel", TypeError)):
        with pytest.raises(error, match="traced takes an observable"):
            observe.traced(bad)


def test_runs_and_sweeps_take_them_all():
    items = [
        observe.nonlinearity(),
        observe.progress(),
        observe.chizat_ratio(optax.sgd(0.1)),
        observe.residual_position(),
        observe.update_size(),
        observe.update_alignment(),
        observe.dormant_units(),
        observe.critical_rate(optax.sgd(0.1)),
        observe.stability(optax.sgd(0.1)),
        observe.traced(observe.kernel_change()),
    ]
    problem = _view().problem
    run = solve(problem, GradientFlow(), [0.0, 0.5], observe=items)
    made = lambda seed: Problem(
        nets.TwoLayerLinear(in_size=3, width_size=4, out_size=2, scaling=cases.scaling(2), key=jr.key(seed)),
        problem.x,
        problem.y,
    )
    lanes = sweep(made, {"seed": [0, 1]}, Descent(optax.sgd(0.1)), [0.0, 0.5], observe=items)
    for item in items:
        assert np.all(np.isfinite(run[item.name][1])), item.name
        assert lanes[item.name].dims[:2] == ("seed", "t")


@pytest.mark.parametrize("batch_size", [None, 2])
def test_descent_shows_the_state_of_its_optimizer(batch_size):
    """At each of its times, alone and in a sweep, that of the same steps by hand."""
    problem, optimizer = _view().problem, optax.adam(0.02)
    options = {} if batch_size is None else {"batch_size": batch_size, "key": jr.key(3)}
    items = [observe.critical_rate(optimizer), observe.stability(optimizer)]
    kept = Descent(optimizer, keep_state=True, **options)
    ts = [0.02, 0.1]
    run = solve(problem, kept, ts, observe=[*items, observe.parameters()])
    plain = solve(problem, Descent(optimizer, **options), ts, observe=observe.parameters())
    np.testing.assert_array_equal(run["parameters"], plain["parameters"])
    assert np.all(np.isfinite(run["stability"]))
    if batch_size is None:
        params, state = problem.params, optimizer.init(problem.params)
        with jax.numpy_dtype_promotion("standard"):
            for _ in range(5):
                updates, state = optimizer.update(jax.grad(problem.objective)(params), state, params)
                params = jax.tree.map(lambda p, e, u: p + e * u.astype(p.dtype), params, problem.eta, updates)
        view = View(problem, jnp.zeros(()), params, optimizer_state=state)
        for item in items:
            np.testing.assert_allclose(run[item.name][1], _read(item, view), rtol=cases.eps(1e6))
        assert run.final.optimizer_state is not None
    lanes = sweep(lambda scale: _scaled(problem, scale), {"scale": [1.0, 2.0]}, kept, ts, observe=items)
    assert np.all(np.isfinite(lanes["stability"]))
    if batch_size is None:  # else a lane has a key of its own
        np.testing.assert_allclose(lanes["stability"][0], run["stability"], rtol=cases.eps(1e6))
    with pytest.raises(ValueError, match=r"take js\.Descent\(\.\.\., keep_state=True\)"):
        solve(problem, Descent(optimizer, **options), ts, observe=items)


def _scaled(problem, scale):
    return eqx.tree_at(lambda p: p.y, problem, scale * problem.y)
