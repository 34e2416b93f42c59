import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from jaxsolve import Certificate, GradientFlow, nets, observe, Problem, result_names, RESULTS, solve, theory, until
from jaxsolve.integrators import InertialFunctionSpace, RungeKuttaChebyshev
from tests import cases
from tests.inside import conserved_drift, result_code


def _certificate(trajectory):
    assert trajectory.certificate is not None
    return trajectory.certificate


def _line(net=None):
    """A two-layer linear network with unequal rates on a line, for which there is a closed form."""
    x = jnp.array([[1.0, -0.5, 2.0]]) * jnp.array([[1.0], [-0.7], [0.4]])
    y = jnp.array([[1.0], [-0.4], [0.9]])
    net = nets.TwoLayerLinear(in_size=3, width_size=4, scaling=cases.scaling(2), key=jr.key(1)) if net is None else net
    return Problem(net, x, y)


ENDS, BETWEEN = (0.0, 4.0, 4.0, 4.0), (0.3, 1.0, 2.7, 4.0)


@functools.cache
def _flow_on_line(solver, rtol, ts=ENDS):
    return solve(_line(), GradientFlow(solver(), rtol=rtol, atol=rtol * 1e-2), ts, observe=observe.outputs())


@functools.cache
def _exact_on_line(ts=ENDS):
    return solve(_line(), theory.TwoLayerLine(), ts, observe=observe.outputs())["outputs"]


def _error(value, reference):
    return float(np.max(np.abs(value - reference)) / np.max(np.abs(reference)))


# Against independent solutions


@pytest.fixture(scope="module")
def biased():
    """A tanh network with biases in which every hyperparameter differs, centered, and its flow."""
    problem = cases.problem(cases.mlp(jr.key(3)), jr.key(4), centered=True)
    ts = jnp.array([0.0, 0.1, 0.7, 3.0])
    flow = GradientFlow(diffrax.Dopri8(), rtol=1e-11, atol=1e-13, land_on_ts=True)
    return problem, solve(problem, flow, ts, observe=[observe.outputs(), observe.loss()])


def _by_scipy(by_hand, ts):
    field = lambda t, theta: -by_hand.eta * by_hand.loss_and_gradient(theta)[1]
    return solve_ivp(field, (0, ts[-1]), by_hand.start, "DOP853", t_eval=np.asarray(ts), rtol=1e-11, atol=1e-13).y.T


@pytest.mark.x64_only
def test_agrees_with_scipy(biased):
    problem, trajectory = biased
    by_hand = cases.by_hand(problem, "tanh")
    reference = _by_scipy(by_hand, trajectory.ts)
    np.testing.assert_allclose(ravel_pytree(trajectory.final.params)[0], reference[-1], rtol=0, atol=1e-10)
    np.testing.assert_allclose(trajectory["outputs"], [by_hand.outputs(p) for p in reference], rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        trajectory["loss"], [by_hand.loss_and_gradient(p)[0] for p in reference], rtol=0, atol=1e-10
    )
    assert np.ptp(trajectory["loss"]) > 0.1  # it learns something


@pytest.mark.x64_only
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_scipy_would_notice_the_rate_of_a_layer_left_out(biased, layer):
    problem, trajectory = biased
    off = cases.by_hand(problem, "tanh", eta=problem.net.scaling.eta.at[layer].set(1.0))
    difference = ravel_pytree(trajectory.final.params)[0] - _by_scipy(off, trajectory.ts)[-1]
    assert np.abs(difference).max() > 1e-4


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("solver", "order", "counts"),
    [pytest.param(diffrax.Tsit5, 5, (16, 32, 64), marks=pytest.mark.slow), (diffrax.Dopri8, 8, (8, 16, 32))],
)
def test_order(solver, order, counts):
    """Steps of one size, which land on every time because the tolerance does not bind."""
    errors = []
    for count in counts:
        ts = jnp.concatenate([jnp.zeros(64 - count), jnp.linspace(0, 4, count + 1)])
        run = _land(solver, ts)
        exact = solve(_line(), theory.TwoLayerLine(), ts, observe=observe.outputs())
        assert run.stats.steps == count
        errors.append(_error(run["outputs"], exact["outputs"]))
    slope = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order - 0.2 < slope < order + 0.8


def _land(solver, ts):
    return solve(_line(), GradientFlow(solver(), rtol=1.0, atol=1.0, land_on_ts=True), ts, observe=observe.outputs())


