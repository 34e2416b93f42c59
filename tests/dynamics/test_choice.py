"""Which integrator `GradientFlow()` takes: by stiffness and time where they are known, by size elsewhere."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.flatten_util import ravel_pytree

from benchmarks.flow import STABLE
from jaxsolve import FrozenKernel, GradientFlow, losses, MomentumFlow, nets, Problem, solve, sweep, until
from jaxsolve.integrators import FunctionSpace
from jaxsolve.nets import Scaling
from tests import cases
from tests.inside import kernel_memory, memory, rate_for_choice, sizes_for_choice, stable_for_choice


def _net(width=16, activation="tanh", depth=2, outputs=1, **scaling):
    return nets.MLP(
        in_size=4,
        out_size=outputs,
        width_size=width,
        depth=depth,
        activation=activation,
        scaling=Scaling.ntk(**scaling),
        key=jr.key(0),
    )


def _problem(n=40, net=None, **options):
    net = _net() if net is None else net
    x = jr.normal(jr.key(1), (n, 4))
    y = jnp.sign(jnp.sin(3 * x[:, : net.out_size]))
    return Problem(net, x, y, **options)


def _name(flow):
    return type(flow.integrator).__name__


def _chosen(problem, T, **options):
    return _name(GradientFlow(**options).choose(problem, jnp.array([0.0, T])))


def _curvature(problem, w, rates):
    """The largest eigenvalue of the Hessian by size, rates included, of the whole matrix."""
    start, unravel = ravel_pytree(w)
    hessian = jax.hessian(lambda vector: problem.objective(unravel(vector)))(start)
    return np.max(np.abs(np.linalg.eigvals(rates[:, None] * hessian)))


@pytest.mark.parametrize("eta", [1.0, (0.1, 2.0, 5.0)])
def test_stiffness_is_the_curvature_times_the_rates(eta):
    problem = _problem(net=_net(eta=eta if eta == 1.0 else list(eta)))
    flat = lambda tree: ravel_pytree(jax.tree.map(lambda a, p: jnp.broadcast_to(a, p.shape), tree, problem.params))[0]
    found = float(rate_for_choice(problem))
    exact = _curvature(problem, problem.params, flat(problem.eta))
    assert 0.8 * exact < found < 1.01 * exact
    if eta != 1.0:
        assert not 0.8 < found / _curvature(problem, problem.params, flat(problem.eta).at[:].set(1.0)) < 1.01


def test_stiffness_is_seen_that_balanced_labels_do_not_excite():
    """Inputs 3, and half the label times one of five unit vectors: of K/n = 9 along all ones the field has nothing."""
    y = jnp.repeat(jnp.array([1.0, -1.0, 1.0, -1.0]), 5)[:, None]
    x = jnp.concatenate([jnp.full((20, 1), 3.0), y * jnp.tile(0.5 * jnp.eye(5), (4, 1))], axis=1)
    net = jax.tree_util.Partial(lambda w, x: w @ x, jnp.zeros((1, 6)))
    np.testing.assert_allclose(rate_for_choice(Problem(net, x, y)), 9.0, rtol=1e-3)


def test_stiffness_of_a_small_start_is_that_of_outputs_as_large_as_targets():
    """Of a linear network of three layers, with weights times 1e-3, it would be 1e-12 of what it becomes."""
    small, large = (_problem(net=_net(activation="linear", sigma=sigma)) for sigma in (1e-3, 1.0))
    found = [float(rate_for_choice(problem)) for problem in (small, large)]
    assert 0.01 < found[0] / found[1] < 1


def test_operations_count_every_use_of_a_weight():
    """A filter of 9 weights meets 64 places, and a gradient takes two or three products for each of one forward."""
    net = nets.ConvNet(
        in_shape=(1, 8, 8), out_size=1, width_size=1, activation="tanh", scaling=Scaling.ntk(), key=jr.key(0)
    )
    problem = Problem(net, jr.normal(jr.key(1), (5, 1, 8, 8)), jnp.ones((5, 1)))
    assert sizes_for_choice(problem).gradient - 3e5 > 2 * 2 * 5 * 64 * 9


def test_a_step_of_tsit5_is_stable_so_far():
    """|R(-x)| <= 1 with R(z) = 1 + z b (1 - z A)^-1 1: 3.507, where Dormand & Prince have 3.306."""

    def excess(x, tableau):
        a = np.zeros((7, 7))
        for row, lower in enumerate(tableau.a_lower):
            a[row + 1, : row + 1] = lower
        return abs(1 - x * tableau.b_sol @ np.linalg.solve(np.eye(7) + x * a, np.ones(7))) - 1

    limit = lambda solver: next(x for x in np.linspace(3.0, 4.0, 1001) if excess(x, solver.tableau) > 0)
    for assumed in (stable_for_choice, STABLE):
        np.testing.assert_allclose(assumed, limit(diffrax.Tsit5), rtol=3e-3)
        assert abs(assumed / limit(diffrax.Dopri5) - 1) > 0.05


def test_short_runs_are_explicit_and_long_ones_are_not():
    problem = _problem(n=100, net=_net(width=64))
    assert _chosen(problem, 3.0) == "Tsit5"
    assert _chosen(problem, 1e6) == "FunctionSpace"
    students = _problem(n=100, net=_net(width=2, depth=1))
    assert _chosen(students, 3.0) == "Tsit5"
    assert _chosen(students, 1e6) == "ParameterSpace"
    assert (
        _chosen(_problem(n=3000, net=_net(width=64)), 1e6) == "RungeKuttaChebyshev"
    )  # of eigenvectors that large, each costs seconds


def test_few_samples_may_be_stiff_too():
    problem = _problem(n=8)
    assert _chosen(problem, 3.0) == "Tsit5"
    assert _chosen(problem, 1e7) == "FunctionSpace"


def test_kinks_and_fine_tolerances_count():
    smooth, bent = (_problem(n=200, net=_net(width=64, activation=name)) for name in ("tanh", "relu"))
    assert _chosen(smooth, 30.0) == "Tsit5"
    assert _chosen(bent, 30.0) != "Tsit5"
    assert _chosen(smooth, 1e4) != "Tsit5"
    assert _chosen(smooth, 1e3, rtol=1e-12) == "Tsit5"


@settings(max_examples=10, deadline=None)
@given(st.floats(-6, 6), st.floats(-2, 5))
def test_the_unit_of_time_does_not_matter(rate, time):
    """Rates times 10^a and times divided by it are the same flow."""
    one, other = (_problem(net=_net(width=32, eta=eta)) for eta in (1.0, 10**rate))
    assert _chosen(other, 10 ** (time - rate)) == _chosen(one, 10**time)
    assert _chosen(one, 1e-2) != _chosen(one, 1e5)  # within the range that is drawn


def test_where_time_has_no_end_sizes_decide():
    problem = _problem()
    names = [_chosen(problem, jnp.inf, until=until.loss_below(0.1)), _name(GradientFlow().choose(problem))]

    @jax.jit
    def run(problem, T):
        flow = GradientFlow(until=until.loss_fraction(1.0))  # met at the start
        return solve(problem, flow, T), solve(problem, flow, jnp.inf)

    names += [run.stats.integrator for run in run(problem, jnp.inf)]
    assert names == ["FunctionSpace"] * 4
    assert _name(GradientFlow().choose(_problem(n=16))) == "Tsit5"
    # The cost of a step is known from sizes: of 2000 outputs of a small network, eigenvectors are too dear.
    large = _problem(n=1000, net=_net(width=64, outputs=2))
    assert _name(GradientFlow().choose(large)) == "RungeKuttaChebyshev"


STUDENTS, NEURONS = _net(width=2, depth=1), _net(width=8, depth=1)
ROUTES = {
    "flow": (GradientFlow(), NEURONS, "Tsit5", "FunctionSpace"),
    "students": (GradientFlow(rtol=1e-5), STUDENTS, "Tsit5", "ParameterSpace"),
    "inertia": (MomentumFlow(tau=1e-2), NEURONS, "Tsit5", "InertialFunctionSpace"),
    "kernel": (FrozenKernel(flow=GradientFlow()), NEURONS, "Tsit5", "FunctionSpace"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("dynamics", "net", "soft", "stiff"), ROUTES.values(), ids=ROUTES)
def test_every_route_takes_the_same_integrator_to_the_same_numbers(dynamics, net, soft, stiff):
    """Alone and compared, in `jit` and `vmap` over problems and times, and as lanes of a sweep, mixed or not."""

    def make(rate):
        base = _problem(n=24, net=net)
        scaling = eqx.tree_at(lambda s: s.eta, net.scaling, rate * jnp.ones_like(net.scaling.eta))
        return eqx.tree_at(lambda p: p.net.scaling, base, scaling)

    rates, T = jnp.array([1.0, 3e4, 2.0]), 2.0
    alone = [solve(make(rate), dynamics, T) for rate in rates]
    names, losses = [run.stats.integrator for run in alone], jnp.stack([run["loss"] for run in alone])
    assert names == [soft, stiff, soft]
    same = lambda found: np.testing.assert_allclose(found, losses, rtol=1e-9, atol=1e-12)

    inside = jax.jit(lambda rate, T: solve(make(rate), dynamics, T))
    traced = [inside(rate, T) for rate in rates]
    assert [run.stats.integrator for run in traced] == names
    assert [int(run.stats.steps) for run in traced] == [int(run.stats.steps) for run in alone]
    same(jnp.stack([run["loss"] for run in traced]))
    # A unit of time of its own for each: rates times T are what counts.
    batched = jax.jit(jax.vmap(lambda rate: solve(make(rate / 2), dynamics, 2 * T)))
    if not isinstance(dynamics, MomentumFlow):
        assert batched(rates).stats.integrator.tolist() == names
        same(batched(rates)["loss"])
    together = jax.vmap(lambda rate: solve(make(rate), dynamics, T))(rates)
    assert together.stats.integrator.tolist() == names  # pyright: ignore[reportAttributeAccessIssue]
    same(together["loss"])

    mixed = sweep(make, {"rate": rates}, dynamics, [T], progress=False)
    same(mixed["loss"].values[:, 0])
    assert mixed["steps"].values.tolist() == [int(run.stats.steps) for run in alone]
    single = sweep(make, {"rate": rates[1:2]}, dynamics, [T], progress=False)
    np.testing.assert_allclose(single["loss"].values, losses[1:2, None], rtol=1e-9, atol=1e-12)
    # Another integrator is as far away as its tolerance.
    if dynamics == GradientFlow():
        other = solve(make(1.0), GradientFlow(FunctionSpace()), T)["loss"]
        assert abs(other / losses[0] - 1) > 1e-7


def test_solve_a_trace_and_a_sweep_agree():
    """The short form of the above, with times that are the same for all."""
    make = lambda rate: _problem(n=24, net=_net(width=8, depth=1, eta=rate))
    alone, found = (
        solve(make(1.0), GradientFlow(), 2.0),
        sweep(make, {"rate": [1.0]}, GradientFlow(), [2.0], progress=False),
    )
    inside = jax.jit(lambda rate: solve(make(rate), GradientFlow(), 2.0))(1.0)
    assert alone.stats.integrator == inside.stats.integrator == "Tsit5"
    np.testing.assert_allclose([inside["loss"], found["loss"].values[0, 0]], alone["loss"], rtol=cases.eps(1e3))


@pytest.mark.slow
def test_a_choice_of_dynamics_by_axes_is_that_of_solve():
    make = lambda width: _problem(n=24, net=_net(width=width, depth=1))
    flow = lambda T_scale: GradientFlow(until=until.loss_below(T_scale))
    found = sweep(lambda: make(8), {"T_scale": [1e-9, 1e-8]}, flow, [1.0, 1e5], progress=False)
    for lane, level in enumerate((1e-9, 1e-8)):
        run = solve(make(8), flow(level), [1.0, 1e5])
        assert found["steps"].values[lane] == int(run.stats.steps)


def test_derivatives_go_through_a_run_whose_integrator_numbers_decide():
    problem = _problem(n=12)
    loss = lambda flow, T: solve(problem, flow, T)["loss"]
    found = jax.jvp(lambda T: loss(GradientFlow(), T), (3.0,), (1.0,))
    named = jax.jvp(lambda T: loss(GradientFlow(diffrax.Tsit5()), T), (3.0,), (1.0,))
    np.testing.assert_allclose(found, named, rtol=1e-12)
    with pytest.raises(RuntimeError, match="reverse-mode derivatives"):
        jax.grad(lambda T: loss(GradientFlow(), T))(3.0)


@pytest.mark.parametrize("free", [int(1e8), int(2e10), None])
def test_free_memory_decides_nothing(free, monkeypatch):
    """`FunctionSpace` takes 0.1 GB for the first; what is more than a fixed number of bytes is another integrator's."""
    for module in (kernel_memory, memory):
        monkeypatch.setattr(module, "free_memory", lambda: free)
    assert _chosen(_problem(n=1300, net=_net(width=24)), 1e12) == "FunctionSpace"
    wide = _net(width=2000)
    shapes = eqx.filter_eval_shape(lambda: _problem(n=30_000, net=wide))
    assert _name(GradientFlow().choose(shapes)) == "RungeKuttaChebyshev"


