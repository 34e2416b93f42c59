# long: a dozen kinds of problem share references that take longest; split, they would run twice

import dataclasses
import functools
import logging
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from jaxsolve import (
    GradientFlow,
    kernels,
    losses,
    MomentumFlow,
    nets,
    observe,
    Problem,
    result_names,
    RESULTS,
    solve,
    until,
)
from jaxsolve.integrators import (
    DisplacementController,
    FunctionSpace,
    HOCHBRUCK_OSTERMANN_3,
    KROGSTAD,
    LOG_TIME_3,
    ParameterSpace,
)
from tests import cases
from tests.inside import result_code


def _flat(problem, tree):
    """One number per parameter, in one vector."""
    return ravel_pytree(jax.tree.map(lambda a, p: jnp.broadcast_to(a, p.shape), tree, problem.params))[0]


def _velocity(problem):
    """-eta dL/dw of all parameters in one vector."""
    start, unravel = ravel_pytree(problem.params)
    rates = _flat(problem, problem.eta)
    return start, lambda w: -rates * jax.grad(lambda w: problem.objective(unravel(w)))(w)


def _paths(problem, ts, *, method="DOP853", rtol=1e-12, atol=1e-13):
    """Displacements at times from 0 on, by SciPy."""
    start, velocity = _velocity(problem)
    options: dict[str, Any] = {"t_eval": np.asarray(ts), "rtol": rtol, "atol": atol}
    if method == "Radau":
        options["jac"] = _by_numpy(jax.jit(jax.jacfwd(velocity)))
    return solve_ivp(_by_numpy(jax.jit(velocity)), (0, ts[-1]), start, method, **options).y.T - np.asarray(start)


def _by_numpy(function):
    return lambda t, w: np.asarray(function(w))