def test_repeated_times_cost_no_step():
    times = jnp.linspace(0, 4, 13)
    once = _land(diffrax.Tsit5, jnp.concatenate([jnp.zeros(52), times]))
    repeated = _land(diffrax.Tsit5, jnp.concatenate([jnp.zeros(13), jnp.repeat(times, 4)]))
    expected = np.repeat(once["outputs"][52:], 4, axis=0)
    np.testing.assert_allclose(repeated["outputs"][13:], expected, rtol=0, atol=cases.eps(10))
    assert repeated.stats.steps == once.stats.steps == 12


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(("solver", "rtols"), [(diffrax.Tsit5, (1e-5, 1e-8)), (diffrax.Dopri8, (1e-5, 1e-8))])
def test_error_falls_in_proportion_to_rtol(solver, rtols):
    errors = [_error(_flow_on_line(solver, rtol)["outputs"], _exact_on_line()) for rtol in rtols]
    assert 0.8 < np.polyfit(np.log(rtols), np.log(errors), 1)[0] < 1.2
    assert all(error < rtol for error, rtol in zip(errors, rtols, strict=True))


@pytest.mark.x64_only
@pytest.mark.parametrize(("solver", "rtol"), [(diffrax.Tsit5, 1e-8), (diffrax.Dopri8, 1e-8)])
def test_interpolated_times_are_within_the_tolerance(solver, rtol):
    run = _flow_on_line(solver, rtol, BETWEEN)
    assert _error(run["outputs"], _exact_on_line(BETWEEN)) < rtol
    np.testing.assert_array_equal(run.ts, BETWEEN)
    assert run.stats.steps == _flow_on_line(solver, rtol).stats.steps  # times between steps cost none


@pytest.mark.parametrize(
    ("solver", "rtol", "bound"),
    [(diffrax.Kvaerno5(), 1e-5, 1e-5), (diffrax.HalfSolver(diffrax.Euler()), 1e-4, 5e-3)],
    ids=["implicit", "halved"],
)
def test_other_integrators(solver, rtol, bound):
    problem = cases.modes([2.0, -1.0], [1.0, 3.0])
    ts = jnp.array([0.0, 0.3, 0.9, 1.5])
    trajectory = solve(problem, GradientFlow(solver, rtol=rtol, atol=1e-2 * rtol), ts, observe=observe.outputs())
    exact = np.sqrt([2.0, 6.0]) * [2.0, -1.0] * np.exp(-np.asarray(ts)[:, None] * [1.0, 3.0])
    assert _error(trajectory["outputs"][:, :, 0], exact) < bound
    one_rate = np.sqrt([2.0, 6.0]) * [2.0, -1.0] * np.exp(-np.asarray(ts)[:, None] * [1.0, 1.0])
    assert _error(trajectory["outputs"][:, :, 0], one_rate) > bound
    assert trajectory.stats.gradient_evaluations == -1


def test_an_implicit_solver_is_trusted_to_its_tolerance():
    """Its equations are solved to rtol: an error that its estimates do not see."""
    problem = cases.modes([2.0, -1.0], [1.0, 3.0])
    rtol = 1e-4
    implicit, explicit = (solve(problem, GradientFlow(solver, rtol=rtol), 1.5) for solver in (diffrax.Kvaerno5(), None))
    assert implicit.certificate.step_error >= 1 > explicit.certificate.step_error  # pyright: ignore[reportOptionalMemberAccess]
    assert implicit.certificate.trust <= -np.log10(rtol)  # pyright: ignore[reportOptionalMemberAccess]


def test_evaluations_are_those_made():
    made = []

    def counted(f, y):
        jax.debug.callback(lambda: made.append(1))
        return jnp.sum((f - y) ** 2) / 2

    problem = cases.modes([2.0], [1.0], loss=counted)
    flow = GradientFlow()
    state = jax.jit(lambda: flow.init(problem, jnp.array([10.0])))()
    advance = jax.jit(lambda s: flow.advance(problem, s, jnp.asarray(4)))
    jax.effects_barrier()
    made.clear()
    state = advance(state)
    jax.effects_barrier()
    assert not state.done
    assert len(made) == 4 * 6 + 1 == int(flow.finish(problem, state).evaluations) - 2  # two before the first step


