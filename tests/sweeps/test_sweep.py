import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import xarray

from jaxsolve import Descent, GradientFlow, nets, NotApplicable, observe, Problem, solve, sweep, theory, until, Zip
from tests import cases


TS = (0.0, 0.3, 1.0)
QUIET = functools.partial(sweep, progress=False)
RESULTS = dict(
    enumerate("successful event max_time max_steps diverged tolerance not_applicable invalid unstable".split())
)


def _names(data):
    return [RESULTS[code] for code in data.result.values.ravel()]


def _net_problem(width=4, sigma=1.0, seed=0, activation: Any = "tanh", gamma=1.0):
    rule = nets.Scaling.ntk(gamma, sigma=sigma)
    net = nets.MLP(
        in_size=3, out_size=1, width_size=width, depth=1, activation=activation, scaling=rule, key=jr.key(seed)
    )
    return Problem(net, *_data())


@functools.cache
def _data():
    with jax.ensure_compile_time_eval():  # drawn once, outside of any trace
        return cases.inputs(jr.key(9), 5), cases.inputs(jr.key(8), 5, 1)


def _modes(start: Any = 1.0, rate: Any = 1.0):
    return cases.modes(
        jnp.stack([jnp.asarray(start, float), jnp.ones(())]), jnp.stack([jnp.asarray(rate), jnp.ones(())])
    )


def _modes_loss(start, rate, t):
    return 0.5 * (rate * start**2 * np.exp(-2 * rate * np.asarray(t)) + np.exp(-2 * np.asarray(t)))


# A sweep is a loop of solves


@functools.cache
def _flow_sweep():
    """Lanes of bad scale among the good."""
    axes = {"width": [3], "sigma": [0.5, -1.0, 2.0], "seed": range(2)}
    return QUIET(_net_problem, axes, GradientFlow(), TS, observe=[observe.loss(), observe.outputs()])


@pytest.mark.x64_only
def test_is_a_loop_of_solves():
    """To rounding times the number of steps: batched programs add in another order."""
    data = _flow_sweep()
    for sigma in (0.5, 2.0):
        for seed in range(2):
            run = solve(_net_problem(3, sigma, seed), GradientFlow(), TS, observe=[observe.loss(), observe.outputs()])
            lane = data.sel(width=3, sigma=sigma, seed=seed)
            for name in ("loss", "outputs"):
                np.testing.assert_allclose(lane[name], run[name], rtol=0, atol=1e-12)
            assert lane.steps == run.stats.steps
            assert lane.t_end == run.t_end
    assert np.abs(np.diff(data["loss"].sel(width=3, sigma=[0.5, 2.0]).values[..., -1].ravel())).min() > 1e-3


def test_lanes_of_bad_scale_are_marked():
    data = _flow_sweep()
    assert _names(data.sel(sigma=-1.0)) == ["invalid"] * 2
    assert _names(data.sel(sigma=[0.5, 2.0])) == ["successful"] * 4
    assert np.all(np.isnan(data["loss"].sel(sigma=-1.0).values[..., 1:]))
    assert np.all(data.t_end.sel(sigma=-1.0) == 0)
    assert np.all(np.isfinite(data["loss"].sel(sigma=[0.5, 2.0])))


def test_dataset():
    data = _flow_sweep()
    assert dict(data.sizes) == {"width": 1, "sigma": 3, "seed": 2, "t": 3, "sample": 5, "output": 1}
    assert data["loss"].dims == ("width", "sigma", "seed", "t")
    assert data["outputs"].dims == ("width", "sigma", "seed", "t", "sample", "output")
    for name in ("result", "steps", "t_end", "wall"):
        assert data[name].dims == ("width", "sigma", "seed")
    assert set(data.data_vars) == {"loss", "outputs", "result", "steps", "t_end", "trust", "wall"}
    assert np.all(data.trust.values[:, [0, 2]] > 3)
    assert data.trust.dtype == np.float32
    np.testing.assert_array_equal(data.width, [3])
    np.testing.assert_array_equal(data.sigma, [0.5, -1.0, 2.0])
    np.testing.assert_array_equal(data.seed, [0, 1])
    np.testing.assert_allclose(data.t, TS, rtol=1e-7)
    units = {name: data[name].attrs["units"] for name in ("loss", "outputs", "steps", "t_end", "wall", "t")}
    time = "gradient-flow time"
    assert units == {
        "loss": "loss",
        "outputs": "output",
        "steps": "accepted steps",
        "t_end": time,
        "wall": "s",
        "t": time,
    }
    flags = data.result.attrs
    assert dict(zip(flags["flag_values"], flags["flag_meanings"].split(), strict=True)) == RESULTS
    tolerances = "rtol=1e-06, atol=1e-09" if cases.X64 else "rtol=0.0001, atol=1e-07"
    assert data.attrs["dynamics"] == f"GradientFlow(integrator=Tsit5, {tolerances})"
    assert f"jax {jax.__version__}" in data.attrs["versions"]
    assert {"created", "device", "platform"} <= data.attrs.keys()
    assert np.all(data.wall > 0)


