import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import (
    compare,
    Descent,
    GradientFlow,
    nets,
    NotApplicable,
    observe,
    Problem,
    solve,
    SolveError,
    theory,
    until,
)
from tests import cases


TS = (0.0, 0.26, 1.01, 4.0)


@functools.cache
def _line():
    net = nets.TwoLayerLinear(in_size=2, width_size=3, scaling=cases.scaling(2), key=jr.key(7))
    return Problem(net, jnp.array([[0.6, 0.8], [-0.3, -0.4]]), jnp.array([[1.2], [-0.7]]))


def _relative(value, reference):
    value, reference = np.asarray(value), np.asarray(reference)
    return np.abs(value - reference).max() / np.abs(reference).max()


@functools.cache
def _table():
    """The closed form, the flow, and descent at two rates."""
    dynamics = [theory.TwoLayerLine(), GradientFlow(), Descent(optax.sgd(0.05)), Descent(optax.sgd(0.005))]
    return compare(_line(), dynamics, TS)


def test_names_are_distinct_and_the_first_is_the_reference():
    names = ["TwoLayerLine", "GradientFlow(Tsit5)", "Descent(sgd) #1", "Descent(sgd) #2"]
    assert list(_table().trajectories) == names
    assert list(_table().errors) == names[1:]
    assert _table().reference == "TwoLayerLine"
    with pytest.raises(KeyError, match=r"'Descent\(sgd\)' was not compared; compared: \['TwoLayerLine'"):
        _table()["Descent(sgd)"]


def test_the_best_is_the_nearest_or_a_cheaper_one_that_is_as_near():
    table = _table()
    errors = {name: max(float(e) for e in found.values()) for name, found in table.errors.items()}
    assert errors["GradientFlow(Tsit5)"] < errors["Descent(sgd) #2"] < errors["Descent(sgd) #1"]
    assert table.best() == table.best("loss") == "GradientFlow(Tsit5)"
    costs = {name: int(table[name].stats.gradient_evaluations) for name in table.errors}
    assert costs["Descent(sgd) #1"] < costs["GradientFlow(Tsit5)"] < costs["Descent(sgd) #2"]
    ratio = errors["Descent(sgd) #1"] / errors["GradientFlow(Tsit5)"]
    assert table.best(slack=1.01 * ratio) == "Descent(sgd) #1"
    assert table.best(slack=0.99 * ratio) == "GradientFlow(Tsit5)"
    with pytest.raises(KeyError, match="'kernel' was not observed"):
        table.best("kernel")
    with pytest.raises(ValueError, match="slack"):
        table.best(slack=0.5)


def test_repr_is_a_table():
    lines = repr(_table()).splitlines()
    assert lines[0] == "Comparison with TwoLayerLine: largest error over time, relative to the largest value"
    assert [line.split(":")[0].strip() for line in lines[1:]] == list(_table().errors)
    error = float(_table().errors["Descent(sgd) #1"]["loss"])
    assert f"loss {error:.1e}" in lines[2]
    assert "outputs " in lines[2]


@pytest.mark.x64_only
def test_errors_are_those_of_each_run_by_itself():
    problem, table = _line(), _table()
    assert table.errors["GradientFlow(Tsit5)"]["loss"] < 1e-6
    for name, dynamics in (("Descent(sgd) #1", Descent(optax.sgd(0.05))), ("GradientFlow(Tsit5)", GradientFlow())):
        run = solve(problem, dynamics, TS, observe=[observe.loss(), observe.outputs()])
        exact = solve(problem, theory.TwoLayerLine(), run.ts, observe=[observe.loss(), observe.outputs()])
        for key, error in table.errors[name].items():
            np.testing.assert_allclose(error, _relative(run[key], exact[key]), rtol=1e-6)
            assert abs(error - float(jnp.max(jnp.abs(run[key] - exact[key])))) > 0.01 * error  # not relative


