"""Weight decay: flows and descent of L + lambda/2 |theta|^2, against closed forms; what it does not apply to."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import jaxsolve as js
from tests import cases


DECAY = 0.05
X, Y = np.random.default_rng(0).normal(size=(6, 3)), np.random.default_rng(1).normal(size=(6, 2))


def linear_model(decay):
    """f(x) = W x from a random start, at rates of 1."""
    net = eqx.nn.Linear(3, 2, use_bias=False, key=jax.random.key(2))
    return js.Problem(net, X, Y, weight_decay=decay)


def ridge(problem, decay, ts):
    """The closed form of its flow: every mode of X^T X/n decays at its eigenvalue, and lambda more."""
    start = np.asarray(jax.tree.leaves(problem.params)[0])
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    end = Y.T @ X / len(X) @ vectors / (values + decay)
    modes = end + np.exp(-np.asarray(ts)[:, None, None] * (values + decay)) * (start @ vectors - end)
    return modes @ vectors.T


FLOWS = {
    "chosen": (js.GradientFlow(), 1e-5),
    "explicit": (js.GradientFlow(diffrax.Tsit5()), 1e-5),
    "eigenvectors": (js.GradientFlow(js.integrators.ParameterSpace()), 1e-5),
    "stabilized": (js.GradientFlow(js.integrators.RungeKuttaChebyshev()), 1e-3),
    "momentum": (js.MomentumFlow(tau=1e-4), 1e-3),
    "stochastic": (js.StochasticFlow(0.0, key=jax.random.key(0), change=(1e-4, 1e-3)), 1e-2),
    "descent": (js.Descent(optax.sgd(1e-3)), 2e-3),
}


@pytest.mark.parametrize("name", cases.slow_after(4, FLOWS))
def test_flows_of_a_linear_model_are_ridge_regression(name):
    flow, tolerance = FLOWS[name]
    ts, problem = [0.0, 0.5, 3.0], linear_model(DECAY)
    w = np.asarray(js.solve(problem, flow, ts, observe=js.observe.parameters())["parameters"]).reshape(3, 2, 3)
    check = lambda decay: np.testing.assert_allclose(w, ridge(problem, decay, ts), atol=max(tolerance, cases.eps(1e3)))
    check(DECAY)
    cases.assert_fails(lambda: check(0.0))


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_what_flow_conserves_decays_at_twice_lambda(activation):
    """W_1 W_1^T - W_2^T W_2 of linear layers, and its diagonal of relu; twin: it is conserved."""
    net = js.nets.MLP(
        in_size=3,
        out_size=2,
        width_size=5,
        depth=1,
        activation=activation,
        scaling=js.nets.Scaling([1.0] * 2, sigma=[0.7] * 2, eta=[1.0] * 2),
        key=jax.random.key(0),
    )
    problem, ts = js.Problem(net, X, Y, weight_decay=DECAY), np.array([0.0, 1.0, 4.0])
    flow = js.GradientFlow(diffrax.Tsit5(), land_on_ts=True)
    run = js.solve(problem, flow, ts, observe=js.observe.parameters())
    params = [jax.tree.leaves(jax.tree.map(jnp.asarray, p)) for p in map(unraveled(problem), run["parameters"])]
    gap = np.array([first @ first.T - second.T @ second for first, second in params])
    gap = gap if activation == "linear" else np.diagonal(gap, axis1=1, axis2=2)
    shape = (-1, *[1] * (gap.ndim - 1))
    check = lambda rate: np.testing.assert_allclose(
        gap, np.exp(-rate * ts).reshape(shape) * gap[:1], atol=cases.eps(2e3) + 2e-5
    )
    check(2 * DECAY)
    cases.assert_fails(lambda: check(0.0))
    assert run.certificate is not None
    assert np.isnan(run.certificate.conserved_drift)
    if activation == "linear":  # at kinks a flow loses its order
        assert run.certificate.energy_balance < 1e-4


def unraveled(problem):
    return ravel_pytree(problem.params)[1]


def test_descent_is_that_of_decayed_weights():
    problem, ts = cases.sharpening(3, 5, 8, 0), np.linspace(0, 2, 5)
    decayed = eqx.tree_at(lambda p: p.weight_decay, problem, jnp.asarray(0.1), is_leaf=lambda leaf: leaf is None)
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05, momentum=0.9))
    watched = [js.observe.parameters(), js.observe.loss()]
    ours = js.solve(decayed, js.Descent(optax.sgd(0.05, momentum=0.9)), 10 * ts, observe=watched)
    theirs = js.solve(problem, js.Descent(optimizer, rate=0.5), 10 * ts, observe=watched)
    for name in ("parameters", "loss"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=cases.eps(1e4), atol=cases.eps(1e3))


def test_losses_are_without_it_and_curvature_is_with_it():
    problem = cases.sharpening(3, 5, 8, 0)
    decayed = js.Problem(problem.net, problem.x, problem.y, weight_decay=0.3)
    watched = [js.observe.loss(), js.observe.sharpness()]
    with_it, without = (js.solve(p, js.GradientFlow(), 0.0, observe=watched) for p in (decayed, problem))
    np.testing.assert_allclose(with_it["loss"], without["loss"], rtol=cases.eps(10))
    np.testing.assert_allclose(with_it["sharpness"], without["sharpness"] + 0.3, rtol=cases.eps(1e5))
    norm = sum(np.sum(np.asarray(leaf) ** 2) for leaf in jax.tree.leaves(problem.params))
    difference = decayed.objective(problem.params) - decayed.training_loss(problem.params)
    np.testing.assert_allclose(difference, 0.15 * norm, rtol=cases.eps(100))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("flow", [js.CentralFlow, js.RodFlow, js.EdgeFlow])
def test_flows_at_the_edge_follow_descent(flow):
    """Sharpness, decay included, stays at 2/rate. Twins: gradient flow, and the flow without decay."""
    plain, rate = cases.sharpening(4, 7, 30, 1), 0.3
    problem = js.Problem(plain.net, plain.x, plain.y, weight_decay=0.01)
    descent = js.Descent(optax.sgd(rate))
    pairs = cases.pairs(problem, descent, np.array([300, 400]))
    sharpness = js.solve(problem, descent, 400 * rate, observe=js.observe.sharpness())["sharpness"]
    assert abs(sharpness * rate - 2) < 0.05
    followed = pairs.off(flow(optax.sgd(rate)), problem)
    assert np.all(followed < 0.13)
    assert np.all(pairs.off(js.GradientFlow(), problem) > 1.6 * followed)
    assert np.all(pairs.off(flow(optax.sgd(rate)), plain) > 5 * followed)


def sparse(alpha, decay):
    """Sparse regression by u^2 - v^2 from a large start, where the kernel's solution is dense."""
    keys = jax.random.split(jax.random.key(0), 2)
    x, x_test = (jax.random.normal(key, (n, 40)) for key, n in zip(keys, (20, 200), strict=True))
    w = jnp.zeros((40, 1)).at[:3, 0].set(jnp.array([1.0, -1.0, 1.0]))
    start = {name: jnp.full((40, 1), alpha) for name in "uv"}
    net = js.nets.Function(lambda params, x: x @ (params["u"] ** 2 - params["v"] ** 2), start)
    return js.Problem(net, x, x @ w, test=(x_test, x_test @ w), weight_decay=decay)