def test_static_axes_and_zips_are_a_loop_of_solves():
    """A string with one width, a callable with another; rates of decay of the loss differ, so a mix-up shows."""
    dynamics = Descent(optax.sgd(0.05))
    axes = [Zip(activation=["tanh", jnp.sin], width=[3, 4]), Zip(gamma=[0.5, 2.0], seed=np.array([3, 1]))]
    data = QUIET(_net_problem, axes, dynamics, TS)
    assert data["loss"].dims == ("activation_width", "gamma_seed", "t")
    coordinates = {"activation": ["tanh", "sin"], "width": [3, 4], "gamma": [0.5, 2.0], "seed": [3, 1]}
    for name, values in coordinates.items():
        np.testing.assert_array_equal(data[name], values)
        assert data[name].dims == ("activation_width" if name in ("activation", "width") else "gamma_seed",)
    for i, (activation, width) in enumerate([("tanh", 3), (jnp.sin, 4)]):
        for j, (gamma, seed) in enumerate([(0.5, 3), (2.0, 1)]):
            run = solve(_net_problem(width, 1.0, seed, activation, gamma), dynamics, TS)
            np.testing.assert_allclose(data["loss"][i, j], run["loss"], rtol=cases.eps(1e3))
    assert np.abs(np.diff(np.sort(data["loss"].values[:, :, -1].ravel()))).min() > 1e-3


def test_seeds_are_common_random_numbers():
    data = QUIET(
        _net_problem,
        {"sigma": [0.5, 2.0], "seed": range(3)},
        Descent(optax.sgd(0.1)),
        [0.0],
        observe=observe.weight_norms(),
    )
    norms = data["weight_norms"].values[:, :, 0]
    np.testing.assert_allclose(norms[0] / 0.5, norms[1] / 2.0, rtol=cases.eps(10))
    assert len(np.unique(norms[0, :, 0])) == 3


# Shapes of grids


def test_closed_forms_reach_infinity():
    data = QUIET(_modes, {"rate": [0.5, 2.0, 150.0], "start": [1.0, -3.0]}, cases.ModesDecay(), [0.0, 1.0, jnp.inf])
    exact = [[_modes_loss(start, rate, [0.0, 1.0, np.inf]) for start in (1.0, -3.0)] for rate in (0.5, 2.0)]
    np.testing.assert_allclose(data["loss"][:2], exact, rtol=cases.eps(100))
    assert np.abs(data["loss"].values[:2, ::-1] - exact).max() > 1e-3  # the starts exchanged
    assert np.all(np.isnan(data["loss"][2]))  # of what it does not solve
    assert _names(data) == ["successful"] * 4 + ["not_applicable"] * 2
    assert np.all(data.steps == 0)


def test_a_closed_form_for_other_problems_raises_at_once():
    with pytest.raises(NotApplicable, match="TwoLayerLine does not solve this problem: it needs linear activation"):
        QUIET(_net_problem, {"sigma": [1.0, 2.0]}, theory.TwoLayerLine(), TS)


def test_a_closed_form_whose_first_lane_is_bad():
    def line(sigma):
        net = nets.TwoLayerLinear(in_size=1, width_size=3, scaling=nets.Scaling.ntk(sigma=sigma), key=jr.key(0))
        return Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))

    data = QUIET(line, {"sigma": [-1.0, 1.0]}, theory.TwoLayerLine(), TS)
    assert _names(data) == ["invalid", "successful"]
    assert np.all(np.diff(data["loss"][1]) < 0)


def test_axes_without_traced_ones():
    build = lambda start, sign: _modes(start=float(start) * (1 if sign == "+" else -1))
    data = QUIET(
        build, {"start": [1, 2], "sign": ["+", "-"]}, Descent(optax.sgd(0.1)), [0.0], observe=observe.outputs()
    )
    np.testing.assert_allclose(data["outputs"][:, :, 0, 0, 0], np.sqrt(2) * np.array([[1, -1], [2, -2]]), rtol=1e-6)