def test_distances_are_those_of_vectors():
    watched = [observe.parameters(), observe.outputs()]
    runs = [Descent(optax.sgd(0.125)), GradientFlow(rtol=1e-6)]
    weights, rates = np.array([2.0, -1.0]), np.array([1.0, 3.0])
    table = compare(cases.modes(weights, rates), runs, [0.5, 1.0], observe=watched)
    t = np.array([[0.5], [1.0]])
    apart = (np.exp(-rates * t) - (1 - 0.125 * rates) ** (t / 0.125)) * weights
    found = table.distance("GradientFlow(Tsit5)")
    np.testing.assert_allclose(found, np.linalg.norm(apart, axis=1), rtol=max(1e-4, cases.eps(1e3)))
    assert np.all(np.abs(found - np.abs(apart).max(axis=1)) > 1e-3 * found)  # not the largest entry
    of_outputs = np.asarray(table["GradientFlow(Tsit5)"]["outputs"] - table["Descent(sgd)"]["outputs"])
    found = table.distance("GradientFlow(Tsit5)", "outputs")
    np.testing.assert_allclose(found, np.sqrt(np.sum(of_outputs**2, axis=(1, 2))), rtol=cases.eps(10))
    with pytest.raises(KeyError, match="'loss' was not observed"):
        table.distance("GradientFlow(Tsit5)", "loss")


@pytest.mark.x64_only
def test_descent_is_compared_at_the_times_it_rounds_to():
    table = _table()
    np.testing.assert_allclose(table["Descent(sgd) #1"].ts, [0.0, 0.25, 1.0, 4.0], rtol=1e-12)
    np.testing.assert_allclose(table["Descent(sgd) #2"].ts, [0.0, 0.26, 1.01, 4.0], rtol=1e-12)
    np.testing.assert_allclose(table["TwoLayerLine"].ts, [0.0, 0.25, 0.26, 1.0, 1.01, 4.0], rtol=1e-12)
    # The error falls with the rate: compared at the times asked for, it would not fall below that of the rounding.
    ratio = table.errors["Descent(sgd) #1"]["outputs"] / table.errors["Descent(sgd) #2"]["outputs"]
    assert 8 < ratio < 12
    asked = solve(_line(), theory.TwoLayerLine(), TS, observe=observe.outputs())["outputs"]
    off = _relative(table["Descent(sgd) #1"]["outputs"], asked)
    assert abs(off - float(table.errors["Descent(sgd) #1"]["outputs"])) > 1e-3


@pytest.mark.x64_only
def test_distances_are_at_the_times_of_each():
    table = _table()  # of which the reference has more
    for name in ("Descent(sgd) #1", "Descent(sgd) #2"):
        exact = solve(_line(), theory.TwoLayerLine(), table[name].ts, observe=observe.outputs())["outputs"]
        apart = np.asarray(table[name]["outputs"] - exact)
        np.testing.assert_allclose(table.distance(name, "outputs"), np.sqrt(np.sum(apart**2, axis=(1, 2))), rtol=1e-9)


@pytest.mark.x64_only
def test_a_reference_that_rounds_is_met_at_its_own_times():
    dynamics = [Descent(optax.sgd(0.05)), theory.TwoLayerLine(), Descent(optax.sgd(0.005))]
    table = compare(_line(), dynamics, TS, observe=observe.outputs())
    for trajectory in table.trajectories.values():
        np.testing.assert_allclose(trajectory.ts, [0.0, 0.25, 1.0, 4.0], rtol=1e-12)
    exact, descent = table["TwoLayerLine"]["outputs"], table["Descent(sgd) #1"]["outputs"]
    np.testing.assert_allclose(table.errors["TwoLayerLine"]["outputs"], _relative(exact, descent), rtol=1e-12)


def test_a_reference_of_zeros_has_absolute_errors():
    problem = cases.modes([0.0], [1.0])
    table = compare(problem, [cases.ModesDecay(), Descent(optax.sgd(0.1))], [0.0, 1.0])
    assert table.errors["Descent(sgd)"] == {"loss": 0.0, "outputs": 0.0}


def test_times_after_an_event():
    condition = until.loss_below(0.1)
    dynamics = [GradientFlow(until=condition), Descent(optax.sgd(1e-3), until=condition)]
    table = compare(cases.modes([2.0], [1.0]), dynamics, [0.0, 1.0, jnp.inf])
    assert table.errors["Descent(sgd)"]["loss"] < 2e-3
    ends = {name: float(trajectory.t_end) for name, trajectory in table.trajectories.items()}
    said = [f"  {name} ended at t = {end:.4g}: later rows hold its state there" for name, end in ends.items()]
    assert repr(table).splitlines()[2:] == said
    assert "ended" not in repr(compare(cases.modes([2.0], [1.0]), dynamics, [0.0, 0.1]))


@pytest.mark.parametrize("dynamics", [[], [GradientFlow()]])
def test_fewer_than_two_dynamics(dynamics):
    with pytest.raises(ValueError, match=f"compare needs at least two dynamics, got {len(dynamics)}"):
        compare(_line(), dynamics, TS)


