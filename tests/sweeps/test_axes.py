import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

from jaxsolve import Descent, observe, sweep, sweeps, Zip
from tests import cases
from tests.sweeps.inside import groups, read_axes


def _double(z):
    return 2 * z


@pytest.mark.parametrize(
    ("values", "traced", "labels"),
    [
        ([0.1, 2.0], True, [0.1, 2.0]),
        ([1, 2.5], True, [1.0, 2.5]),
        ((1.5, np.float64(2.5)), True, [1.5, 2.5]),
        (range(3, 9, 2), True, [3, 5, 7]),
        (np.array([4, 1]), True, [4, 1]),
        (jnp.array([0.5, 0.25]), True, [0.5, 0.25]),
        ([4, 1], False, [4, 1]),
        ([np.int64(4), 1], False, [4, 1]),
        ([True, False], False, [True, False]),
        (["tanh", "relu"], False, ["tanh", "relu"]),
        ([_double, math.exp, "relu"], False, ["_double", "exp", "relu"]),
        ([None, 3], False, ["None", "3"]),
        ([1.5, "auto"], False, None),
    ],
)
def test_what_is_traced_and_what_is_static(values, traced, labels):
    if labels is None:
        with pytest.raises(TypeError, match=r"a value of axis 'a' is float 1\.5; accepted are"):
            read_axes({"a": values})
        return
    ((argument,),) = (axis.arguments for axis in read_axes({"a": values}))
    assert argument.traced == traced
    if argument.labels.dtype.kind == "f":
        np.testing.assert_allclose(argument.labels, labels, rtol=1e-7)
    else:
        np.testing.assert_array_equal(argument.labels, labels)
    assert isinstance(argument.labels, np.ndarray)
    if traced:
        assert jnp.asarray(argument.values).dtype in (jnp.result_type(float), jnp.result_type(int))


def test_callables_without_a_name_are_labelled():
    ((argument,),) = (axis.arguments for axis in read_axes({"a": [partial(math.pow, 2), "x"]}))
    assert "functools.partial" in argument.labels[0]


AXIS = st.one_of(
    st.lists(st.floats(-5, 5, width=32, allow_subnormal=False), min_size=1, max_size=3),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3),
    st.integers(1, 3).map(range),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)


@given(axes=st.lists(AXIS, min_size=1, max_size=4), zipped=st.integers(0, 3))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_groups_cover_the_grid_once(axes, zipped):
    """Each lane gets the arguments of its place in the grid, in C order, whatever the mix of axes."""
    named = {f"x{i}": values for i, values in enumerate(axes)}
    given_axes = [named] if not zipped else [Zip(p=range(zipped), q=["u", "v", "w"][:zipped]), named]
    read = read_axes(given_axes)
    columns = [list(values) for values in named.values()]
    if zipped:
        columns.insert(0, [(i, "uvw"[i]) for i in range(zipped)])
    names = ([("p", "q")] if zipped else []) + [(name,) for name in named]
    assert [axis.dim for axis in read] == ["_".join(part) for part in names]
    lanes = []
    for group in groups(read):
        assert group.static or len(groups(read)) == 1
        for row, lane in enumerate(group.lanes):
            arguments = dict(group.static) | {name: array[row].item() for name, array in group.cells.items()}
            place = np.unravel_index(lane, [len(axis) for axis in read])
            expected = {}
            for part, column, index in zip(names, columns, place, strict=True):
                value = column[index]
                expected |= dict(zip(part, value if len(part) == 2 else (value,), strict=True))
            assert arguments.keys() == expected.keys()
            for name, value in expected.items():
                assert arguments[name] == value
            lanes.append(lane)
    assert sorted(lanes) == list(range(math.prod(len(axis) for axis in read)))


