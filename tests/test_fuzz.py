"""Arguments of wrong type, shape, dtype, sign and size: every public name gives a value, or says what is wrong.

What is called, and with what, is found by looking at the rooms: a new public name is tried without being listed here.
`JAXSOLVE_FUZZ_CALLS=5000 uv run pytest -n0 -m slow tests/test_fuzz.py` tries more, and JAXSOLVE_FUZZ_ROOMS other rooms.
"""

import enum
import functools
import importlib
import inspect
import os
import re
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import jaxtyping
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from hypothesis import given, HealthCheck, settings, strategies as st

import jaxsolve as js


PACKAGE = str(Path(inspect.getfile(js)).parent)
CALLS = int(os.environ.get("JAXSOLVE_FUZZ_CALLS", "250"))
CHECKS = [
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
]
# `theory` and `integrators` take arrays of their own kinds in many places, and are tried when asked for.
ROOMS = os.environ.get("JAXSOLVE_FUZZ_ROOMS", "jaxsolve data kernels losses nets observe plot until").split()
ELSEWHERE = {
    "jaxsolve.quickstart": "writes files and takes a minute",
    "jaxsolve.exact": "of theory",
    "jaxsolve.sweep": "its axes and stores have tests of their own",
    "jaxsolve.plan": "the same",
    "data.mnist": "reads files",
    "data.fashion_mnist": "reads files",
    "data.cifar10": "reads files",
    "nets.Shapes": "a plain record, which networks make",
    "nets.Start": "a plain tuple",
    "kernels.NeuralTangentsUnavailable": "an error",
    "jaxsolve.NotApplicable": "an error",
    "jaxsolve.SolveError": "an error",
    "jaxsolve.Certificate": "a plain record, which flows make",
    "jaxsolve.Trajectory": "the same, of `solve`",
    "jaxsolve.Validity": "the same, of closed forms",
    "jaxsolve.View": "the same, of dynamics",
    "jaxsolve.RESULTS": "an enumeration",
    "nets.Conserved": "a plain record, which networks make",
    "nets.LayerShape": "a plain tuple",
    "nets.Prescription": "a plain tuple",
    "plot.Boundary": "a plain tuple",
    "theory.Exponents": "a plain tuple",
}


@functools.cache
def public() -> dict[str, Callable]:
    """What the rooms export and can be called, by name."""
    found: dict[str, Callable] = {}
    for room in ROOMS:
        module = js if room == "jaxsolve" else importlib.import_module(f"jaxsolve.{room}")
        for name in dir(module):
            value = getattr(module, name, None)
            label = f"{room}.{name}"
            own = isinstance(value, (type, types.FunctionType)) and value.__module__.startswith("jaxsolve")
            if name.startswith("_") or not own or inspect.isabstract(value) or label in ELSEWHERE:
                continue
            if name.startswith("Abstract") or (room != "jaxsolve" and getattr(js, name, None) is value):
                continue
            if isinstance(value, type) and issubclass(value, BaseException | enum.Enum):
                continue
            found[label] = cast(Callable, value)
    return found


# --- right values, by the names that parameters have


