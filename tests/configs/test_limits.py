"""A small config asks for no large machine: what is too much is refused before it is computed, in one line."""

import re
import time
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import GradientFlow
from jaxsolve.configs import ConfigError, read_config
from tests.configs.small import changed, small
from tests.inside import Formula, parse_config, SPACINGS


SECONDS = 20.0  # most take milliseconds, on an idle machine; what is not bounded takes minutes, or all the memory


@pytest.fixture
def refused(tmp_path):
    """Reads the text of a config that is refused, and gives back the words."""

    def refused(text: str | bytes) -> str:
        path = tmp_path / "config.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        begin = time.perf_counter()
        with pytest.raises(ConfigError) as caught:
            read_config(path)
        assert time.perf_counter() - begin < SECONDS
        words = str(caught.value)
        assert len(words.splitlines()) == 1
        assert words.isprintable()
        assert len(words) <= 2000
        return words

    return refused


LARGE = {"type": "gaussian", "n_train": 10**5, "in_size": 10**5, "key": 0}

WIDE = {"type": "MLP", "in_size": 4, "width_size": 30_000, "depth": 2, "out_size": 1, "scaling": "ntk", "key": 0}


def _refused_table(name, changes):
    begin = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        parse_config(changed(small(name), changes))
    assert time.perf_counter() - begin < SECONDS
    return str(caught.value)


# Formulas


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("=9**9**9", {}, "an integer of more than 64 bits"),
        ("=2**64", {}, "an integer of more than 64 bits"),
        ("=(2**40)*(2**40)", {}, "an integer of more than 64 bits"),
        ("=2.5**1e9", {}, "has no value"),
        ("=a**a**a", {"a": 99}, "an integer of more than 64 bits"),
        ("=a % b", {"a": "%999999999d", "b": 1}, "arithmetic is for numbers, got str"),
        ("=a * b", {"a": "text", "b": 10**10}, "arithmetic is for numbers, got str"),
        ("=max(a, b)", {"a": "text", "b": "text"}, "arithmetic is for numbers, got str"),
        ("=round(5, -10**10)", {}, "round keeps at most 20 digits"),
        ("=(-1)**0.5", {}, "the result is complex"),
        ("=exp(1e6)", {}, "has no value"),
    ],
)
def test_formulas_are_bounded_before_they_are_computed(text, values, message):
    begin = time.perf_counter()
    with pytest.raises(ConfigError, match=message):
        Formula(text, "here").value(values)
    assert time.perf_counter() - begin < SECONDS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=" + "-" * 10**6 + "1", "a formula of 1000002 characters; at most 1000 are read"),
        ("=" + "-" * 900 + "1", "nested more than 50 times|is not a formula"),
        ("=" + "(" * 400 + "1" + ")" * 400, "is not a formula"),
        ("=" + "1+" * 400 + "1", "nested more than 50 times"),
        ("=" + "9" * 900, "holds an integer of more than 64 bits"),
        ("=0x" + "f" * 900, "holds an integer of more than 64 bits"),
        ("=1\0", "is not a formula"),
    ],
)
def test_long_and_deep_formulas_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Formula(text, "here")


def test_large_powers_of_traced_numbers():
    """As a formula over an axis with a point: the power is not multiplied out."""
    power = jax.jit(lambda gamma: Formula("=gamma**(10**10)", "here").value({"gamma": gamma}))
    assert power(jnp.ones(())) == 1
    assert power(jnp.asarray(0.5)) == 0
    assert Formula("=2**63 + gamma", "here").value({"gamma": 1}) == 2**63 + 1


# Counts and sizes


@pytest.mark.parametrize("count", [5 * 10**8, 10**12, 2**62])
@pytest.mark.parametrize("name", ["linspace", "geomspace", "range"])
def test_counts(name, count):
    value = {name: count if name == "range" else [1.0, 2.0, count]}
    words = f"{name} would make {count} values; at most 1000000 are accepted"
    assert _refused_table("kunin_grid", {"axes.tau": value}) == f"axes.tau: {words}"
    if name != "range":
        assert _refused_table("kunin_grid", {"times": [0, value]}) == f"times: {words}"


@pytest.mark.parametrize("part", ["axes", "zip", "times"])
def test_values_of_a_file_are_counted_while_they_are_made(part, monkeypatch):
    """Any number of tables fits into a small file: no third one of the largest size is made."""
    made = []
    monkeypatch.setitem(SPACINGS, "linspace", lambda *given: made.append(given) or np.linspace(*given))
    several = {f"a{i}": {"linspace": [0.0, 1.0, 10**6]} for i in range(5)}
    changes = {"axes": {"axes": several}, "zip": {"zip": [several]}, "times": {"times": [*several.values()]}}[part]
    assert "values; at most 2000000 are accepted" in _refused_table("kunin_grid", changes)
    assert len([given for given in made if given[2] == 10**6]) <= 2