def _error(found, exact):
    """Of vectors, relative."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


# --- order

TABLEAUX = {"Hochbruck-Ostermann": HOCHBRUCK_OSTERMANN_3, "Krogstad": KROGSTAD}
EACH = ["Hochbruck-Ostermann", pytest.param("Krogstad", marks=pytest.mark.slow)]


def _rebuilt(tableau, numbers):
    """The same method with other numbers, which may be traced."""
    left = iter(numbers)
    weights = lambda rows: tuple(tuple((k, next(left)) for k, _ in row) for row in rows)
    return dataclasses.replace(
        tableau,
        nodes=tuple(next(left) for _ in tableau.nodes),
        stages=tuple(weights(row) for row in tableau.stages),
        step=weights(tableau.step),
        error=weights(tableau.error),
    )


def _numbers(tableau):
    """All numbers of a method in the order of `_rebuilt`, and what each of them is."""
    weights = lambda rows: [b for weight in rows for _, b in weight]
    groups = {
        "node": list(tableau.nodes),
        "stage": weights([weight for row in tableau.stages for weight in row]),
        "step": weights(tableau.step),
        "error": weights(tableau.error),
    }
    kinds = np.repeat(list(groups), [len(group) for group in groups.values()])
    return np.concatenate([*groups.values()]), kinds


@eqx.filter_jit
def _steps(problem, tableau, numbers, h, steps, part):
    """Steps of one size: the state after them, the last error estimate, and the state at a part of the last step."""

    def march(numbers):
        solver = FunctionSpace(problem, _rebuilt(tableau, numbers))
        step = lambda y, state: solver.step(solver.terms, jnp.zeros(()), h, y, None, state, False)
        first = step(solver.start, solver.init(solver.terms, 0.0, h, solver.start, None))
        y, error, dense, _, _ = jax.lax.fori_loop(0, steps - 1, lambda _, last: step(last[0], last[3]), first)
        return y, error, solver.interpolation_cls(t0=jnp.zeros(()), t1=h, **dense).evaluate(part * h)

    return jax.vmap(march)(numbers)


def _march(problem, name, h, steps=1, part=1.0):
    """With the method, and with the methods that leave out the first, second, ... number."""
    tableau = TABLEAUX[name]
    numbers, _ = _numbers(tableau)
    lanes = numbers * (1 - np.eye(numbers.size + 1, numbers.size, -1))
    h, part = jnp.asarray(h, float), jnp.asarray(part, float)
    return jax.tree.map(np.asarray, _steps(problem, tableau, jnp.asarray(lanes), h, jnp.asarray(steps), part))


def _slopes(sizes, errors):
    """One per lane, of errors by size and lane."""
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def _errors(ends, exact):
    return np.linalg.norm(ends - exact, axis=1) / np.linalg.norm(exact)


def _short(key, activation="tanh", *, fast, slow):
    net = nets.MLP(
        in_size=3,
        out_size=1,
        width_size=3,
        depth=1,
        activation=activation,
        bias=True,
        scaling=cases.scaling(2, eta=[slow, fast], bias_eta=slow),
        key=key,
    )
    return Problem(net, cases.inputs(jr.key(0), 10), cases.inputs(jr.key(1), 10, 1))


def _lanes(name, *kinds):
    """Which lanes of `_march` leave out a number of these kinds."""
    return 1 + np.flatnonzero(np.isin(_numbers(TABLEAUX[name])[1], kinds))


END = 2.0


@functools.cache
def _smooth():
    return _short(jr.key(5), fast=0.4, slow=1.7)


@functools.cache
def _stiff():
    """The last layer learns so fast that it only follows the first; its own start is over."""
    problem = _short(jr.key(5), fast=1e3, slow=0.05)
    start, unravel = ravel_pytree(problem.params)
    later = start + _paths(problem, (0.0, 0.5), method="Radau", rtol=1e-8, atol=1e-10)[-1]
    return eqx.tree_at(lambda p: p.net, problem, problem.network(unravel(later)))


@functools.cache
def _convergence(problem, method, name, counts):
    exact = _paths(problem(), (0.0, END), method=method, rtol=1e-11)[-1]
    return -_slopes(counts, [_errors(_march(problem(), name, END / n, n)[0].displacement, exact) for n in counts])


@pytest.mark.x64_only
@pytest.mark.parametrize("name", EACH)
def test_order(name):
    """And every number of a method is needed for it."""
    order = FunctionSpace(tableau=TABLEAUX[name]).order(None)
    slopes = _convergence(_smooth, "DOP853", name, (32, 64, 128))
    assert order - 0.2 < slopes[0] < order + 0.2, slopes
    assert np.all(slopes[_lanes(name, "node", "stage", "step")] < order - 0.5), slopes


@pytest.mark.x64_only
def test_order_of_nodes_in_logarithmic_time():
    """Steps from t = 0 on: order 3 up to a logarithm; with the node of the first of them throughout, order 2."""
    problem, counts = _smooth(), np.array([32, 64, 128, 256])
    exact = _paths(problem, (0.0, END), rtol=1e-11)[-1]

    @eqx.filter_jit
    def march(tableau, h, steps):
        solver = FunctionSpace(problem, tableau)

        def step(k, last):
            y, state = last
            return solver.step(solver.terms, k * h, (k + 1) * h, y, None, state, False)[::3][:2]

        start = solver.start, solver.init(solver.terms, 0.0, h, solver.start, None)
        return jax.lax.fori_loop(0, steps, step, start)[0].displacement

    def slope(tableau):
        ends = [march(tableau, jnp.asarray(END / n), jnp.asarray(n)) for n in counts]
        errors = np.array([_error(end, exact) for end in ends]) / np.log(counts)
        return -np.polyfit(np.log(counts), np.log(errors), 1)[0]

    assert 2.85 < slope(LOG_TIME_3) < 3.1
    assert slope(LOG_TIME_3.at(0.0)) < 2.5


@pytest.mark.parametrize("passed", [0.0, 0.3, 1.0])
def test_nodes_in_logarithmic_time(passed):
    """The last is 2/3 where steps are short, as in the method they come from; the estimate is of one scale."""
    found, limit = LOG_TIME_3.at(jnp.asarray(passed)), HOCHBRUCK_OSTERMANN_3
    last = 7 / 12 + passed / 12
    np.testing.assert_allclose(np.asarray(found.nodes, float), (0.5, last), rtol=1e-6)
    if passed == 1:
        numbers, known = (np.asarray(_numbers(tableau)[0], float) for tableau in (found, limit))
        np.testing.assert_allclose(numbers, known, rtol=1e-6)
    # Where nothing is stiff, phi_2 = 1/2. The estimate for N(s) = s + s^2 is that of its curvature.
    estimate = sum(b * (c + c**2) / 2 for c, weight in zip(found.nodes, found.error, strict=True) for _, b in weight)
    np.testing.assert_allclose(estimate, 1 / 12, rtol=1e-5)


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("name", "order"), [("Hochbruck-Ostermann", 2.9), pytest.param("Krogstad", 3.9, marks=pytest.mark.slow)]
)
def test_order_of_long_steps(name, order):
    """A step times the fastest rate is 117 to 15, where explicit methods of few stages blow up."""
    slopes = _convergence(_stiff, "Radau", name, (16, 32, 64, 128))
    assert order - 0.1 < slopes[0] < order + 0.1, slopes
    assert np.all(slopes[_lanes(name, "step")] < order - 0.5), slopes


SIZES, PART = 0.4 * 0.5 ** np.arange(4), 0.6


@functools.cache
def _exact_steps(part):
    """At a part of steps of all sizes."""
    return _paths(_smooth(), [0.0, *sorted(part * SIZES)])[:0:-1]


@functools.cache
def _single_steps(name):
    return [_march(_smooth(), name, h, part=PART) for h in SIZES]


@pytest.mark.x64_only
@pytest.mark.parametrize("name", EACH)
def test_between_steps(name):
    """The error within a step falls like these powers of its length; over many steps, one power less."""
    order = {"Hochbruck-Ostermann": 3, "Krogstad": 4}[name]

    def check(found):
        errors = [np.linalg.norm(a - b) for a, b in zip(found, _exact_steps(PART), strict=True)]
        assert order - 0.25 < np.polyfit(np.log(SIZES), np.log(errors), 1)[0] < order + 0.2

    check([between.displacement[0] for _, _, between in _single_steps(name)])
    straight = [PART * y.displacement[0] for y, _, _ in _single_steps(name)]  # without the curvature of the path
    cases.assert_fails(lambda: check(straight))
    problem, (_, _, between) = _smooth(), _single_steps(name)[0]
    w = _velocity(problem)[0] + between.displacement[0]
    outputs = problem.outputs(ravel_pytree(problem.params)[1](w))
    np.testing.assert_allclose(between.outputs[0], outputs, rtol=0, atol=cases.eps(10))


@pytest.mark.x64_only
@pytest.mark.parametrize("name", EACH)
def test_error_estimate(name):
    """Of the order it says, of parameters and of outputs, and above the error of the step."""
    order = FunctionSpace(tableau=TABLEAUX[name]).error_order(None)
    sizes = 0.02 * 0.5 ** np.arange(4)
    estimates = [_march(_smooth(), name, h)[1] for h in sizes]
    twins = _lanes(name, "error")  # without a number of another kind an estimate may be 0
    for norms in (
        [np.linalg.norm(e.displacement, axis=1) for e in estimates],
        [np.linalg.norm(e.outputs, axis=(1, 2)) for e in estimates],
    ):
        slopes = _slopes(sizes, [of_size[[0, *twins]] for of_size in norms])
        assert order - 0.1 < slopes[0] < order + 0.1
        assert np.all(slopes[1:] < order - 0.3)
    for (y, estimate, _), exact in zip(_single_steps(name), _exact_steps(1.0), strict=True):
        error = np.linalg.norm(y.displacement[0] - exact)
        assert error < 0.5 * np.linalg.norm(estimate.displacement[0])  # measured: at most 0.07 and 0.02


# --- models that are linear in their parameters


@pytest.mark.x64_only
@pytest.mark.parametrize(
    "name",
    ["Hochbruck-Ostermann", pytest.param("Krogstad", marks=pytest.mark.slow)],
)
def test_one_step_is_exact_for_a_fixed_kernel(name):
    """Of any length that is stiff, at its end and within, with the energy dissipated.

    Four features cannot fit five samples. Rounding is multiplied by time: measured up to 5e-7 at 1e8. What energy that
    error dissipates is its square times time: up to 8e-6.
    """
    scaling = cases.scaling(2, eta=[0.0, 0.9], bias_eta=0.0)
    net = nets.MLP(
        in_size=3, out_size=2, width_size=4, depth=1, activation="tanh", bias=True, scaling=scaling, key=jr.key(0)
    )
    problem = cases.problem(net, jr.key(1), n=5)
    start, pull = jax.vjp(problem.outputs, problem.params)
    kernel, rates = problem.kernel(problem.params, problem.x), _flat(problem, problem.eta)

    @jax.jit
    def step(h):
        solver = FunctionSpace(problem, TABLEAUX[name])
        state = solver.init(solver.terms, 0.0, h, solver.start, None)
        y, error, dense, _, _ = solver.step(solver.terms, 0.0, h, solver.start, None, state, False)
        return y, error, solver.interpolation_cls(t0=jnp.zeros(()), t1=h, **dense).evaluate(PART * h)

    @jax.jit
    def exact(scale, t):
        flow = kernels.linearized(scale * kernel, problem.y, start=start)
        outputs, pulled = flow.outputs(t), pull(flow.coefficients(t).reshape(5, 2))[0]
        spent = problem.loss.value(start, problem.y) - problem.loss.value(outputs, problem.y)
        return rates * ravel_pytree(pulled)[0], outputs, spent

    def check(scale):
        for t, state in states.items():
            for found, known, squared in zip(state, exact(scale, t), (0.0, 0.0, 1e-29), strict=True):
                atol = 2e-14 * (1 + t) * np.max(np.abs(known)) + squared * t**3
                np.testing.assert_allclose(found, known, rtol=0, atol=atol)

    states = {}
    for t in (0.5, 5.0, 50.0, 1e8):
        y, error, between = step(jnp.asarray(t))
        states |= {t: y, PART * t: between}
        assert np.linalg.norm(error.displacement) < 2e-14 * (1 + t) * np.linalg.norm(y.displacement)
    check(1.0)
    cases.assert_fails(lambda: check(1 / 0.9))  # the kernel without the learning rate of its only layer


# --- against SciPy, at a fine tolerance


TS = (0.0, 0.5, 2.0, 5.0)
# Each with its own activation, and in the slow tests with all of them.
SMOOTH = {
    "tanh": losses.MSE(),
    "softplus": losses.Logistic(),
    "gelu": losses.SoftHinge(3.0),
    "erf": losses.CrossEntropy(),
}


def _flow(problem, ts, **options):
    """By `FunctionSpace`: displacement at the end, outputs at all times, and the run."""
    run = solve(problem, GradientFlow(FunctionSpace(), **options), jnp.asarray(ts), observe=observe.outputs())
    moved = _flat(problem, run.final.params) - _flat(problem, problem.params)
    return np.asarray(moved), np.asarray(run["outputs"]), run


def _reference(problem, ts, **options):
    """By SciPy: displacement at the end, and outputs at all times."""
    path, (start, unravel) = _paths(problem, ts, **options), ravel_pytree(problem.params)
    return path[-1], np.asarray(jax.jit(jax.vmap(lambda w: problem.outputs(unravel(w))))(start[None] + path))


def _assert_agree(problem, ts, bound, **options):
    """Displacement at the end and outputs at all times."""
    found, exact = _flow(problem, ts, **options), _reference(problem, ts)
    assert _error(found[0], exact[0]) < bound
    np.testing.assert_allclose(found[1], exact[1], rtol=0, atol=bound * np.max(np.abs(exact[1])))
    certificate = found[2].certificate
    assert certificate is not None
    assert certificate.energy_balance < bound
    return found[0]


def _classes(loss, activation, *, centered):
    """3 inputs, 5 samples, three classes or two signs."""
    many = isinstance(loss, losses.CrossEntropy)
    y = jnp.arange(5) % 3 if many else jnp.sign(cases.inputs(jr.key(1), 5, 2))
    net = nets.MLP(
        in_size=3,
        out_size=3 if many else 2,
        width_size=5,
        depth=2,
        activation=activation,
        bias=True,
        scaling=cases.scaling(3),
        key=jr.key(5),
    )
    return Problem(net, cases.inputs(jr.key(0), 5), y, loss=loss, centered=centered)


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("loss", "activation"),
    [
        pytest.param(loss, activation, marks=[] if activation == own == "erf" else pytest.mark.slow)
        for own, loss in SMOOTH.items()
        for activation in SMOOTH
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_smooth_losses_and_activations(loss, activation):
    problem = _classes(loss, activation, centered=activation in ("tanh", "gelu"))
    moved = _assert_agree(problem, TS, 1e-7, rtol=1e-7)  # measured: up to 4e-8
    for layer in range(3):  # the rate of one left out
        off = eqx.tree_at(lambda p: p.net.scaling.eta, problem, problem.net.scaling.eta.at[layer].set(1.0))
        assert _error(moved, _paths(off, TS)[-1]) > 1e-4


class Normalized(eqx.Module):
    """A network that is not one of ours, with batch normalization."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jr.split(key)
        self.first, self.last = eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1])
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch", momentum=0.0)

    def __call__(self, x, state):
        z, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(z)), state