def test_evaluations_of_a_refused_step_count():
    """In a step without an estimate of the stiffness all evaluations are stages, 1 + sqrt(1 + 1.54 * 1.2 h r)."""
    problem, flow = cases.modes([2.0], [1.0]), GradientFlow(RungeKuttaChebyshev(), rtol=1e-4, atol=1e-8)
    advance = jax.jit(lambda s: flow.advance(problem, s, jnp.asarray(1)))
    made = lambda s: int(flow.finish(problem, s).evaluations)
    state = advance(jax.jit(lambda: flow.init(problem, jnp.array([50.0])))())
    for size, refused in ((float(state.t_next - state.t), 0), (20.0, 1)):
        end = advance(eqx.tree_at(lambda s: s.t_next, state, state.t + size))
        assert end.rejected - state.rejected == refused
        assert made(end) - made(state) == 1 + int(np.sqrt(1 + 1.54 * 1.2 * size))


# until


def _flow_until(start, rate, condition, ts):
    """The flow of one decaying weight: L = r w^2/2 exp(-2 r t)."""
    start, rate = (jnp.asarray(value, jnp.result_type(float)) for value in (start, rate))
    flow = GradientFlow(rtol=1e-9 if cases.eps() < 1e-10 else 1e-5, atol=1e-12, until=condition)
    return solve(cases.modes(start[None], rate[None]), flow, ts)


@pytest.mark.x64_only
@given(start=st.floats(0.1, 10.0), rate=st.floats(0.01, 100.0), share=st.floats(1e-8, 0.99))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_until_is_located(start, rate, share):
    threshold = share * rate * start**2 / 2
    event = -np.log(share) / (2 * rate)
    ts = np.array([0.0, 0.5 * event, 2 * event, np.inf])
    trajectory = _flow_until(start, rate, until.loss_below(threshold), ts)
    assert trajectory.result == RESULTS.event
    np.testing.assert_allclose(trajectory["loss"][2:], threshold, rtol=1e-10)
    np.testing.assert_allclose(trajectory.final.loss, threshold, rtol=1e-10)
    np.testing.assert_allclose(trajectory.t_end, event, rtol=1e-7)
    np.testing.assert_allclose(trajectory["loss"][:2], rate * start**2 / 2 * np.array([1, share**0.5]), rtol=1e-6)
    np.testing.assert_array_equal(trajectory.ts, ts)
    of_the_outputs = 2 * event  # the loss falls twice as fast
    cases.assert_fails(lambda: np.testing.assert_allclose(trajectory.t_end, of_the_outputs, rtol=1e-7))


def test_a_condition_is_located_by_few_looks_at_it():
    """Those of the steps among them; 71 if the end that stays counts half from its first stay on."""
    looks = []

    class Below(until.AbstractCondition):
        def value(self, view):
            jax.debug.callback(lambda: looks.append(1))
            return view.loss - 0.1

    flow = GradientFlow(diffrax.Tsit5(), rtol=1e-3, until=Below())
    run = solve(cases.modes([1.0], [0.7]), flow, [jnp.inf])
    jax.effects_barrier()
    assert run.result == RESULTS.event
    np.testing.assert_allclose(run.final.loss, 0.1, rtol=max(1e-10, cases.eps(10)))
    assert run.stats.steps < 5
    assert len(looks) < 45  # measured: 30


@pytest.mark.x64_only
def test_the_time_of_an_event_has_a_second_derivative():
    """L = L_0 exp(-2 r t): t = log(L_0/c)/(2 r), with the slope -1/(2 r c) in c, and that of this 1/(2 r c^2)."""

    def end(c):
        flow = GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-12, until=until.loss_below(c))
        return solve(cases.modes([1.0], [0.7]), flow, [jnp.inf]).t_end

    along = lambda function: lambda c: jax.jvp(function, (c,), (jnp.ones_like(c),))[1]
    c = jnp.asarray(0.1)
    np.testing.assert_allclose(along(end)(c), -1 / (2 * 0.7 * 0.1), rtol=1e-7)
    np.testing.assert_allclose(along(along(end))(c), 1 / (2 * 0.7 * 0.1**2), rtol=2e-6)


def test_until_fraction_not_met_and_met_at_once():
    run = lambda fraction, ts: _flow_until(3.0, 2.0, until.loss_fraction(fraction), jnp.asarray(ts))
    met = run(0.25, [0.0, 0.1, 1.0, jnp.inf])
    assert met.result == RESULTS.event
    np.testing.assert_allclose(met.t_end, np.log(2) / 2, rtol=1e-8 if cases.eps() < 1e-10 else 1e-5)
    np.testing.assert_allclose(met["loss"][2:], 0.25 * met["loss"][0], rtol=max(1e-10, cases.eps(100)))
    short = run(0.25, [0.0, 0.1, 0.2, 0.3])
    assert short.result == RESULTS.max_time
    assert short.t_end == short.ts[-1]
    at_once = run(1.0, [0.0, 0.1, 1.0, jnp.inf])
    assert at_once.result == RESULTS.event
    assert at_once.t_end == 0
    assert at_once.stats.steps == 0
    np.testing.assert_array_equal(at_once["loss"], np.full(4, at_once["loss"][0]))


