"""Sweeps over padded widths against those that compile every width by itself."""

import functools
import json
from typing import Any

import jax
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, GradientFlow, integrators, nets, observe, plan, Problem, sweep, theory, Zip
from jaxsolve.configs import ConfigError
from jaxsolve.sweeps import padded
from tests import cases
from tests.inside import parse_config
from tests.sweeps.inside import _plan, PaddedProblem


TS = (0.0, 0.5, 2.0)
WIDTHS = [2, 5, 3]
DESCENT = Descent(optax.adam(0.05))
QUIET = functools.partial(sweep, progress=False)


@functools.cache
def _data():
    with jax.ensure_compile_time_eval():  # drawn once, outside of any trace
        return cases.inputs(jr.key(9), 4), cases.inputs(jr.key(8), 4, 2)


def _problem(width: Any, scale: Any = 1.0, seed: Any = 0, activation: str = "softplus"):
    """Calculates with the width, as a rule of its own would."""
    scaling = nets.Scaling.lazy(scale / width**0.5, eta=1 / width)
    net = nets.MLP(
        in_size=3,
        out_size=2,
        width_size=width,
        depth=1,
        activation=activation,
        bias=True,
        scaling=scaling,
        key=jr.key(seed),
    )
    return Problem(net, *_data())


@pytest.mark.x64_only
def test_one_compilation_and_the_rows_of_many(compilations):
    axes = {"scale": [0.5, 3.0], "width": WIDTHS, "seed": range(2)}
    seen = [observe.loss(), observe.outputs(), observe.weight_norms()]

    def run(problem_fn, axes):
        before = len(compilations)
        return QUIET(problem_fn, axes, DESCENT, TS, observe=seen), len(compilations) - before

    many, one = run(_problem, axes), run(*padded(_problem, axes, "width"))
    assert (one[1], many[1] >= 3) == (1, True)
    assert dict(one[0].sizes) == dict(many[0].sizes)
    np.testing.assert_array_equal(one[0].width, WIDTHS)
    assert one[0].width.dtype.kind == "i"
    assert np.all(one[0].result == 0)
    for name in ("loss", "outputs", "weight_norms"):
        assert one[0][name].dims == many[0][name].dims
        np.testing.assert_allclose(one[0][name], many[0][name], rtol=1e-11, atol=1e-12)
        # a twin: widths that are mixed up
        other = one[0][name].isel(width=[1, 0, 2]).values
        cases.assert_fails(lambda a=other, b=many[0][name]: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12))


@pytest.mark.slow
@pytest.mark.x64_only
def test_flows_in_function_space_take_the_same_steps():
    axes = {"width": [2, 4]}
    flow = GradientFlow(integrators.FunctionSpace())
    one, many = (QUIET(*what, flow, TS) for what in (padded(_problem, axes, "width"), (_problem, axes)))
    np.testing.assert_array_equal(one.steps, many.steps)
    np.testing.assert_allclose(one["loss"], many["loss"], rtol=1e-10)


def _line(width: Any, gamma: Any = 1.0, sigma: Any = 1.0):
    scaling = nets.Scaling.mean_field(gamma, sigma=sigma)
    net = nets.TwoLayerLinear(in_size=3, width_size=width, scaling=scaling, key=jr.key(0))
    along = np.linspace(-1, 1, 4)
    return Problem(net, np.outer(along, [1.0, 2.0, -1.0]), 1 + along[:, None])


@pytest.mark.parametrize(
    "closed_form", cases.slow_after(1, [theory.TwoLayerLine(), theory.SilentAlignment(), theory.PhaseOne()]), ids=repr
)
def test_closed_forms_are_one_fused_program(closed_form):
    # The approximations hold from a small start.
    small = 1.0 if closed_form == theory.TwoLayerLine() else 1e-3
    axes = [Zip(width=WIDTHS, gamma=[0.5, 1.0, 2.0]), {"sigma": [small]}]
    once = padded(_line, axes, "width")
    assert len(plan(*once, closed_form, TS).groups) == 1
    seen = [observe.loss(), observe.weight_norms()]
    one, many = (QUIET(*what, closed_form, TS, observe=seen) for what in (once, (_line, axes)))
    assert one["loss"].dims == ("width_gamma", "sigma", "t")
    np.testing.assert_array_equal(one.width, WIDTHS)
    assert np.all(np.ptp(one["weight_norms"].values, axis=2) > 0.02 * small)
    for name in ("loss", "weight_norms"):
        np.testing.assert_allclose(one[name], many[name], rtol=cases.eps(1e4))


def test_description_and_shapes_of_neurons():
    """What has one entry per neuron has the padded size, and so the same shape in all lanes."""
    axes = {"width": WIDTHS, "scale": [0.1, 1.0], "activation": ["relu", "tanh"]}
    made = plan(*padded(_problem, axes, "width"), DESCENT, TS)
    assert repr(made) == "Plan(12 lanes, 2 compilations: width 3 x scale 2 x activation 2)"
    assert "\ntraced: width, scale; static: activation\n" in made.describe()
    axes = {"width": WIDTHS}
    with pytest.raises(ValueError, match=r"'conserved_0' has shapes .* along the axes \['width'\]"):
        plan(_line, axes, DESCENT, TS, observe=observe.conserved())
    made = plan(*padded(_line, axes, "width"), DESCENT, TS, observe=observe.conserved())
    assert _plan.LaneOutline(made, made.groups[0]).observed["conserved_0"].shape == (3, 5, 5)
    assert "\n1 compilation\n" in made.describe()