def test_static_axes_alone_with_a_dynamics_that_chooses():
    """A group then has one lane, without numbers of its own that the choice could be made by."""
    build = lambda start: _modes(start=float(start))
    data = QUIET(build, {"start": [1, 2]}, GradientFlow(), [0.0, 1.0])
    alone = [solve(build(start), GradientFlow(), [0.0, 1.0])["loss"] for start in (1, 2)]
    np.testing.assert_allclose(data["loss"], alone, rtol=1e-5)


@pytest.mark.parametrize("dynamics", [Descent(optax.sgd(0.1)), cases.ModesDecay()], ids=["march", "closed form"])
def test_an_axis_on_which_nothing_depends(dynamics):
    data = QUIET(lambda repeat: _modes(), {"repeat": range(3)}, dynamics, [0.0, 1.0])
    assert data["loss"].shape == (3, 2)
    np.testing.assert_array_equal(data["loss"][0], data["loss"][2])


def test_one_zip_and_one_time():
    data = QUIET(_modes, Zip(start=[1.0, 2.0], rate=[2.0, 0.5]), cases.ModesDecay(), 1.0)
    assert data["loss"].dims == ("start_rate", "t")
    np.testing.assert_allclose(data["loss"][:, 0], [_modes_loss(1, 2, 1), _modes_loss(2, 0.5, 1)], rtol=cases.eps(50))


def test_times_rounded_to_steps_are_told():
    data = QUIET(_modes, {"start": [1.0, 2.0]}, Descent(optax.sgd(0.25)), [0.0, 0.3, 1.0])
    np.testing.assert_allclose(data.t, [0.0, 0.3, 1.0], rtol=1e-7)
    assert data.t_saved.dims == ("start", "t")
    np.testing.assert_allclose(data.t_saved, [[0.0, 0.25, 1.0]] * 2, rtol=1e-7)
    exact = QUIET(_modes, {"start": [1.0, 2.0]}, Descent(optax.sgd(0.25)), [0.0, 0.25, 1.0])
    assert "t_saved" not in exact
    np.testing.assert_array_equal(exact["loss"], data["loss"])


def test_float32_problems():
    """Also where the default is float64: their times are rounded, which is no rounding to steps."""

    def build(sigma):
        net = nets.TwoLayerLinear(
            in_size=1, width_size=2, scaling=nets.Scaling.ntk(sigma=sigma), key=jr.key(0), dtype=jnp.float32
        )
        return Problem(net, jnp.ones((1, 1), jnp.float32), jnp.ones((1, 1), jnp.float32))

    data = QUIET(build, {"sigma": [0.5, 1.0]}, theory.TwoLayerLine(), [0.0, 0.1])
    assert data["loss"].dtype == np.float32
    assert "t_saved" not in data


# Failing lanes


def test_diverging_lanes_and_events_are_marked():
    """Descent at the rate 0.1 is stable for rates of decay up to 20; the loss of the slow mode falls to 0.1 at 1.2."""
    dynamics = Descent(optax.sgd(0.1), until=until.loss_below(0.05), max_steps=4000)
    huge = float(jnp.finfo(jnp.result_type(float)).max) ** 0.6  # its square is beyond the dtype
    data = QUIET(_modes, {"rate": [1.0, 25.0, 3.0], "start": [0.1, huge]}, dynamics, [0.0, 0.1, jnp.inf])
    assert _names(data) == ["event", "diverged", "diverged", "diverged", "event", "diverged"]
    loss = data["loss"].values[:, 0]
    assert np.all(np.isfinite(loss[[0, 2]]))
    np.testing.assert_array_equal(np.isnan(loss[1]), [False, False, True])
    assert np.all(loss[[0, 2], -1] <= 0.05)


def test_nan_made_on_the_way_is_marked():
    data = QUIET(lambda power: _modes(start=jnp.sqrt(power)), {"power": [-1.0, 4.0]}, Descent(optax.sgd(0.1)), TS)
    assert _names(data) == ["invalid", "successful"]
    np.testing.assert_allclose(data["loss"][1, 0], _modes_loss(2.0, 1.0, 0.0), rtol=cases.eps(10))


# One compilation, the same bits


def _counting(problem_fn):
    calls = []

    def counted(**arguments):
        calls.append(arguments)
        return problem_fn(**arguments)

    return calls, counted