def _of_other_kind(name):
    x, y = cases.inputs(jr.key(0), 5), cases.inputs(jr.key(1), 5, 2)
    if name == "unknown layers":
        return Problem(eqx.nn.MLP(3, 2, 5, 2, jnp.tanh, key=jr.key(2)), x, y)
    if name == "batch normalization":
        net, state = eqx.nn.make_with_state(Normalized)(jr.key(2))
        return Problem(net, x, y, state=state)
    net = nets.ConvNet(
        in_shape=(1, 4, 4),
        out_size=2,
        width_size=2,
        activation="tanh",
        bias=True,
        scaling=nets.Scaling.ntk(),
        key=jr.key(2),
    )
    return Problem(net, jr.normal(jr.key(0), (3, 1, 4, 4)), y[:3])


@pytest.mark.x64_only
@pytest.mark.parametrize(
    "name",
    [
        "unknown layers",
        pytest.param("batch normalization", marks=pytest.mark.slow),
        pytest.param("convolutions", marks=pytest.mark.slow),
    ],
)
def test_other_networks(name):
    _assert_agree(_of_other_kind(name), TS, 1e-6, rtol=1e-6)  # measured: up to 1.5e-7


# --- kinks


def _kinked(activation, loss, y):
    net = nets.MLP(
        in_size=3, out_size=1, width_size=5, depth=1, activation=activation, scaling=cases.scaling(2), key=jr.key(8)
    )
    return Problem(net, cases.inputs(jr.key(0), 6), y(cases.inputs(jr.key(1), 6, 1)), loss=loss)