def test_a_store_knows_the_size(tmp_path):
    """Of lanes that are there, none runs again; one of arrays of another size is another plan."""
    run = functools.partial(QUIET, dynamics=theory.TwoLayerLine(), ts=TS, store=tmp_path / "run.zarr")
    first = run(*padded(_line, {"width": [2, 5, 3]}, "width"))
    assert run(*padded(_line, {"width": [2, 5, 3]}, "width")).identical(first)
    manifest = json.loads((tmp_path / "run.zarr" / "_jaxsolve" / "manifest.json").read_text())
    assert manifest["plan"]["problem_fn"]["sizes"] == {"width": 5}
    other = PaddedProblem(_line, {"width": 6})
    with pytest.raises(ValueError, match=r"problem_fn\.sizes\.width: 5 in the store, 6 now"):
        run(other, {"width": np.array([2, 5, 3])})


CONFIG = """
times = [0, 1]
observe = ["loss"]
[dynamics]
type = "GradientFlow"
[axes]
width = { padded = [2, 5] }
seed = { range = 2 }
[problem.network]
type = "MLP"
in_size = 3
width_size = "=width"
depth = 1
out_size = 1
activation = "sigmoid"
key = "=seed"
[problem.network.scaling]
type = "lazy"
alpha = "=2/sqrt(width)"
bias = { sigma = 0.1, eta = "=width/4" }
[problem.data]
type = "gaussian"
n_train = 4
in_size = 3
key = 0
"""


def _config(**changes: Any):
    import tomllib

    table = tomllib.loads(CONFIG)
    return parse_config({**table, "axes": {**table["axes"], **changes}})


def test_configs_can_ask_for_it():
    config = _config()
    made = plan(config.problem_fn, config.axes, config.dynamics, config.ts, observe=config.observe)
    assert repr(made) == "Plan(4 lanes, 1 compilation: width 2 x seed 2)"
    net, plain = (c.problem_fn(width=2, seed=1).net for c in (config, _config(width=[2, 5])))
    assert (net.widths, int(net.units)) == ((5,), 2)
    for found, expected in zip(jax.tree.leaves(net.scaling), jax.tree.leaves(plain.scaling), strict=True):
        np.testing.assert_allclose(found, expected, rtol=cases.eps(4))
    np.testing.assert_allclose(net.weights[0][:2], plain.weights[0], rtol=cases.eps(4))
    for bad, message in (
        ([2, 2.5], "widths of axis 'width' must be a list of integers to be padded, got an array"),
        ([], "axis 'width' has no values"),
        ([0, 2], r"widths of axis 'width' must be >= 1, got \[0, 2\]"),
        (3, "widths of axis 'width' must be a list of integers to be padded, got int 3"),
    ):
        with pytest.raises(ConfigError, match=f"axes: {message}"):
            _config(width={"padded": bad})


# --- bad input


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, {"width": [2]}, "width"), TypeError, "problem_fn must return the problem of a cell, got int 3"),
        ((_line, {"width": [2]}, "widht"), ValueError, "axes that hold widths, .*; no axis is called 'widht'"),
        ((_line, {"width": [2]}), ValueError, "padded needs the names of the axes .*; got none"),
        ((_line, {"width": [2.0]}, "width"), TypeError, "widths of axis 'width' must be a list of integers"),
        ((_line, {"width": ["a"]}, "width"), TypeError, "widths of axis 'width' must be a list of integers"),
        ((_line, Zip(width=[2, 0]), "width"), ValueError, r"widths of axis 'width' must be >= 1, got \[2, 0\]"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        padded(*arguments)


@pytest.mark.usefixtures("as_users")
def test_networks_that_cannot_be_padded_say_so():
    def images(width):
        net = nets.ConvNet(in_shape=(1, 8, 8), out_size=1, width_size=width, scaling=nets.Scaling.ntk(), key=jr.key(0))
        return Problem(net, np.ones((2, 1, 8, 8)), np.ones((2, 1)))

    with pytest.raises(
        TypeError, match="width_size cannot be padded here, .* give an integer, in a sweep a list of integ"
    ):
        plan(*padded(images, {"width": [2, 3]}, "width"), DESCENT, TS)
    with pytest.raises(TypeError, match=r"the axes \['wide'\], but takes .*unexpected keyword argument 'wide'"):
        plan(*padded(_line, {"wide": [2, 3]}, "wide"), DESCENT, TS)
    with pytest.raises(TypeError, match="axes must be a dict of named values"):
        plan(*padded(_line, [{"width": [2]}, 3], "width"), DESCENT, TS)  # pyright: ignore[reportArgumentType]


def test_an_axis_may_be_called_self():
    told = PaddedProblem(lambda **cell: _line(4, cell["self"]), {})
    assert told(**{"self": 1}).x.shape == _line(4, 1).x.shape


def test_a_store_of_padded_widths_is_carried_on(tmp_path):
    """Such a function, too, tells its sweep from others: a store knows it again, and a scale that is not its own."""
    axes = {"width": [2, 4]}
    problem = lambda scale: lambda width: _line(width, sigma=scale)
    keep = lambda scale: QUIET(
        *padded(problem(scale), axes, "width"), theory.TwoLayerLine(), TS, store=tmp_path / "kept.zarr"
    )
    np.testing.assert_array_equal(keep(1.0)["loss"], keep(1.0)["loss"])
    with pytest.raises(ValueError, match="problem"):
        keep(2.0)