@pytest.mark.slow
@pytest.mark.x64_only
def test_a_network_groks_when_its_large_start_has_decayed():
    """Lyu et al. (2024, arXiv 2311.18817): the test loss falls at log(alpha)/lambda, long after the training loss."""
    found = {}
    for alpha, decay in ((5.0, 0.01), (20.0, 0.01), (20.0, 0.005)):
        ts = np.concatenate([[0.0], np.linspace(0.2, 9.0, 200) / decay])
        run = js.solve(sparse(alpha, decay), js.GradientFlow(), ts, observe=[js.observe.loss(), js.observe.test_loss()])
        test = np.asarray(run["test_loss"])
        assert np.all(run["loss"][1:] < 1e-3)
        assert test[1] > 0.9 * test[1:].max() > 20 * test[-1]
        found[alpha, decay] = ts[1:][np.argmax(test[1:] < test[1] / 10)]
    later = 0.01 * (found[20.0, 0.01] - found[5.0, 0.01])
    np.testing.assert_allclose(later, np.log(4), rtol=0.05)
    np.testing.assert_allclose(found[20.0, 0.005] / found[20.0, 0.01], 2, rtol=0.05)


REFUSE = [js.FrozenKernel(), js.InfiniteWidth(), js.RichLimit(), js.theory.TwoLayerLine(), js.AlternatingFlow()]