# How runs end


@pytest.fixture(scope="module")
def lanes():
    """Flows at good and bad sigmas in one batch, and the good ones among good ones only."""
    x, y = cases.inputs(jr.key(0), 3), cases.inputs(jr.key(1), 3, 2)
    make = lambda sigma: Problem(cases.mlp(jr.key(2), depth=1, sigma=sigma * jnp.ones(2)), x, y)
    flow = jax.jit(jax.vmap(lambda sigma: solve(make(sigma), GradientFlow(rtol=1e-5), jnp.array([0.0, 0.5, 2.0]))))
    huge = float(jnp.finfo(jnp.result_type(float)).max) ** 0.6
    return flow(jnp.array([1.0, -1.0, jnp.nan, huge, 0.5])), flow(jnp.array([1.0, 1.0, 0.5, 0.5, 0.5]))


def test_bad_values_end_their_lane_only(lanes):
    mixed, good = lanes
    names = list(result_names(result_code(mixed.result)))
    assert names == ["successful", "invalid", "invalid", "diverged", "successful"]
    np.testing.assert_array_equal(mixed["loss"][jnp.array([0, 4])], good["loss"][jnp.array([0, 4])])
    assert np.all(np.isfinite(good["loss"]))
    np.testing.assert_array_equal(np.isnan(mixed["loss"][1:4]), [[False, True, True], [True] * 3, [False, True, True]])
    np.testing.assert_array_equal(mixed.t_end, [2.0, 0.0, 0.0, 0.0, 2.0])
    np.testing.assert_array_equal(mixed.stats.steps[1:4], 0)


def test_diverged_on_its_way():
    """L = -w^2/2 has w = exp(t): finite to begin with, beyond the dtype some time later."""
    problem = cases.modes([1.0], [1.0], loss=lambda f, y: -jnp.sum(f**2) / 2)
    late = 0.9 * float(np.log(jnp.finfo(jnp.result_type(float)).max)) / 2
    trajectory = solve(problem, GradientFlow(), jnp.array([0.0, 1.0, late, 2 * late, 3 * late]), throw=False)
    assert trajectory.result == RESULTS.diverged
    assert late < trajectory.t_end < 2 * late
    np.testing.assert_array_equal(np.isnan(trajectory["loss"]), [False, False, False, True, True])
    np.testing.assert_allclose(trajectory["loss"][:2], [-0.5, -0.5 * np.exp(2)], rtol=1e-3)


@pytest.mark.x64_only
def test_tolerance_out_of_reach():
    """At the kink of |w| no step is short enough."""
    problem = cases.modes([1.0], [1.0], loss=lambda f, y: jnp.sum(jnp.abs(f)))
    flow = GradientFlow(rtol=1e-14, atol=1e-25)
    trajectory = solve(problem, flow, jnp.array([0.0, 0.5, 2.0, 3.0]), throw=False)
    assert trajectory.result == RESULTS.tolerance
    np.testing.assert_allclose(trajectory.t_end, 1.0, atol=1e-6)
    np.testing.assert_allclose(trajectory["loss"], [1.0, 0.5, np.nan, np.nan], rtol=1e-10)


# The certificate


@pytest.mark.x64_only
def test_certificate_of_a_linear_network():
    run = _flow_on_line(diffrax.Tsit5, 1e-8)
    certificate = _certificate(run)
    assert 0 < certificate.conserved_drift < 1e-9
    assert 0 < certificate.energy_balance < 1e-7
    assert 0 < certificate.step_error <= 1
    assert certificate.rtol == 1e-8
    worst = max(certificate.conserved_drift, certificate.energy_balance, certificate.step_error * certificate.rtol)
    np.testing.assert_allclose(certificate.trust, -np.log10(worst * (1 + 12 / run.stats.steps)), rtol=1e-12)