@pytest.mark.x64_only
@pytest.mark.slow
@pytest.mark.parametrize("rtol", [1e-2, 1e-4])
@pytest.mark.parametrize(
    ("activation", "loss", "y"),
    [("relu", losses.MSE(), lambda y: y), ("tanh", losses.QuadraticHinge(), jnp.sign)],
    ids=["relu", "quadratic hinge"],
)
def test_kinks(activation, loss, y, rtol):
    """By their outputs. Only where the flow crosses its kinks: on many it comes to slide, and no method is accurate."""
    problem = _kinked(activation, loss, y)
    tight = GradientFlow(diffrax.Tsit5(), rtol=1e-7, atol=1e-9)
    exact = np.asarray(solve(problem, tight, jnp.asarray(TS), observe=observe.outputs())["outputs"])
    _, found, _ = _flow(problem, TS, rtol=rtol)
    np.testing.assert_allclose(found, exact, rtol=0, atol=rtol * np.max(np.abs(exact)))  # measured: 5e-3, 3e-5


@pytest.mark.x64_only
@pytest.mark.slow
def test_plain_hinge_is_left_to_the_explicit_method(caplog):
    """Its Hessian is 0. A first margin is reached at 0.483."""
    problem = _kinked("tanh", losses.Hinge(), jnp.sign)
    caplog.set_level(logging.INFO, "jaxsolve")
    _assert_agree(problem, (0.0, 0.2, 0.45), 1.5e-7, rtol=1e-6)  # measured: 1.7e-8
    assert "plain hinge has no Hessian: FunctionSpace integrates it as an explicit method" in caplog.messages


