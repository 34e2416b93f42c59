"""FrozenKernel against models that are linear in their parameters, where it is exact, and networks that become so."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import kernels, losses, nets, observe
from tests import cases


TS = (0.0, 0.3, 2.0, 9.0)
LOSSES = {"mse": losses.MSE(), "logistic": losses.Logistic(), "cross entropy": losses.CrossEntropy()}
OUTPUTS = [observe.outputs(), observe.test_outputs()]
FLOW = js.GradientFlow(rtol=1e-9, atol=1e-11)


def _linear(loss="mse", *, centered=False) -> js.Problem:
    """Three random features, only their read-out being trained; five samples, so that the kernel is singular."""
    keys = jr.split(jr.key(3), 5)
    scaling = nets.Scaling(multiplier=[0.8, 1.3], sigma=[1.2, 0.7], eta=[0.0, 0.9], gamma=1.1)
    net = nets.MLP(in_size=2, out_size=2, width_size=3, depth=1, activation="tanh", scaling=scaling, key=keys[4])
    x, x_test = cases.inputs(keys[0], 5, 2), cases.inputs(keys[1], 4, 2)
    y, y_test = (jr.normal(key, (size, 2)) for key, size in ((keys[2], 5), (keys[3], 4)))
    if loss == "logistic":
        y, y_test = jnp.sign(y), jnp.sign(y_test)
    if loss == "cross entropy":
        y, y_test = jnp.argmax(y, axis=1), jnp.argmax(y_test, axis=1)
    return js.Problem(net, x, y, test=(x_test, y_test), loss=LOSSES[loss], centered=centered)


def _network(gamma: Any = 1.0, sigma: Any = 1.0, eta: Any = None, *, loss="mse", out_size=1, **options) -> js.Problem:
    """A lazy scaling of a small network: the larger gamma, the closer to its linearization."""
    layers = {"multiplier": jnp.array([0.6, 0.5]), "sigma": jnp.ones(2) * sigma}
    rates = jnp.ones(2) / gamma**2 if eta is None else jnp.ones(2) * eta
    net = nets.MLP(
        in_size=3,
        out_size=out_size,
        width_size=16,
        depth=1,
        activation="tanh",
        scaling=nets.Scaling(**layers, eta=rates, gamma=gamma),
        key=jr.key(1),
    )
    y = jnp.sign(jr.normal(jr.key(2), (4, out_size)))
    y = jnp.array([0, 1, 1, 0]) if loss == "cross entropy" else y
    return js.Problem(net, cases.inputs(jr.key(0)), y, loss=LOSSES[loss], **options)


# --- exact where the model is linear in its parameters


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("loss", "centered"), [("mse", False), *(pytest.param(loss, True, marks=pytest.mark.slow) for loss in LOSSES)]
)
def test_equals_the_flow_of_a_linear_model(loss, centered):
    problem = _linear(loss, centered=centered)
    frozen = js.FrozenKernel(flow=None if loss == "mse" else FLOW)
    table = js.compare(problem, [FLOW, frozen], TS, observe=OUTPUTS)
    assert table.reference == "GradientFlow(Tsit5)"
    (name,) = table.errors
    # The flow chooses its integrator for the linear model, which is known only once it runs.
    assert name == ("FrozenKernel" if loss == "mse" else f"FrozenKernel({FLOW.name})")
    assert max(table.errors[name].values()) < 3e-8  # the tolerance of the steps
    start = problem.outputs(problem.params)
    assert np.all(start == 0) == centered
    np.testing.assert_allclose(table[name]["outputs"][0], start, atol=1e-15)
    np.testing.assert_allclose(table[name]["test_outputs"][0], problem.test_outputs(problem.params), atol=1e-15)
    rates = problem.net.scaling.eta.at[1].set(1.0)  # without that of the layer that trains
    other = js.solve(eqx.tree_at(lambda p: p.net.scaling.eta, problem, rates), frozen, TS, observe=OUTPUTS)
    assert np.abs(other["outputs"] - table[name]["outputs"]).max() > 1e-3


def test_the_end_is_the_least_change_that_fits_best():
    problem = _linear(centered=True)
    first, _ = (np.asarray(w) for w in problem.net.weights)
    phi, phi_test = (np.tanh(0.8 * np.asarray(x) @ first.T) for x in (problem.x, problem.x_test))
    w = np.linalg.pinv(phi) @ np.asarray(problem.y)
    trajectory = js.solve(problem, js.FrozenKernel(), [1e6, jnp.inf], observe=[*OUTPUTS, observe.kernel_change()])
    tolerance = cases.eps(1e2 if cases.X64 else 3e4)  # the draw in float32 is close to singular
    for row in (0, 1):
        np.testing.assert_allclose(trajectory["outputs"][row], phi @ w, atol=tolerance)
        np.testing.assert_allclose(trajectory["test_outputs"][row], phi_test @ w, atol=tolerance)
    without_one = np.linalg.pinv(phi[1:]) @ np.asarray(problem.y)[1:]
    assert np.abs(trajectory["outputs"][1] - phi @ without_one).max() > 1e-3
    assert np.all(trajectory["kernel_change"] == 0)
    np.testing.assert_allclose(trajectory.final.outputs, phi @ w, atol=tolerance)
    np.testing.assert_allclose(trajectory.final.kernel, problem.kernel(problem.params, problem.x), rtol=cases.eps(10))


@pytest.mark.parametrize("loss", ["logistic", pytest.param("mse", marks=pytest.mark.slow)])
def test_descent_in_function_space_takes_the_steps_of_descent(loss):
    problem, descent = _linear(loss), js.Descent(optax.sgd(0.2))
    table = js.compare(problem, [descent, js.FrozenKernel(flow=descent)], [0.0, 0.31, 2.0], observe=OUTPUTS)
    (name,) = table.errors
    assert name == "FrozenKernel(Descent(sgd))"
    np.testing.assert_allclose(table[name].ts, [0.0, 0.4, 2.0], rtol=cases.eps(4))
    assert max(table.errors[name].values()) < cases.eps(1e2)
    rates = problem.net.scaling.eta.at[1].set(1.0)  # without that of the layer that trains
    off = eqx.tree_at(lambda p: p.net.scaling.eta, problem, rates)
    other = js.solve(off, js.FrozenKernel(flow=descent), 2.0, observe=observe.outputs())
    assert np.abs(other["outputs"] - table[name]["outputs"][-1]).max() > 1e-3


@pytest.mark.x64_only
def test_a_flow_for_mse_equals_the_closed_form_and_may_stop():
    problem = _linear()
    flow = js.FrozenKernel(flow=js.GradientFlow(rtol=1e-9, atol=1e-11, until=js.until.loss_fraction(0.9)))
    trajectory = js.solve(problem, flow, [0.01, jnp.inf], observe=[observe.loss(), *OUTPUTS])
    assert trajectory.result == js.RESULTS.event
    np.testing.assert_allclose(trajectory["loss"][1], 0.9 * problem.objective(problem.params), rtol=1e-7)
    closed = js.solve(problem, js.FrozenKernel(), jnp.stack([jnp.asarray(0.01), trajectory.t_end]), observe=OUTPUTS)
    for name, values in closed.observed.items():
        np.testing.assert_allclose(trajectory[name], values, atol=3e-8)
    assert trajectory.certificate is not None
    assert trajectory.certificate.energy_balance < 1e-6
    np.testing.assert_allclose(trajectory.final.kernel, problem.kernel(problem.params, problem.x), rtol=1e-12)


# --- the limit of networks


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("loss", ["mse", "cross entropy"])
def test_lazy_networks_approach_it_like_one_over_gamma(loss):
    make = lambda gamma: _network(gamma, loss=loss, out_size=1 if loss == "mse" else 2, centered=True)
    if loss == "mse":
        flow, frozen = js.GradientFlow(rtol=1e-8, atol=1e-8), js.FrozenKernel()
    else:
        flow = js.Descent(optax.sgd(0.2))
        frozen = js.FrozenKernel(flow=flow)
    axes, ts = {"gamma": [10.0, 100.0]}, [0.0, 1.0, 6.0]
    without_a_layer = lambda gamma: _network(
        gamma, eta=jnp.array([0.0, 1.0]) / gamma**2, loss=loss, out_size=1 if loss == "mse" else 2, centered=True
    )
    runs = (make, flow), (make, frozen), (without_a_layer, frozen)
    one, two, twin = (
        js.sweep(make, axes, dynamics, ts, observe=observe.outputs(), progress=False) for make, dynamics in runs
    )
    assert np.all(two.result == 0)
    largest = lambda difference: np.abs(difference).max(["t", "sample", "output"]).values
    error, off = largest(one.outputs - two.outputs), largest(one.outputs - twin.outputs)
    np.testing.assert_allclose(np.log10(error[1] / error[0]), -1, atol=0.03)
    assert error[1] < 1e-2 * np.abs(two.outputs.values).max()
    assert np.log10(off[1] / off[0]) > -0.9


def test_sweeps_do_what_solve_does():
    sigmas, ts = [0.5, 1.0, 2.0], [0.0, 1.0, 4.0, jnp.inf]
    make = lambda sigma: _network(sigma=sigma)
    swept = js.sweep(make, {"sigma": sigmas}, js.FrozenKernel(), ts, progress=False)
    assert swept.attrs["dynamics"] == "FrozenKernel"
    alone = jax.jit(lambda s: js.solve(make(s), js.FrozenKernel(), ts)["loss"])(jnp.asarray(2.0))
    np.testing.assert_allclose(swept.loss[2], alone, rtol=cases.eps(1e3), atol=cases.eps(1e3))
    assert np.all(np.diff(swept.loss.values[:, 0]) > 0)
    assert np.all(swept.loss.values[:, -1] < cases.eps(1e3))


@pytest.mark.slow
def test_a_lane_with_a_bad_rate_is_invalid():
    frozen = js.FrozenKernel(flow=js.Descent(optax.sgd(0.1)))
    swept = js.sweep(lambda eta: _network(eta=eta), {"eta": [1.0, -1.0]}, frozen, [0.0, 0.1], progress=False)
    assert list(js.result_names(swept.result.values)) == ["successful", "invalid"]


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("loss", ["mse", "logistic"])
def test_derivative_in_a_hyperparameter(loss):
    frozen = js.FrozenKernel(flow=None if loss == "mse" else js.GradientFlow(rtol=1e-9, atol=1e-11))
    value = jax.jit(lambda sigma: js.solve(_network(sigma=sigma, loss=loss), frozen, 1.5)["loss"])
    tangent = jax.jit(lambda sigma: jax.jvp(value, (sigma,), (jnp.ones(()),))[1])(jnp.asarray(0.8))
    difference = (value(jnp.asarray(0.8 + 1e-4)) - value(jnp.asarray(0.8 - 1e-4))) / 2e-4
    np.testing.assert_allclose(tangent, difference, rtol=1e-6)


# --- infinite width


@pytest.mark.slow
@pytest.mark.parametrize(
    "flow",
    [
        pytest.param(None, id="closed form"),
        pytest.param(js.Descent(optax.sgd(0.2)), id="march", marks=pytest.mark.slow),
    ],
)
def test_infinite_width_flows_under_the_infinite_kernel(flow):
    problem = _linear()
    ts, observe_all = [0.4, 2.0], [*OUTPUTS, observe.kernel()]
    found = js.solve(problem, js.InfiniteWidth(flow=flow), ts, observe=observe_all)
    assert found.dynamics == ("InfiniteWidth" if flow is None else "InfiniteWidth(Descent(sgd))")
    x, x_test = problem.x, problem.x_test
    assert x_test is not None
    kernel = kernels.infinite(problem.net, x, eta=problem.eta).ntk
    cross = kernels.infinite(problem.net, x_test, x, eta=problem.eta).ntk
    blocks = kernel[:, None, :, None] * jnp.eye(2)[None, :, None, :]
    for row in (0, 1):
        np.testing.assert_allclose(found["kernel"][row], blocks, rtol=cases.eps(1e2), atol=cases.eps(10))
    f, f_test = problem.outputs(problem.params), problem.test_outputs(problem.params)
    if flow is None:
        closed = kernels.linearized(kernel, problem.y, start=f)
        f, f_test = closed.outputs(2.0), closed.predict(2.0, cross, f_test)
    for _ in range(0 if flow is None else 10):  # descent in function space, written out
        residual = 0.2 / 5 * (f - problem.y)
        f, f_test = f - kernel @ residual, f_test - cross @ residual
    np.testing.assert_allclose(found["outputs"][1], f, atol=cases.eps(2e2))
    np.testing.assert_allclose(found["test_outputs"][1], f_test, atol=cases.eps(1e4))  # a kernel close to singular
    finite = kernels.linearized(problem.kernel(problem.params, x), problem.y, start=problem.outputs(problem.params))
    assert np.abs(found["outputs"][1] - finite.outputs(2.0)).max() > 1e-3


# --- another network's kernel


def test_at_takes_the_kernel_of_another_network():
    problem, other = _network(gamma=2.0), _network(gamma=3.0, sigma=0.7, eta=1.3).net
    kernel = kernels.empirical(other, problem.x, eta=nets.rates(other)).ntk
    view = jax.jit(lambda t: js.FrozenKernel(at=other).at(problem, t))(jnp.asarray(0.5))
    np.testing.assert_allclose(view.kernel, kernel, rtol=cases.eps(1e2))
    flow = lambda kernel: kernels.linearized(kernel, problem.y, start=problem.outputs(problem.params)).outputs(0.5)
    np.testing.assert_allclose(view.outputs, flow(kernel), atol=cases.eps(1e2))
    for off in (problem.kernel(problem.params, problem.x), kernels.empirical(other, problem.x).ntk):
        assert np.abs(view.outputs - flow(off)).max() > 1e-3  # of its own network; without the rates of the other


def test_at_takes_a_function_with_parameters():
    net = jax.tree_util.Partial(lambda w, x: jnp.tanh(w @ x), jnp.ones((1, 2)))
    problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
    start, at = (js.solve(problem, js.FrozenKernel(at=at), 1.0)["loss"] for at in (None, net))
    np.testing.assert_allclose(at, start, rtol=cases.eps(10))
    learnt = js.FrozenKernel(at=js.dynamics.RunEnd(js.GradientFlow(), 1.0))
    assert js.solve(problem, learnt, 1.0)["loss"] > 1.01 * start  # of larger weights tanh is flatter


@pytest.mark.parametrize("loss", ["mse", pytest.param("logistic", marks=pytest.mark.slow)])
def test_every_lane_has_the_kernel_that_its_own_run_ends_with(loss):
    test = cases.inputs(jr.key(4)), jnp.array([[1.0], [-1.0], [1.0], [1.0]])
    make = lambda sigma: _network(sigma=sigma, loss=loss, test=test)
    learner, flow = js.GradientFlow(rtol=1e-6), None if loss == "mse" else js.GradientFlow(rtol=1e-6)
    learnt, ts = js.FrozenKernel(at=js.dynamics.RunEnd(learner, 3.0), flow=flow), [0.0, 1.0]
    swept = js.sweep(make, {"sigma": [0.7, 1.5]}, learnt, ts, observe=OUTPUTS, progress=False)
    for sigma in (0.7, 1.5):
        problem = make(sigma)
        by_hand = js.FrozenKernel(at=js.solve(problem, learner, 3.0).final.net, flow=flow)
        alone = js.solve(problem, by_hand, ts, observe=OUTPUTS)
        of_start = js.solve(problem, js.FrozenKernel(flow=flow), ts, observe=OUTPUTS)
        for name in ("outputs", "test_outputs"):
            np.testing.assert_allclose(swept[name].sel(sigma=sigma), alone[name], atol=cases.eps(1e4))
            assert np.abs(of_start[name][1] - alone[name][1]).max() > 1e-3


@pytest.mark.slow
def test_the_kernel_of_a_run_that_failed_solves_nothing():
    failing = js.FrozenKernel(at=js.dynamics.RunEnd(js.GradientFlow(max_steps=10), 3.0))  # enough for small networks
    found = js.solve(_network(sigma=1.5), failing, 1.0, observe=OUTPUTS[:1], throw=False)
    assert np.all(np.isnan(found["outputs"]))
    assert found.result == js.RESULTS.not_applicable
    with pytest.raises(
        js.NotApplicable, match=r"it needs a run in `at` that does not fail: js.solve.* shows how it ends"
    ):
        js.solve(_network(sigma=1.5), failing, 1.0, observe=OUTPUTS[:1])
    marching = js.FrozenKernel(at=failing.source_net, flow=js.GradientFlow())
    assert js.solve(_network(sigma=1.5), marching, 1.0, throw=False).result == js.RESULTS.not_applicable
    make = lambda sigma: _network(sigma=sigma)
    swept = js.sweep(make, {"sigma": [0.1, 1.5]}, failing, 1.0, observe=OUTPUTS[:1], progress=False)
    assert list(swept["result"].values) == [0, 6]
    assert np.isnan(swept["outputs"].values).all((1, 2, 3)).tolist() == [False, True]


def test_the_kernel_of_a_run_to_no_time_solves_nothing():
    """What a known time raises for, a traced one shows in the result."""

    def result(t):
        learnt = js.FrozenKernel(at=js.dynamics.RunEnd(js.GradientFlow(), t))
        return js.solve(_network(), learnt, 1.0, observe=OUTPUTS[:1], throw=False).result == js.RESULTS.successful

    ends = jnp.array([-1.0, 0.0, 0.5, jnp.nan, jnp.inf])
    assert jax.jit(jax.vmap(result))(ends).tolist() == [False, False, True, False, False]


@pytest.mark.usefixtures("as_users")
def test_bad_arguments():
    strange: Any = 3
    with pytest.raises(TypeError, match=r"at must be a network such as traj\.final\.net.*got int 3"):
        js.FrozenKernel(at=strange)
    with pytest.raises(TypeError, match=r"flow must be a marching dynamics such as GradientFlow\(\).*got FrozenKernel"):
        js.FrozenKernel(flow=js.FrozenKernel())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"one that moves parameters in steps, such as GradientFlow\(\), got Frozen"):
        js.dynamics.RunEnd(js.FrozenKernel(), 1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="t is inf, which GradientFlow reaches only with a condition"):
        js.dynamics.RunEnd(js.GradientFlow())
    with pytest.raises(ValueError, match="t must be one finite number > 0"):
        js.dynamics.RunEnd(js.GradientFlow(), 0.0)
    problem, other = _network(), _network(out_size=2)
    with pytest.raises(ValueError, match=r"at must be a network like the problem's, with 1 output\(s\).* it has 2"):
        js.FrozenKernel(at=other.net).at(problem, jnp.zeros(()))
    wide = js.nets.MLP(
        in_size=9,
        out_size=1,
        width_size=5,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(0),
    )
    with pytest.raises(ValueError, match=r"at must .* take its inputs \(x1\): .* of shape \(9,\) for this network"):
        js.FrozenKernel(at=wide).at(problem, jnp.zeros(()))
    with pytest.raises(js.NotApplicable, match=r"closed form for losses.MSE\(\): it has Logistic; `solve` integrates"):
        js.FrozenKernel().at(_network(loss="logistic"), jnp.zeros(()))
    with pytest.raises(ValueError, match="'layer_alignment' needs parameters, but FrozenKernel provides only"):
        js.solve(problem, js.FrozenKernel(), 1.0, observe=observe.layer_alignment())
    with pytest.raises(ValueError, match="this problem has no test set"):
        js.solve(problem, js.FrozenKernel(), 1.0, observe=observe.test_outputs())


def test_infinite_time_needs_a_closed_form_or_a_condition():
    make = lambda sigma: _network(sigma=sigma, loss="logistic")
    message = "ts ends in inf, which FrozenKernel reaches only with a condition"
    with pytest.raises(ValueError, match=message):
        js.sweep(make, {"sigma": [1.0]}, js.FrozenKernel(), [0.0, jnp.inf], progress=False)
    with pytest.raises(ValueError, match=message):
        js.solve(make(1.0), js.FrozenKernel(), [0.0, jnp.inf])


class ZeroOne(losses.AbstractLoss):
    """Labels 0 and 1 become -1 and +1."""

    def pointwise(self, f, y):
        return jnp.sum((f - y) ** 2) / 2

    def targets(self, y, out_size):
        return 2.0 * jnp.reshape(y, (-1, out_size)) - 1.0


def test_targets_are_read_once():
    net = eqx.nn.Linear(2, 1, use_bias=False, key=jr.key(0))  # its own linearization
    problem = js.Problem(net, jnp.eye(2), jnp.array([0.0, 1.0]), loss=ZeroOne())
    run = js.solve(problem, js.FrozenKernel(), 60.0, observe=observe.outputs())
    np.testing.assert_allclose(run["outputs"].ravel(), [-1, 1], atol=1e-3)  # read twice, -3 and 1


@pytest.mark.parametrize("flow", [js.RodFlow(rate=0.05), js.CentralFlow(rate=0.05)])
def test_flows_of_descent_move_its_model(flow):
    run, exact = (js.solve(_linear(), js.FrozenKernel(flow=one), TS, observe=OUTPUTS) for one in (flow, None))
    off = eqx.tree_at(lambda p: p.net.scaling.eta, _linear(), jnp.ones(2))  # without rates
    other = js.solve(off, js.FrozenKernel(flow=flow), TS, observe=OUTPUTS)
    for name in ("outputs", "test_outputs"):
        assert np.abs(run[name] - exact[name]).max() < 2e-3 < 0.1 < np.abs(other[name] - exact[name]).max()


@pytest.mark.parametrize("loss", LOSSES)
def test_its_kernel_has_not_changed(loss):
    problem = _network(out_size=2 if loss == "cross entropy" else 1, loss=loss)
    moved = js.solve(problem, js.GradientFlow(), 3.0).final
    run = js.solve(problem, js.FrozenKernel(at=moved.net), [0.0, 1.0], observe=observe.kernel_change())
    np.testing.assert_array_equal(run["kernel_change"], 0)
    assert js.observe.kernel_change()(js.View(problem, jnp.zeros(()), nets.partition(moved.net)[0])) > 1e-4


def test_the_model_of_a_kinked_network_has_no_kinks():
    """So the choice of an integrator is made for the model; the run is that of the closed form of one mode each."""
    net = nets.MLP(
        in_size=3, out_size=1, width_size=16, depth=1, activation="relu", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    x = jr.normal(jr.key(1), (20, 3))
    problem = js.Problem(net, x, jnp.sign(x[:, :1]), centered=True)
    tau, ts = 0.05, jnp.array([0.5, 2.0, 10.0])
    run = js.solve(problem, js.FrozenKernel(flow=js.MomentumFlow(tau=tau)), ts, observe=observe.outputs())
    values, vectors = np.linalg.eigh(np.asarray(kernels.empirical(net, x, eta=problem.eta, trace=True).ntk) / 20)
    roots = np.sqrt((1 - 4 * tau * values).astype(complex))
    slow, fast = (-1 + roots) / (2 * tau), (-1 - roots) / (2 * tau)
    left = [(fast * np.exp(slow * t) - slow * np.exp(fast * t)) / (fast - slow) for t in np.asarray(ts)]
    y = np.asarray(problem.y)[:, 0]
    expected = np.stack([y - vectors @ (share.real * (vectors.T @ y)) for share in left])
    error = np.max(np.abs(np.asarray(run["outputs"])[:, :, 0] - expected))
    assert error < (1e-5 if problem.x.dtype == jnp.float32 else 1e-7), error