@pytest.mark.usefixtures("as_users")
def test_what_solve_raises():
    two: Any = [cases.ModesDecay(), Descent(optax.sgd(0.1))]
    none: Any = None
    strange: Any = "sgd"
    with pytest.raises(ValueError, match="ts must be sorted"):
        compare(_line(), two, [1.0, 0.0])
    with pytest.raises(NotApplicable, match="ModesDecay does not solve this problem"):
        compare(_line(), two, TS)
    with pytest.raises(ValueError, match="'kernel' needs kernel, but ModesDecay provides only"):
        compare(cases.modes([1.0], [1.0]), two, TS, observe=observe.kernel())
    with pytest.raises(SolveError, match=r"Descent\(sgd\) ended.*diverged"):
        compare(cases.modes([1.0], [100.0]), two, [0.0, 200.0])
    with pytest.raises(TypeError, match="dynamics must be such as"):
        compare(_line(), [*two, strange], TS)
    with pytest.raises(TypeError, match="problem must be a jaxsolve.Problem"):
        compare(none, two, TS)


def test_a_conserved_quantity_of_0_is_compared_by_its_terms():
    """Relative to itself, rounding of a difference of equal terms would be an error of any size."""
    scaling = nets.Scaling([1.0, 1.0], sigma=[0.5, 0.5], eta=[1.0, 1.0])
    init = nets.Given([jnp.eye(2) / 2, jnp.full((1, 2), 0.5)])
    net = nets.MLP(
        in_size=2, out_size=1, width_size=2, depth=1, activation="relu", scaling=scaling, init=init, key=jr.key(0)
    )
    problem = Problem(net, jnp.eye(2), jnp.array([[1.0], [1.0]]))
    wanted = [observe.neuron_delta(), observe.conserved()]
    table = compare(problem, [GradientFlow(), GradientFlow()], [0.0, 1.0], observe=wanted)
    loose = compare(problem, [GradientFlow(), Descent(optax.sgd(0.01))], [0.0, 1.0], observe=wanted)
    for name in ("neuron_delta", "conserved_0"):
        assert np.max(np.abs(table[table.reference]["neuron_delta"])) < 1e-4
        (error,) = (errors[name] for errors in table.errors.values())
        assert error < 1e-4
        (error,) = (errors[name] for errors in loose.errors.values())
        assert error < 0.1


def test_two_that_round_times_must_meet():
    net = nets.MLP(
        in_size=2, out_size=1, width_size=8, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    problem = Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
    short = [Descent(optax.sgd(3e-9)), Descent(optax.sgd(2e-9))]
    with pytest.raises(ValueError, match="both round times to their steps"):
        compare(problem, short, [4e-9])
    two = [Descent(optax.sgd(0.3)), Descent(optax.sgd(0.2))]
    with pytest.raises(ValueError, match=r"both round times to their steps, to 0.3 and 0.[24], .*a flow first"):
        compare(problem, two, [0.5])
    together = compare(problem, two, [0.6, 1.2])
    assert all(np.isfinite(errors["loss"]) for errors in together.errors.values())
    for other in compare(problem, [GradientFlow(), *two], [0.5]).errors.values():
        assert other["loss"] < 0.2


def test_what_no_dynamics_has_is_no_error():
    net = nets.MLP(
        in_size=2, out_size=1, width_size=8, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    problem = Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))  # classes of one sample have no kernel within
    found = compare(problem, [GradientFlow(), Descent(optax.sgd(0.1))], [1.0], observe=observe.kernel_between_classes())
    (errors,) = found.errors.values()
    assert 0 < errors["kernel_between_classes"] < 0.1


def test_distances_are_of_the_nearest_time():
    """Steps of descent after many are close to each other, and at the edge their parameters are not."""
    both = compare(_line(), [GradientFlow(), Descent(optax.sgd(0.01))], [2000.0, 2000.01], observe=observe.parameters())
    name = "Descent(sgd)"
    rows = both[both.reference]["parameters"]
    truth = [np.linalg.norm(both[name]["parameters"][i] - rows[i]) for i in range(2)]
    np.testing.assert_array_equal(both.distance(name), truth)
    moved = eqx.tree_at(
        lambda b: b.trajectories[b.reference].observed["parameters"], both, rows + np.array([[0.0], [1.0]])
    )
    assert moved.distance(name)[1] > 1