# --- between requested times, and long after


@pytest.mark.x64_only
@pytest.mark.slow
def test_times_between_steps():
    """As accurate as the steps, which are fewer than the times."""
    problem = _classes(losses.MSE(), "tanh", centered=True)
    ts = (0.0, *np.geomspace(1e-2, 300, 60))
    found, exact = _flow(problem, ts, rtol=1e-4), _reference(problem, ts, rtol=1e-8, atol=1e-9)
    errors = np.linalg.norm(found[1] - exact[1], axis=(1, 2)) / np.max(np.linalg.norm(exact[1], axis=(1, 2)))
    assert errors.max() < 1e-4  # measured: 2e-5
    assert found[2].stats.steps < len(ts) - 1


@pytest.mark.slow
@pytest.mark.x64_only
def test_long_times_cost_little():
    """Steps grow tenfold each: another four powers of ten cost four steps."""
    net = nets.MLP(
        in_size=3,
        out_size=1,
        width_size=8,
        depth=1,
        activation="tanh",
        bias=True,
        scaling=nets.Scaling.ntk(),
        key=jr.key(0),
    )
    problem = cases.problem(net, jr.key(1), n=4)
    early, late = (solve(problem, GradientFlow(FunctionSpace()), jnp.array([0.0, end])) for end in (1e4, 1e8))
    assert early.stats.steps < 40
    assert late.stats.steps <= early.stats.steps + 6
    assert late["loss"][1] < cases.eps(1) * late["loss"][0]


# --- until


RTOL = 1e-6 if cases.X64 else 1e-4


@pytest.fixture(scope="module")
def ended():
    """Flows until a loss, at one tolerance; compiled once."""
    problem = _smooth()

    @functools.cache
    def run(threshold, *ts):
        flow = GradientFlow(FunctionSpace(), rtol=RTOL, until=until.loss_below(threshold))
        return solve(problem, flow, jnp.asarray(ts))

    return problem, run


@pytest.mark.x64_only
def test_until_is_located(ended):
    problem, run = ended
    found = run(0.3, 0.0, 0.1, np.inf)
    start, unravel = ravel_pytree(problem.params)
    loss = jax.jit(lambda w: problem.objective(unravel(w)))
    event = lambda t, w: float(loss(w)) - 0.3
    velocity = _by_numpy(jax.jit(_velocity(problem)[1]))
    path = solve_ivp(velocity, (0, 3), start, "DOP853", events=event, rtol=1e-9, atol=1e-10)
    assert path.t_events is not None
    (t,) = path.t_events[0]
    assert found.result == RESULTS.event
    np.testing.assert_allclose(found.t_end, t, rtol=1e-6)
    np.testing.assert_allclose(found["loss"][2], 0.3, rtol=1e-10)


def test_until_never_reached(ended):
    """The state reached is that of the last time; diffrax alone comes to the same."""
    problem, run = ended
    found = run(1e-30, 0.0, 1.0, END)
    assert found.result == RESULTS.max_time
    assert found.t_end == END
    moved = _flat(problem, found.final.params) - _flat(problem, problem.params)
    assert _error(moved, _adaptive(problem, RTOL).displacement) < cases.eps(20)  # measured: 2
    assert np.all(np.isfinite(found["loss"]))


# --- with diffrax alone


@eqx.filter_jit
def _solved(problem, rtol):
    solver = FunctionSpace(problem)
    controller = eqx.tree_at(lambda c: c.rtol, DisplacementController(), rtol)
    ys = diffrax.diffeqsolve(
        solver.terms, solver, 0.0, END, solver.first_step, solver.start, stepsize_controller=controller
    ).ys
    return jax.tree.map(lambda leaf: leaf[-1], ys)


def _adaptive(problem, rtol):
    """The state at the end."""
    return _solved(problem, jnp.asarray(rtol, float))


STOP = 1.37


@functools.cache
def _kept():
    """A dense solution, whose steps also end at a time of ours, and its states at some times of `TS`."""
    solver, ts = FunctionSpace(_smooth()), jnp.array([0.3, STOP, 1.9])

    @eqx.filter_jit
    def solved(solver, ts):
        controller = diffrax.ClipStepSizeController(DisplacementController(1e-3), step_ts=[STOP])
        saveat = diffrax.SaveAt(ts=ts, steps=True, dense=True)
        found = diffrax.diffeqsolve(
            solver.terms,
            solver,
            0.0,
            END,
            solver.first_step,
            solver.start,
            saveat=saveat,
            stepsize_controller=controller,
            max_steps=32,
        )
        return found, found.ys.displacement  # pyright: ignore[reportOptionalMemberAccess]

    return ts, solved(solver, ts)