def test_groups_are_the_static_combinations():
    read = read_axes([Zip(width=[2, 4], sigma=[0.1, 0.2]), {"activation": ["tanh", "relu"], "seed": range(3)}])
    found = groups(read)
    assert [group.static for group in found] == [
        {"width": w, "activation": a} for w in (2, 4) for a in ("tanh", "relu")
    ]
    for group in found:
        np.testing.assert_array_equal(group.cells["seed"], [0, 1, 2])
        np.testing.assert_allclose(group.cells["sigma"], np.full(3, 0.1 if group.static["width"] == 2 else 0.2))


def _modes(**arguments):
    raise AssertionError(f"axes are checked before anything is traced, but got {arguments}")


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ({}, ValueError, "a sweep needs at least one axis"),
        ([], ValueError, "a sweep needs at least one axis"),
        ({"rate": []}, ValueError, "axis 'rate' has no values"),
        ({"rate": range(0)}, ValueError, r"axis 'rate' must be a non-empty 1-D array, got shape \(0,\)"),
        ({"rate": 1.0}, TypeError, r"values of axis 'rate' must be a list, a range or a 1-D array, got float 1\.0"),
        ({"rate": "12"}, TypeError, "values of axis 'rate' must be a list"),
        ({"rate": {"a": 1}}, TypeError, "values of axis 'rate' must be a list"),
        ({"rate": np.ones((2, 2))}, ValueError, r"axis 'rate' must be a non-empty 1-D array, got shape \(2, 2\)"),
        ({"rate": np.array(1.0)}, ValueError, "axis 'rate' must be a non-empty 1-D array"),
        ({"rate": [1.0, float("nan")]}, ValueError, "axis 'rate' holds NaN or infinite values"),
        ({"rate": np.array([1.0, np.inf])}, ValueError, "axis 'rate' holds NaN or infinite values"),
        pytest.param(
            {"rate": np.array([1.0, 1e39])},
            ValueError,
            r"axis 'rate' holds 1e\+39, which float32 cannot: give smaller values, or switch JAX to 64 bits",
            marks=pytest.mark.skipif(cases.X64, reason="float64 holds it"),
        ),
        ({"rate": [[1.0], [2.0]]}, TypeError, "a value of axis 'rate' is list .*; accepted are numbers alone"),
        ({"rate": [1j]}, TypeError, "a value of axis 'rate' is complex"),
        ([{"rate": [1.0]}, {"rate": [2.0]}], ValueError, r"a name of its own; \['rate'\] appear more than once"),
        ([{"rate": [1.0]}, Zip(rate=[2.0])], ValueError, r"\['rate'\] appear more than once"),
        ({"rates": Zip(a=[1.0], b=[2.0])}, TypeError, "axis 'rates' is a Zip, which names its axes itself"),
        (
            "rate",
            TypeError,
            r"axes must be a dict of named values, or a list of dicts and Zip\(\.\.\.\), got str 'rate'",
        ),
        (None, TypeError, "axes must be a dict of named values"),
        ([("rate", [1.0])], TypeError, "axes must be a dict of named values"),
        ({"t": [1.0]}, ValueError, r"axes may not be called \['t'\]"),
        ({"loss": [1.0]}, ValueError, r"axes may not be called \['loss'\]"),
        ({"result": [1.0], "wall": [1.0]}, ValueError, r"axes may not be called \['result', 'wall'\]"),
        ({"sample": [1.0]}, ValueError, r"axes may not be called \['sample'\]"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_axes(axes, error, message):
    with pytest.raises(error, match=message):
        sweep(_modes, axes, Descent(optax.sgd(0.1)), [1.0], observe=[observe.loss(), observe.outputs()], progress=False)


def test_bad_zips():
    with pytest.raises(ValueError, match="Zip needs at least one named axis"):
        Zip()
    with pytest.raises(ValueError, match=r"need one length, got {'sigma': 2, 'eta': 3}"):
        Zip(sigma=[0.1, 0.2], eta=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="axis 'sigma' has no values"):
        sweeps.Zip(sigma=[], eta=[])


def test_arguments_of_problem_fn_are_the_axes():
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        sweep(lambda rate: cases.modes([1.0], rate[None]), {"speed": [1.0]}, cases.ModesDecay(), [1.0], progress=False)