@functools.cache
def good() -> dict[str, Any]:
    """Arguments that are right wherever a parameter has this name."""
    key, scaling = jax.random.key(0), js.nets.Scaling.ntk()
    net = js.nets.MLP(in_size=2, out_size=1, width_size=4, depth=1, activation="tanh", scaling=scaling, key=key)
    x, y = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), jnp.array([[1.0], [-1.0], [1.0]])
    problem = js.Problem(net, x, y, test=(x, y))
    kernel = problem.kernel(problem.params, x)[:, 0, :, 0]
    view = js.View(problem, jnp.zeros(()), problem.params)
    run = js.solve(problem, js.FrozenKernel(), jnp.array([0.0, 1.0]))
    return {
        **{name: net for name in ("net", "at", "network")},
        **{name: x for name in ("x", "x1", "inputs")},
        **{name: y for name in ("y", "f", "targets")},
        **{name: kernel for name in ("kernel", "one", "two", "now", "before", "initial")},
        "x2": None,
        "problem": problem,
        "view": view,
        "traj": run,
        "scaling": scaling,
        "key": key,
        "width": 4,
        "depth": 1,
        "in_size": 2,
        "out_size": 1,
        "n_train": 5,
        "n_test": 3,
        "labels": jnp.array([0, 1, 0]),
        "classes": 2,
        "ts": jnp.array([0.0, 1.0]),
        "t": 1.0,
        "dynamics": js.FrozenKernel(),
        "dynamics_list": [js.FrozenKernel(), js.GradientFlow()],
        "optimizer": optax.sgd(0.1),
        "integrator": diffrax.Tsit5(),
        "temperature": 0.1,
        "rate": 0.1,
        "eps": 0.1,
        "condition": js.until.loss_below(0.1),
        "loss": js.losses.MSE(),
        "activation": "tanh",
        "teacher": lambda x: x[0],
        "name": "loss",
        "fn": lambda view: view.loss,
        "index": 0,
        "layer": 0,
        "threshold": 0.1,
        "fraction": 0.5,
        "half": np.ones(2),
        "kernel_change": np.ones(2),
        "stability": np.ones(2),
        "regimes": np.zeros((2, 2), int),
        "delta": 0.0,
        "beta": 2.0,
        "gamma": 1.0,
        "sigma": [1.0, 1.0],
        "eta": [1.0, 1.0],
        "multiplier": [1.0, 1.0],
        "weights": [jnp.ones((4, 2)), jnp.ones((1, 4))],
        "codes": [0, 1],
        "tau": 1.0,
        "unit": "1",
        "observe": js.observe.loss(),
    }


# --- wrong ones


class Wrong(NamedTuple):
    """A value of a random kind, and what it is in words."""

    words: str
    value: Any


def wrong_values() -> tuple[Wrong, ...]:
    """Values that are right hardly anywhere."""
    key = jax.random.key(0)
    plain = [None, True, -1, 0, 3, 2500, 2.5, -0.5, 0.0, 1e300, np.nan, np.inf, -np.inf, 1j, "text", "", b"bytes"]
    values: dict[str, Any] = {repr(value): value for value in plain}
    shapes = [(), (0,), (1,), (3,), (3, 3), (2, 3), (0, 2), (3, 1), (2, 1, 2, 1), (1, 1, 1, 1, 1)]
    values |= {f"ones{shape}": jnp.ones(shape) for shape in shapes}
    values |= {f"-ones{shape}": -jnp.ones(shape) for shape in shapes[:5]}
    values |= {f"NumPy ones{shape}": np.ones(shape) for shape in shapes[3:7]}
    for dtype in (jnp.int32, jnp.bool_, jnp.complex64, jnp.float16):
        values |= {f"{jnp.dtype(dtype)}{shape}": jnp.ones(shape, dtype) for shape in ((), (3,), (3, 3))}
    values |= {
        "NaN (3, 3)": jnp.full((3, 3), jnp.nan),
        "infinite (3,)": jnp.full(3, jnp.inf),
        "not symmetric": jnp.arange(9.0).reshape(3, 3),
        "objects": np.array([None, "a"], object),
        "texts": np.array(["x", "y"]),
        "[]": [],
        "{}": {},
        "ragged": [[1.0], [1.0, 2.0]],
        "a list": [1.0, 2.0],
        "a tuple of None": (None, None),
        "falling times": [2.0, 1.0],
        "a dict": {"gamma": 1.0},
        "a key": key,
        "keys": jax.random.split(key, 3),
        "a function": lambda *args: args,
        "a class": js.GradientFlow,
        "a module": js,
        "an object": object(),
        "MSE()": js.losses.MSE(),
        "an observable": js.observe.loss(),
        "a flow": js.GradientFlow(),
        **{f"a good {name}": good()[name] for name in ("net", "problem", "view", "traj", "scaling", "optimizer")},
    }
    return tuple(Wrong(words, value) for words, value in values.items())