@pytest.mark.slow
@pytest.mark.x64_only
def test_a_dense_solution():
    """By diffrax: what it keeps of every step gives the states that are saved on the way, and those of SciPy."""
    ts, (solution, kept) = _kept()
    at = jax.jit(jax.vmap(lambda t: solution.evaluate(t).displacement))(ts)
    saved = {float(t): w for t, w in zip(np.asarray(solution.ts), np.asarray(kept), strict=True)}
    exact = _paths(_smooth(), [0.0, *np.asarray(ts)])[1:]
    for t, w, known in zip(np.asarray(ts), at, exact, strict=True):
        np.testing.assert_allclose(w, saved[float(t)], rtol=0, atol=cases.eps(10) * np.max(np.abs(known)))
        assert _error(np.asarray(w), known) < 1e-3


@pytest.mark.x64_only
def test_two_solutions_have_one_structure():
    """So that a function of solutions is compiled once."""
    first, again = (FunctionSpace(problem).interpolation_cls for problem in (_smooth(), _stiff()))
    assert first == again
    assert hash(first) == hash(again)


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("sign", "t1"),
    [
        pytest.param(1, -1.0, id="backwards"),
        pytest.param(-1, 1.0, id="other terms", marks=pytest.mark.slow),
    ],
)
def test_another_flow_is_refused(sign, t1):
    solver = FunctionSpace(_smooth())
    terms = diffrax.ODETerm(lambda t, y, args: jax.tree.map(lambda v: sign * v, solver.terms.vf(t, y, args)))
    with pytest.raises(RuntimeError, match=r"its own problem, forward in time: give diffeqsolve terms=solver.terms"):
        diffrax.diffeqsolve(terms, solver, 0.0, t1, 0.1 * t1, solver.start, max_steps=16)


@pytest.mark.x64_only
@pytest.mark.parametrize("activation", ["tanh", pytest.param("softplus", marks=pytest.mark.slow)])
def test_error_and_energy_follow_the_tolerance(activation):
    problem = _short(jr.key(5), activation, fast=0.4, slow=1.7)
    exact, before = _paths(problem, (0.0, END))[-1], problem.objective(problem.params)
    rtols = np.array([1e-3, 1e-4, 1e-5, 1e-6, 1e-7])
    ends = [_adaptive(problem, rtol) for rtol in rtols]
    errors = np.array([_error(y.displacement, exact) for y in ends])
    after = np.array([problem.loss.value(y.outputs, problem.y) for y in ends])
    balances = np.abs(before - after - np.array([y.dissipated for y in ends])) / before
    assert np.all(errors < 0.5 * rtols)
    assert np.all(balances < 0.3 * rtols)  # measured: up to 0.065; it changes its sign on the way
    assert 0.8 < np.polyfit(np.log(rtols), np.log(errors), 1)[0] < 1.2


# --- hyperparameters


# Sigmas, etas, gamma, the eta of the biases, a shift of the targets.
POINT = np.array([0.9, 0.7, 1.7, 0.4, 0.75, 0.65, 0.1])


def _at(point):
    scaling = cases.scaling(2, sigma=point[:2], eta=point[2:4], gamma=point[4], bias_eta=point[5])
    net = nets.MLP(
        in_size=3, out_size=1, width_size=3, depth=1, activation="tanh", bias=True, scaling=scaling, key=jr.key(5)
    )
    y = cases.inputs(jr.key(1), 6, 1)
    return Problem(net, cases.inputs(jr.key(0), 6), y + point[6] * jnp.cos(y))


def _end(point, rtol=1e-5):
    """Outputs at the end of a flow, and how it went."""
    run = solve(_at(point), GradientFlow(FunctionSpace(), rtol=rtol), jnp.array([0.0, END]), observe=observe.outputs())
    return run["outputs"][1], (result_code(run.result), run.stats.steps)


@functools.cache
def _batch():
    """At several points: outputs at the end, their derivative along a direction, and how the flows went."""

    def lane(point, direction):
        return jax.jvp(_end, (point,), (direction,), has_aux=True)

    return jax.jit(jax.vmap(lane))


@functools.cache
def _lanes_of(*sigmas):
    """At two points, along all coordinates in proportion, and at three whose last sigma is another."""
    points = np.array([POINT, 1.2 * POINT, *[[POINT[0], sigma, *POINT[2:]] for sigma in sigmas]])
    return _batch()(jnp.asarray(points, float), jnp.asarray(np.where(np.isfinite(points), points, 0), float))


@functools.cache
def _sensitivity():
    """Start, velocity and outputs along with their derivatives; compiled once."""
    start = lambda p: _velocity(_at(p))[0]
    velocity = lambda p, w: _velocity(_at(p))[1](w)
    outputs = lambda p, w: _at(p).outputs(ravel_pytree(_at(p).params)[1](w))
    return [jax.jit(functools.partial(jax.jvp, function)) for function in (start, velocity, outputs)]