@pytest.mark.parametrize("dynamics", [Descent(optax.sgd(0.1)), cases.ModesDecay()], ids=["march", "closed form"])
def test_problems_are_traced_once_per_static_combination(dynamics):
    """However many lanes and batches, problem_fn is called a few times per compilation."""
    counts = []
    for lanes, batch_size, static in ((2, None, ["a"]), (7, 2, ["a"]), (7, 2, ["a", "b"])):
        calls, counted = _counting(lambda kind, rate: _modes(rate=rate))
        QUIET(counted, {"kind": static, "rate": np.linspace(1, 2, lanes)}, dynamics, [0.2], batch_size=batch_size)
        counts.append(len(calls))
    assert counts[0] == counts[1] <= 3
    assert counts[2] <= 2 * 3


@pytest.mark.parametrize("batch_size", [None, 3, 5])
def test_bits_do_not_depend_on_the_order_of_lanes(batch_size):
    """Seven lanes: in batches of three or five the last one is padded."""
    sigmas = np.array([0.3, 2.0, 1.1, -1.0, 0.7, 1.7, 0.9])
    wanted = [observe.loss(), observe.outputs()]
    run = lambda order: QUIET(
        _net_problem, {"sigma": sigmas[order]}, Descent(optax.sgd(0.1)), TS, observe=wanted, batch_size=batch_size
    )
    forward, order = run(np.arange(7)), np.array([5, 3, 0, 6, 2, 4, 1])
    shuffled = run(order)
    for name in ("loss", "outputs", "result", "steps", "t_end"):
        assert shuffled[name].values.tobytes() == forward[name].values[order].tobytes()
    assert len(np.unique(forward["loss"][:, -1])) == 7


# The store


def test_store(tmp_path):
    path = tmp_path / "run.zarr"
    axes = {"rate": [0.5, 2.0], "kind": ["slow", "fast"], "repeat": range(3)}
    build = lambda kind, rate, repeat: _modes(rate=rate * (5 if kind == "fast" else 1))
    data = QUIET(build, axes, cases.ModesDecay(), TS, observe=[observe.loss(), observe.outputs()], store=path)
    for consolidated in (False, None):
        with xarray.open_zarr(path, consolidated=consolidated) as back:
            xarray.testing.assert_equal(back.load(), data)
            assert back["loss"].dims == data["loss"].dims
            assert back.attrs == data.attrs
            for name in (*data.data_vars, *data.coords):
                assert back[name].attrs == data[name].attrs
            assert back["loss"].dtype == data["loss"].dtype
            np.testing.assert_array_equal(back.sel(kind="fast")["loss"], data["loss"][:, 1])
            assert list(back.kind.values) == ["slow", "fast"]
    np.testing.assert_array_equal(data.sel(kind="fast", rate=0.5)["loss"], data["loss"][0, 1])
    for i, rate in enumerate([0.5, 2.0]):  # the axes are in order, also where a static one stands between traced ones
        for j, factor in enumerate([1, 5]):
            exact = np.broadcast_to(_modes_loss(1.0, rate * factor, TS), (3, 3))
            np.testing.assert_allclose(data["loss"][i, j], exact, rtol=cases.eps(100))


# Options and bad input


def test_progress(capsys):
    sweep(_modes, {"rate": [1.0, 2.0, 3.0]}, cases.ModesDecay(), [1.0], batch_size=2)
    shown = capsys.readouterr()
    assert "3/3 runs" in shown.err
    assert shown.out == ""
    QUIET(_modes, {"rate": [1.0, 2.0, 3.0]}, cases.ModesDecay(), [1.0])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"problem_fn": 3}, TypeError, "problem_fn must return the problem of a cell, got int 3"),
        ({"ts": [[1.0]]}, ValueError, "ts must be one time or a non-empty 1-D sequence"),
        ({"dynamics": GradientFlow(), "ts": [jnp.inf]}, ValueError, "ts ends in inf"),
        ({"observe": observe.kernel()}, ValueError, "'kernel' needs kernel, but ModesDecay provides only"),
        ({"observe": "loss"}, TypeError, "observe must be observables"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer"),
        ({"devices": []}, ValueError, "devices is empty; give at least one"),
        ({"executor": object()}, TypeError, r"executor must be a dask\.distributed\.Client"),
        ({"retry_failed": True}, ValueError, "retry_failed=True runs failed lanes of a store again: give store="),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(arguments, error, message):
    good = {"problem_fn": _modes, "axes": {"rate": [1.0, 2.0]}, "dynamics": cases.ModesDecay(), "ts": [1.0]}
    with pytest.raises(error, match=message):
        QUIET(**(good | arguments))