@pytest.mark.parametrize("arguments", [[], [1, 2, 0], [1, 2, 3, 4], [0, 10**12, 1], [10**12, 0, -1], [-(10**12), 1]])
def test_ranges(arguments):
    assert _refused_table("kunin_grid", {"axes.seed": {"range": arguments}}).startswith("axes.seed: range ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes.tau": {"linspace": [0.1, 1, 10**6]}}, "axes make 10000000 lanes; at most 1000000 are accepted"),
        ({"problem.data.n_train": 10**10}, "problem.data.n_train is 10000000000; a config may ask for at most 1000000"),
        ({"problem.data": LARGE}, "problem.data makes an array of 10000000000 numbers"),
        ({"problem.network.depth": 10**7}, "problem.network.depth is 10000000; a config may ask for at most 100"),
        (
            {"problem.network.width_size": 10**9},
            "problem.network.width_size is 1000000000; a config may ask for at most 1000000",
        ),
        (
            {"problem.data.teacher.width_size": 10**6, "problem.data.teacher.in_size": 10**6},
            "teacher makes an array of 10000",
        ),
        ({"problem.data.teacher": WIDE}, "teacher makes an array of 900000000 numbers"),
        (
            {"problem.data": {"type": "modular_addition", "modulus": 500, "n_train": 10, "key": 0}},
            "data makes an array of",
        ),
        ({"dynamics": {"type": "Descent", "optimizer": "sgd", "batch_size": 10**12}}, "dynamics"),
        ({"observe": [{"type": "kernel_spectrum", "top": 10**12}]}, r"observe\[0\].top is 1000000000000; "),
    ],
)
def test_sizes(changes, message):
    assert re.search(message, _refused_table("kunin_grid", changes))


def test_compilations():
    changes = {"axes": {"width": list(range(1, 51)), "depth": list(range(1, 51)), "seed": {"range": 2}}}
    assert _refused_table("kunin_grid", changes) == "axes make 2500 compilations; at most 1000 are accepted"
    padded = {"axes.width": {"padded": list(range(1, 1101))}, "axes.scale": [1.0], "axes.seed": {"range": 2}}
    assert parse_config(changed(small("geiger"), padded)).axes


def test_a_size_from_a_formula():
    """Known only where a cell is made."""
    table = changed(small("geiger"), {"problem.network.width_size": "=width * 10**9"})
    problem = parse_config(table).problem_fn
    with pytest.raises(
        ConfigError, match="problem.network.width_size is 4000000000; a config may ask for at most 1000000"
    ):
        problem(width=4, scale=1.0, seed=0)


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# " + "x" * 20_000_000, "is larger than 1000000 bytes"),
        ("x = " + "[" * 100_000, "is nested more than 32 times"),
        ("x = " + "{a=" * 100_000, "is nested more than 32 times"),
        ("a" + ".a" * 400_000 + " = 1", "is nested more than 32 times"),
        ('"a="' + '."="' * 200_000 + " = 1", "is nested more than 32 times"),
        ("[" + "a." * 400_000 + "a]", "is nested more than 32 times"),
        ('x = "' + '\\"' * 400_000, "is not a TOML file"),
        ('x = """' + '\\"""' * 200_000, "is not a TOML file"),
        ("x = " + "9" * 10_000, "is not a TOML file|an integer of more than 64 bits"),
        ("times = 0x" + "f" * 10_000, "times holds an integer of more than 64 bits"),
        ("times = 2020-01-01", "times must be a number, a string, true or false, got date 2020-01-01"),
        ("times = [" + '"=1",' * 2000 + "]", "there are 2000 formulas, but at most 1000 are read"),
        (b"\xff\xfe", "is not a TOML file"),
        ("x" * 500_000 + " = 1", r"\[...\]"),
    ],
)
def test_files(refused, text, message):
    assert re.search(message, refused(text))


def test_the_points_of_texts_and_numbers_are_no_nesting(tmp_path):
    path = tmp_path / "config.toml"
    comment = "# " + "." * 100 + " [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ \n"
    path.write_text(comment + 'x = "' + "[." * 50 + '"\n' + "y = [" + "0.5, " * 100 + "]")
    with pytest.raises(ConfigError, match="'x' is not a known part of a config"):
        read_config(path)


def test_what_a_config_holds_is_no_command_of_a_terminal(refused):
    words = refused('"\\u001b]0;title\\u0007\\nsecond line" = 1')
    assert "\\x1b" in words
    assert "second line" in words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("times = 1e400", "needs problem"),
        ("[axes]\nx = { range = 1e400 }", "needs problem"),
    ],
)
def test_numbers_without_end(refused, text, message):
    assert message in refused(text)
    assert tomllib.loads(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes.seed": {"range": float("inf")}}, "axes.seed: range does not take float inf"),
        ({"axes.tau": {"linspace": [0, 1, float("inf")]}}, "axes.tau: linspace does not take float inf"),
        ({"axes.tau": {"linspace": ["a", "b", "c"]}}, "axes.tau: linspace does not take str 'a'"),
        ({"axes.tau": {"padded": 3}}, "axes: widths of axis 'tau' must be a list of integers"),
        ({"axes.tau": {"padded": [1, 2], "range": 3}}, "axes.tau must hold padded alone, got padded, range"),
        ({"problem.network.scaling.sigma": ["=1e400**9", "=1"]}, "problem|has no value"),
        ({"problem.network.width_size": "=1e400"}, "problem.network: "),
    ],
)
def test_infinite_numbers(changes, message):
    make = lambda: parse_config(changed(small("kunin_grid"), changes)).problem_fn(tau=0.5, delta=0.5, seed=1)
    with pytest.raises(ConfigError) as caught:
        make()
    assert re.search(message, str(caught.value))


def test_integrators_within_integrators():
    flow = lambda integrator: {"dynamics": {"type": "GradientFlow", "integrator": integrator}}
    for euler in ("Euler", {"type": "Euler"}):
        found = parse_config(changed(small("kunin_grid"), flow({"type": "HalfSolver", "solver": euler})))
        assert isinstance(found.dynamics, GradientFlow)
        assert found.dynamics.name == "GradientFlow(HalfSolver)"
        words = _refused_table("kunin_grid", flow(euler))
        assert words.startswith("dynamics: Euler gives no error estimate; use an adaptive solver")
    assert "'Eule' is not a known integrator" in _refused_table(
        "kunin_grid", flow({"type": "HalfSolver", "solver": "Eule"})
    )