@pytest.mark.parametrize("break_it", [lambda w: 0 * w, lambda w: jnp.nan * w], ids=["at rest", "nan"])
def test_what_cannot_be_measured_is_chosen_by_size(break_it):
    problem = _problem()
    broken = eqx.tree_at(lambda p: p.net, problem, problem.network(jax.tree.map(break_it, problem.params)))
    assert _chosen(broken, 1e4) == "FunctionSpace"
    assert _chosen(_problem(n=8, loss=losses.Hinge()), 1e4) != "Tsit5"


def test_the_run_is_that_of_the_integrator():
    """And what was chosen is held to the same solution."""
    problem = _problem(n=100, net=_net(width=64))
    short = solve(problem, GradientFlow(), 3.0)
    assert short.stats.integrator == "Tsit5"
    other = solve(problem, GradientFlow(GradientFlow().choose(problem).integrator), 3.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert other.stats.integrator == "FunctionSpace"
    np.testing.assert_allclose(short["loss"], other["loss"], rtol=1e-4)


def test_inertia():
    """A mode moves at the square root of its rate over tau, or at 1/tau: both are what an explicit method follows."""
    problem = _problem(n=200, net=_net(width=256, depth=2))
    chosen = lambda tau, T: type(MomentumFlow(tau=tau).choose(problem, jnp.array([T])).integrator).__name__  # pyright: ignore[reportAttributeAccessIssue]
    assert chosen(1.0, 30.0) == "Tsit5"
    assert chosen(1.0, 1e5) == "FunctionSpace"
    assert chosen(1e-6, 30.0) == "FunctionSpace"
    assert type(MomentumFlow(mu=1.0).choose(problem, jnp.array([1e5])).integrator).__name__ == "Tsit5"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("ts", [[0.0, 1e4], [0.0, jnp.inf]])
def test_small_networks_of_others_march_by_their_hessian(ts):
    """The activation of an `eqx.nn.MLP` is a leaf that is no array."""
    net = eqx.nn.MLP(3, 1, 4, 1, jnp.tanh, key=jr.key(0))
    x = jr.normal(jr.key(1), (100, 3))
    problem = Problem(net, x, jnp.tanh(x[:, :1]))
    run = solve(problem, GradientFlow(until=until.loss_below(2e-2)), ts)
    assert run.stats.integrator == "ParameterSpace"
    close = solve(problem, GradientFlow(diffrax.Tsit5(), rtol=1e-4, until=until.loss_below(2e-2)), jnp.inf)
    np.testing.assert_allclose(run.t_end, close.t_end, rtol=1e-2)