# --- calls


class Call(NamedTuple):
    """A call to try."""

    name: str
    arguments: dict[str, Any]
    spoilt: str  # the argument that is wrong
    words: str  # what it is

    def __repr__(self) -> str:
        return f"{self.name}(..., {self.spoilt}={self.words})"


def parameters(name: str) -> list[inspect.Parameter]:
    """The parameters that can be given by name, and those given by position only."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in inspect.signature(public()[name]).parameters.values() if p.kind not in kinds]


def call_of(name: str, spoilt: str, wrong: Wrong) -> Call:
    """One argument wrong, the others right, as far as their names say what is."""
    arguments = {}
    for parameter in parameters(name):
        if parameter.name == spoilt:
            arguments[parameter.name] = wrong.value
        elif parameter.default is inspect.Parameter.empty:
            arguments[parameter.name] = good().get(parameter.name, 1.0)
    return Call(name, arguments, spoilt, wrong.words)


def fault(call: Call) -> str | None:
    """What is wrong with how a call ends; None if it gives a value, or an error of jaxsolve that helps."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = public()[call.name](**call.arguments)
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)])
    except (ValueError, TypeError, KeyError, MemoryError, js.SolveError) as error:
        return _fault_of_error(call, error)
    except Exception as error:
        return f"{type(error).__name__}: {_first_line(error)}"
    finally:
        plt.close("all")
    odd = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, np.ndarray) and leaf.dtype == object]
    passed = odd and odd[0] is call.arguments.get(call.spoilt)  # as nets.partition passes on what is no parameter
    return f"returned an array of objects: {odd[0]!r}" if odd and not passed else None


def _fault_of_error(call: Call, error: Exception) -> str | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_code.co_filename
    said = f"{type(error).__name__}: {_first_line(error)}"
    if not where.startswith(PACKAGE) and "@beartype" not in where:
        return f"raised in {Path(where).name}, not in jaxsolve: {said}"
    names = [p.name for p in parameters(call.name)]
    text = str(error)
    named = any(re.search(rf"(?<![a-z]){re.escape(name)}(?![a-z])", text) for name in names)
    shown = any(part in text for part in (", got ", "got ", " has ", " needs ", repr(call.arguments[call.spoilt])[:20]))
    return None if named or shown else f"names neither argument nor value: {said}"


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


def spoilable() -> list[tuple[str, str]]:
    """Every public name with each of its parameters."""
    return [(name, parameter.name) for name in public() for parameter in parameters(name)]


@pytest.fixture
def without_shape_checks():
    """What users see: the shape checks of the tests would answer first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.slow
@pytest.mark.x64_only
@settings(max_examples=CALLS, deadline=None, suppress_health_check=CHECKS, print_blob=False)
@given(data=st.data())
def test_wrong_arguments_give_a_value_or_a_clear_error(data, without_shape_checks):
    name, spoilt = data.draw(st.sampled_from(spoilable()), label="call")
    wrong = data.draw(st.sampled_from(wrong_values()), label="value")
    call = call_of(name, spoilt, wrong)
    found = fault(call)
    assert found is None, f"{call} {found}"


@pytest.mark.slow
def test_the_fuzzer_finds_what_is_there(monkeypatch):
    """The twin: names that answer with an error of JAX, an assertion, or words that say nothing."""

    def of_jax(x):
        return jnp.linalg.cholesky(x)

    def silent(x):
        raise AssertionError(x)

    monkeypatch.setattr("tests.test_fuzz.public", lambda: {"of_jax": of_jax, "silent": silent})
    for name in ("of_jax", "silent"):
        assert fault(Call(name, {"x": "text"}, "x", "'text'")) is not None
    assert len(spoilable()) == 2


def test_names_that_are_left_out_exist():
    for label in ELSEWHERE:
        room, _, name = label.partition(".")
        assert hasattr(js if room == "jaxsolve" else getattr(js, room), name), f"{label} is no longer public"
    assert len(public()) > 100