def test_the_balance_of_energy_does_not_depend_on_the_zero_of_the_loss():
    def balance(shift):
        net = cases.mlp(jax.random.key(0))
        x = jax.random.normal(jax.random.key(1), (4, 3))
        loss = lambda f, y: 0.5 * jnp.sum((f - y) ** 2) - shift
        problem = Problem(net, x, jnp.ones((4, 2)), loss=loss)
        scale = abs(float(problem.objective(problem.params)))
        run = solve(problem, GradientFlow(diffrax.Tsit5(), rtol=1e-2), 3.0, throw=False)
        assert run.certificate is not None
        return float(run.certificate.energy_balance) * scale

    assert balance(0.0) > 1e-5
    np.testing.assert_allclose(balance(10.0), balance(0.0), rtol=1e-3, atol=cases.eps(20))  # losses of 10 are rounded


def test_a_lost_balance_of_energy_leaves_no_digit_and_is_warned_of():
    certificate = Certificate(jnp.asarray(jnp.nan), jnp.asarray(1e30), jnp.asarray(0.5), jnp.asarray(1e-2))
    assert certificate.trust == 0
    assert repr(certificate).startswith("Certificate(0.0 digits: energy balance lost, step error 0.5")
    loose = GradientFlow(diffrax.Tsit5(), rtol=0.3, atol=1e-9)
    with pytest.warns(UserWarning, match=r"this run of GradientFlow\(Tsit5\) can be trusted to .* digits only"):
        run = solve(cases.modes([1.0], [1.0]), loose, 20.0)
    assert _certificate(run).trust < 2


def test_a_frozen_layer_gives_no_nan():
    for eta in ([1.0, 0.0], [0.0, 1.0], [0.0, 0.0]):
        scaling = nets.Scaling([1.0, 1.0], sigma=[1.0, 1.0], eta=eta)
        net = nets.TwoLayerLinear(in_size=2, width_size=4, scaling=scaling, key=jr.key(0))
        run = solve(Problem(net, jnp.eye(2), jnp.ones((2, 1))), GradientFlow(), 1.0)
        assert _certificate(run).conserved_drift == 0
        assert _certificate(run).trust > 3


@pytest.mark.x64_only
@pytest.mark.parametrize("quantity", ["conserved_drift", "energy_balance"])
def test_certificate_grows_with_rtol(quantity):
    rtols = (1e-5, 1e-8)
    sizes = [float(getattr(_certificate(_flow_on_line(diffrax.Tsit5, rtol)), quantity)) for rtol in rtols]
    assert 0.8 < np.polyfit(np.log(rtols), np.log(sizes), 1)[0] < 1.2


@pytest.mark.x64_only
def test_certificate_of_a_relu_network():
    problem = cases.problem(cases.mlp(jr.key(5), "relu", depth=1), jr.key(6))
    trajectory = solve(problem, GradientFlow(rtol=1e-8, atol=1e-10), jnp.array([0.0, 1.0]))
    assert trajectory["loss"][1] < 0.7 * trajectory["loss"][0]
    certificate = _certificate(trajectory)
    assert 0 < certificate.conserved_drift < 3e-10
    assert 0 < certificate.energy_balance < 5e-6  # the integrator does not control it, and there are kinks
    _drift_without_the_rate_of_a_layer(problem, trajectory.final.params)


def _drift_without_the_rate_of_a_layer(problem, params):
    for layer in range(len(problem.net.weights)):
        off = eqx.tree_at(lambda p: p.net.scaling.eta, problem, problem.net.scaling.eta.at[layer].set(1.0))
        assert conserved_drift(off, params) > 1e-5


@pytest.mark.x64_only
def test_certificate_would_notice_the_rate_of_a_layer_left_out():
    _drift_without_the_rate_of_a_layer(_line(), _flow_on_line(diffrax.Tsit5, 1e-8).final.params)


@pytest.mark.x64_only
def test_certificate_of_a_network_that_conserves_nothing(biased):
    assert np.isnan(_certificate(biased[1]).conserved_drift)
    assert np.isfinite(_certificate(biased[1]).trust)


def test_two_layers_of_zeros_hide_no_drift_of_the_others():
    scaling = nets.Scaling([1.0] * 4, [0.0, 0.0, 1.0, 1.0], [1.0] * 4)
    problem = Problem(
        nets.DeepLinear(in_size=2, out_size=1, width_size=4, depth=3, scaling=scaling, key=jr.key(0)),
        jnp.eye(2),
        jnp.ones((2, 1)),
    )
    assert conserved_drift(problem, problem.params) == 0
    moved = eqx.tree_at(lambda p: p.weights[2], problem.params, replace_fn=lambda w: 1.1 * w)
    # The largest is that of the second and third, W_2 W_2^T - W_3^T W_3, where W_2 = 0.
    np.testing.assert_allclose(conserved_drift(problem, moved), 1 - 1 / 1.1**2, rtol=cases.eps(10))