@pytest.mark.parametrize("dynamics", REFUSE, ids=lambda dynamics: dynamics.name)
def test_what_follows_the_loss_alone_refuses_it(dynamics):
    with pytest.raises(js.NotApplicable, match=f"{dynamics.name} does not follow weight decay.*js.GradientFlow"):
        js.solve(linear_model(DECAY), dynamics, 1.0)
    with pytest.raises(js.NotApplicable, match="does not follow weight decay"):
        js.sweep(linear_model, {"decay": [0.1, 0.2]}, dynamics, [0.0, 1.0])


def test_no_closed_form_and_no_kernel_covers_it():
    with pytest.raises(js.NotApplicable, match="no closed form covers weight decay"):
        js.exact(linear_model(DECAY))
    method = js.integrators.FunctionSpace()
    for flow in (js.GradientFlow(method), js.MomentumFlow(tau=1.0, integrator=method)):
        with pytest.raises(js.NotApplicable, match="FunctionSpace follows the kernel alone"):
            js.solve(linear_model(DECAY), flow, 1.0)


def test_predictions_refuse_it_themselves():
    net = js.nets.DeepLinear(
        in_size=2, out_size=2, width_size=2, depth=2, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
    )
    plain, decayed = (js.Problem(net, jnp.eye(2), jnp.eye(2), weight_decay=decay) for decay in (None, 0.1))
    assert not js.theory.DeepBalanced().check(plain).structural
    assert js.theory.DeepBalanced().check(decayed).structural
    with pytest.raises(js.NotApplicable, match="no weight decay"):
        js.theory.DeepBalanced().half_loss_times(decayed)


@pytest.mark.parametrize(
    ("given", "error"), [(-0.1, ValueError), (jnp.nan, ValueError), ([0.1, 0.2], ValueError), ("0.1", TypeError)]
)
def test_bad_numbers_are_named(given, error):
    with pytest.raises(error, match="weight_decay must be one finite number >= 0"):
        linear_model(given)


def test_it_is_swept_and_differentiated():
    runs = js.sweep(linear_model, {"decay": [0.0, DECAY, 1.0]}, js.GradientFlow(), [0.0, 3.0])
    by_hand = [js.solve(linear_model(decay), js.GradientFlow(), 3.0)["loss"] for decay in (0.0, DECAY, 1.0)]
    np.testing.assert_allclose(runs["loss"][:, 1], by_hand, rtol=cases.eps(1e6))
    loss = jax.jit(lambda decay: js.solve(linear_model(decay), js.GradientFlow(diffrax.Tsit5()), 3.0)["loss"])
    numeric = (loss(DECAY + 1e-2) - loss(DECAY - 1e-2)) / 2e-2
    slope = jax.jvp(loss, (jnp.asarray(DECAY),), (jnp.ones(()),))[1]
    np.testing.assert_allclose(slope, numeric, rtol=1e-2)
    assert js.solve(linear_model(0.0), js.GradientFlow(), 1.0, throw=False).result == js.RESULTS.successful
    assert bool(jax.jit(lambda decay: linear_model(decay).valid)(0.1))
    assert not bool(jax.jit(lambda decay: linear_model(decay).valid)(-0.1))


def test_a_stream_and_a_diagnosis_take_it():
    def sample(key, size):
        x = jax.random.normal(key, (size, 3))
        return x, x[:, :2]

    net = linear_model(None).net
    stream = js.Stream(net, sample, key=jax.random.key(0), size=64, weight_decay=1.0)
    descent = js.Descent(optax.sgd(0.05), batch_size=256, key=jax.random.key(1))
    w = js.solve(stream, descent, 20.0, observe=js.observe.parameters())["parameters"].reshape(2, 3)
    np.testing.assert_allclose(w, np.eye(2, 3) / 2, atol=0.05)  # of unit covariance, at lambda = 1
    report = js.diagnose(js.Problem(net, X, Y, weight_decay=0.1), optimizer=optax.sgd(0.1), steps=20)
    assert report.regime is js.observe.Regime.KERNEL