def _derivative(point, direction):
    """Outputs at the end and their derivative, by the equation for it, with SciPy."""
    start, velocity, outputs = _sensitivity()
    both = lambda t, z: np.concatenate(velocity(*_pairs(point, direction, z)))
    z = np.concatenate(start((jnp.asarray(point),), (jnp.asarray(direction),)))
    z = solve_ivp(both, (0, END), z, "DOP853", rtol=1e-10, atol=1e-11).y[:, -1]
    return outputs(*_pairs(point, direction, z))


def _pairs(point, direction, z):
    w, s = jnp.split(jnp.asarray(z), 2)
    return (jnp.asarray(point), w), (jnp.asarray(direction), s)


@pytest.mark.x64_only
@pytest.mark.parametrize("lane", [0, 1])
def test_forward_derivatives_of_lanes(lane):
    """As accurate as the flow itself."""
    values, slopes, _ = _lanes_of(0.5, 0.8, 1.1)
    point = (1.0, 1.2)[lane] * POINT
    value, slope = _derivative(point, point)
    assert _error(values[lane], value) < 5e-6  # measured: 6e-7
    assert _error(slopes[lane], slope) < 5e-5  # measured: 1e-5
    for coordinate in range(POINT.size):  # one left out
        off = point * (np.arange(POINT.size) != coordinate)
        assert _error(slopes[lane], _derivative(point, off)[1]) > 5e-4


@pytest.mark.x64_only
@pytest.mark.parametrize(
    "flow",
    [
        GradientFlow(FunctionSpace(), rtol=1e-5),
        GradientFlow(ParameterSpace(), rtol=1e-5),
        MomentumFlow(tau=0.7, integrator=FunctionSpace(), rtol=1e-5),
    ],
    ids=["FunctionSpace", "ParameterSpace", "momentum"],
)
def test_energy_is_balanced_in_derivatives_too(flow):
    """What is dissipated is what the loss has lost, along the rates and along all that moves the network."""

    def balance(point):
        certificate = solve(_at(point), flow, jnp.array([END])).certificate
        assert certificate is not None
        return certificate.energy_balance

    slopes = jax.jit(jax.jacfwd(balance))(jnp.asarray(POINT))
    assert np.max(np.abs(slopes)) < 1e-4  # measured: 4e-5, and 0.2 to 0.8 where power or its units lack theirs


def test_bad_values_end_their_lane_only():
    huge = float(jnp.finfo(jnp.result_type(float)).max) ** 0.6
    values, slopes, (codes, steps) = _lanes_of(np.nan, -1.0, huge)
    assert list(result_names(codes)) == ["successful", "successful", "invalid", "invalid", "diverged"]
    others = _lanes_of(0.5, 0.8, 1.1)
    np.testing.assert_array_equal(values[:2], others[0][:2])
    np.testing.assert_array_equal(slopes[:2], others[1][:2])
    np.testing.assert_array_equal(steps[2:], 0)
    assert np.all(np.isnan(values[2:]))


@pytest.mark.slow
def test_each_lane_is_what_it_is_alone():
    together = _lanes_of(0.5, 0.8, 1.1)[0]
    alone = jax.jit(lambda point: _end(point)[0])
    for index, point in enumerate((POINT, 1.2 * POINT)):
        np.testing.assert_allclose(together[index], alone(jnp.asarray(point, float)), rtol=0, atol=cases.eps(10))


@pytest.mark.x64_only
@pytest.mark.slow
def test_both_modes_of_differentiation_agree():
    """Through a solve by diffrax, with its own adjoint; and steps of one size are those of `_march`."""

    def total(point, adjoint, dt):
        solver = FunctionSpace(_at(point), KROGSTAD)
        start = solver.start
        ys = diffrax.diffeqsolve(solver.terms, solver, 0.0, END, dt, start, max_steps=32, adjoint=adjoint).ys
        return _score(jax.tree.map(lambda leaf: leaf[-1], ys))

    point, dt = jnp.asarray(POINT), jnp.asarray(END / 8)
    value, backward = jax.jit(jax.value_and_grad(lambda p: total(p, diffrax.RecursiveCheckpointAdjoint(), dt)))(point)
    forward = jax.jit(jax.jacfwd(lambda p: total(p, diffrax.ForwardMode(), dt)))(point)
    np.testing.assert_allclose(backward, forward, rtol=0, atol=5e-15 * np.max(np.abs(forward)))  # measured: 6e-16
    alone = jax.tree.map(lambda leaf: leaf[0], _march(_at(point), "Krogstad", END / 8, 8)[0])
    np.testing.assert_allclose(value, _score(alone), rtol=cases.eps(10))


def _score(y):
    return jnp.sum(jnp.sin(y.displacement)) + jnp.sum(y.outputs**2)