# What is refused, and what is warned of


def test_too_fine_a_tolerance_is_warned_of():
    net = nets.TwoLayerLinear(in_size=2, width_size=2, scaling=nets.Scaling.ntk(), key=jr.key(0), dtype=jnp.float32)
    problem = Problem(net, jnp.ones((1, 2), jnp.float32), jnp.ones((1, 1), jnp.float32))
    with pytest.warns(UserWarning, match=r"rtol=1e-08 is finer than float32 resolves.*looser.*float64.*jax_enable_x64"):
        eqx.filter_eval_shape(GradientFlow(rtol=1e-8).init, problem, jnp.array([1.0], jnp.float32))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"integrator": "Tsit5"}, TypeError, r"diffrax solver such as diffrax\.Tsit5\(\), got str 'Tsit5'"),
        ({"integrator": diffrax.Tsit5}, TypeError, "integrator must be a diffrax solver"),
        (
            {"integrator": diffrax.Euler()},
            ValueError,
            r"Euler gives no error estimate.*HalfSolver\(diffrax\.Euler\(\)\)",
        ),
        (
            {"integrator": diffrax.SemiImplicitEuler()},
            ValueError,
            "not a solver for one ordinary differential equation",
        ),
        (
            {"integrator": InertialFunctionSpace(cases.modes([1.0], [1.0]), 0.1)},
            ValueError,
            r"InertialFunctionSpace is for momentum: MomentumFlow\(tau=\.\.\.\) chooses it",
        ),
        ({"integrator": diffrax.KenCarp4()}, ValueError, "not a solver for one ordinary differential equation"),
        ({"rtol": 0.0}, ValueError, "rtol must be > 0 or None, got 0.0"),
        ({"rtol": -1e-6}, ValueError, "rtol must be > 0"),
        ({"rtol": float("nan")}, ValueError, "rtol must be > 0"),
        ({"atol": 0.0}, ValueError, "atol must be > 0"),
        ({"until": 1e-3}, TypeError, r"until must be a condition such as until\.loss_below\(1e-5\).*got float 0\.001"),
        ({"rtol": float("inf")}, ValueError, "rtol must be > 0 or None, got inf"),
        ({"rtol": "1e-3"}, TypeError, "rtol must be one number > 0 or None, got str '1e-3'"),
        ({"atol": 1j}, TypeError, "atol must be one number > 0 or None, got complex 1j"),
        ({"land_on_ts": "no"}, TypeError, "land_on_ts must be True or False, got str 'no'"),
        ({"max_steps": 0}, ValueError, "max_steps must be an integer >= 1, got 0"),
        ({"max_steps": 10.0}, TypeError, "max_steps must be an integer"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        GradientFlow(**arguments)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("activation", ["tanh", "relu", "linear", "softplus"])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 10.0])
def test_no_run_is_trusted_to_more_digits_than_it_has(activation, gamma):
    """Of the outputs: drift and energy alone would promise up to two digits more."""
    net = nets.MLP(
        in_size=3,
        out_size=2,
        width_size=16,
        depth=1,
        activation=activation,
        scaling=nets.Scaling.ntk(gamma=gamma),
        key=jr.key(1),
    )
    problem = Problem(net, cases.inputs(jr.key(2), 12), cases.inputs(jr.key(3), 12, 2), centered=True)
    # Later this ReLU network slides along a kink, where the steps of any reference become too many.
    ts = jnp.array([0.02, 0.06] if activation == "relu" else [0.3, 10.0]) / gamma**2
    kinks = 1.5 if activation == "relu" else 0.0  # digits that may be missing, since no step sees them
    reference = GradientFlow(diffrax.Dopri8(), max_steps=10**6, rtol=1e-11, atol=1e-13)
    exact = solve(problem, reference, ts, observe=observe.outputs())["outputs"]
    for integrator in (None, diffrax.Tsit5()):
        for rtol in (1e-2, 1e-4, 1e-6):
            run = solve(problem, GradientFlow(integrator, rtol=rtol), ts, observe=observe.outputs())
            error = jnp.linalg.norm(run["outputs"][-1] - exact[-1]) / jnp.linalg.norm(exact[-1])
            assert _certificate(run).trust <= kinks - jnp.log10(error), (integrator, rtol, error, _certificate(run))