@pytest.mark.x64_only
def test_in_float32():
    """Against the same network in float64."""
    problem = _smooth()
    single = jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, problem)
    found, exact = _solved(single, jnp.asarray(1e-4, jnp.float32)), _adaptive(problem, 1e-4)
    for value, known in zip(found, exact, strict=True):
        assert value.dtype == jnp.float32
        assert _error(np.asarray(value, float), np.asarray(known)) < 1e-6  # measured: 1e-7


# --- what is refused


def test_diffrax_needs_a_problem():
    with pytest.raises(
        ValueError, match=r"FunctionSpace needs a problem to be used with diffrax: FunctionSpace\(problem\)"
    ):
        _ = FunctionSpace().start


def _diffeqsolve(problem, **options):
    """Traced only."""
    solver = FunctionSpace(problem)
    arguments = {"dt0": 0.1, "y0": solver.start, "stepsize_controller": DisplacementController()} | options
    return eqx.filter_eval_shape(lambda: diffrax.diffeqsolve(solver.terms, solver, 0.0, 1.0, **arguments))


@pytest.mark.usefixtures("as_users")
def test_another_state():
    problem = cases.problem(cases.mlp(jr.key(0)), jr.key(1))
    start, _ = ravel_pytree(problem.params)
    with pytest.raises(
        TypeError, match=r"moves its own state: give diffeqsolve y0=solver\.start, got an array of shape \(62,\)"
    ):
        _diffeqsolve(problem, y0=start)


@pytest.mark.x64_only
def test_the_first_step_is_long_where_features_hardly_move():
    """In units of the time in which the loss would vanish; by the second derivative of the outputs along the flow."""
    x, y = cases.inputs(jr.key(0), 10), cases.inputs(jr.key(1), 10, 1)

    @jax.jit
    def both(gamma):
        net = nets.MLP(
            in_size=3,
            out_size=1,
            width_size=4,
            depth=1,
            activation="tanh",
            scaling=nets.Scaling.lazy(gamma),
            key=jr.key(2),
        )
        problem = Problem(net, x, y, centered=True)
        solver = FunctionSpace(problem)
        start, unravel = ravel_pytree(problem.params)
        velocity, speed = solver.terms.vf(0, solver.start, None)[::2]
        time = problem.objective(problem.params) / speed
        along = lambda t: problem.outputs(unravel(start + t * velocity))
        slope = lambda t: jax.jvp(along, (t,), (jnp.ones(()),))[1]
        straight, bent = jax.jvp(slope, (jnp.zeros(()),), (jnp.ones(()),))
        return solver.first_step / time, 0.025 * jnp.linalg.norm(straight) / (time * jnp.linalg.norm(bent))

    found, known = np.transpose([both(gamma) for gamma in (1e3, *np.geomspace(1.0, 40.0, 9), 1e-3)])
    inside = (known > 0.25) & (known < 1.8)
    assert np.count_nonzero(inside) >= 2
    np.testing.assert_allclose(found[inside], known[inside], rtol=0.1)
    np.testing.assert_allclose(found[[0, -1]], [2.0, 0.2], rtol=1e-12)


def test_the_controller_needs_a_first_step():
    problem = cases.problem(cases.mlp(jr.key(0)), jr.key(1))
    with pytest.raises(ValueError, match=r"needs a first step: diffeqsolve\(\.\.\., dt0=solver\.first_step\)"):
        _diffeqsolve(problem, dt0=None)


def test_a_loss_without_hessian():
    @jax.custom_vjp
    def once(f, y):
        return jnp.sum((f - y) ** 2)

    once.defvjp(lambda f, y: (once(f, y), f - y), lambda gap, g: (2 * g * gap, -2 * g * gap))
    problem = cases.problem(cases.mlp(jr.key(0)), jr.key(1), loss=once)
    with pytest.raises(ValueError, match=r"needs the loss's Hessian.*cannot be differentiated twice.*Tsit5"):
        eqx.filter_eval_shape(GradientFlow(FunctionSpace()).init, problem, jnp.array([1.0]))


def test_an_endless_flow_needs_a_condition():
    problem = cases.problem(cases.mlp(jr.key(0)), jr.key(1))
    with pytest.raises(ValueError, match=r"ts ends in inf.*only with a condition to stop at"):
        solve(problem, GradientFlow(FunctionSpace()), jnp.array([0.0, jnp.inf]))


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.float64, marks=pytest.mark.x64_only)])
def test_a_tolerance_finer_than_the_dtype_serves(dtype):
    net = nets.TwoLayerLinear(in_size=2, width_size=2, scaling=nets.Scaling.ntk(), key=jr.key(0), dtype=dtype)
    problem = Problem(net, jnp.ones((1, 2), dtype), jnp.ones((1, 1), dtype))
    flow = GradientFlow(FunctionSpace(), rtol=float(jnp.finfo(dtype).eps))
    with pytest.warns(UserWarning, match=rf"is finer than {jnp.dtype(dtype).name} resolves.*looser"):
        eqx.filter_eval_shape(flow.init, problem, jnp.array([1.0], dtype))
