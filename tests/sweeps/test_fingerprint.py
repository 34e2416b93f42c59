"""What a plan says of functions and values: two that differ are told apart, and what does not change stays itself."""

import enum
import functools
import hashlib
import json
import logging
import random
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from beartype import beartype
from jaxtyping import jaxtyped

from jaxsolve import Descent, observe
from tests import cases
from tests.sweeps.inside import describe_value, plan_facts, read_plan, require_same_plan


def _text(value):
    return json.dumps(describe_value(value), allow_nan=False)


def _power(x, scale=1.0):
    return scale * x**2


# Transformed functions


def test_transformations_of_libraries_are_described_with_their_settings():
    made = [
        _power,
        jax.grad(_power),
        jax.grad(_power, argnums=1),
        jax.value_and_grad(_power),
        jax.vmap(_power),
        jax.vmap(_power, in_axes=(0, None)),
        jax.vmap(jax.grad(_power)),
        jax.vmap(jax.grad(_power, argnums=1)),
        jax.vmap(jax.vmap(_power)),
        jax.jacfwd(_power),
        jax.hessian(_power),
        jnp.vectorize(_power, signature="(n)->()"),
        jax.jit(eqx.filter_vmap(_power, in_axes=1)),
        jax.jit(eqx.filter_vmap(_power, in_axes=0)),
    ]
    assert len({_text(function) for function in made}) == len(made)
    # The same is described alike when it is made again, and where only how it runs is another.
    assert _text(jax.vmap(jax.grad(_power))) == _text(jax.vmap(jax.grad(_power)))
    assert "0x" not in _text(made)
    for same in (jax.jit, functools.cache, lambda f: jax.jit(functools.lru_cache(f)), functools.singledispatch):
        assert _text(same(_power)) == _text(_power)
        assert _text(same(jax.grad(_power))) == _text(jax.grad(_power))
    assert describe_value(jnp.tanh) == "jax.tanh"
    assert describe_value(jax.grad(jnp.tanh)) != describe_value(jnp.tanh)


# Imports inside of functions


def _by_name():
    import own_models_of_tests  # pyright: ignore[reportMissingImports]

    return own_models_of_tests.make()


def _from_it():
    def later():
        from own_models_of_tests import make as made  # pyright: ignore[reportMissingImports]

        return made()

    return later()


def _from_a_package():
    import own_package_of_tests.inner as inner  # pyright: ignore[reportMissingImports]

    return inner.make()


def _of_a_module_that_fails():
    import json.tool  # noqa: F401

    import no_such_module_of_tests  # noqa: F401  # pyright: ignore[reportMissingImports]
    import own_broken_of_tests  # noqa: F401  # pyright: ignore[reportMissingImports]


def _of_a_branch(debug=False):
    if debug:
        import own_models_of_tests  # noqa: F401  # pyright: ignore[reportMissingImports]


@pytest.mark.parametrize("function", [_by_name, _from_it, _from_a_package])
def test_modules_of_the_user_that_a_function_imports_are_described(function, tmp_path, monkeypatch):
    """Also before they are loaded."""
    text = "SCALE = 1.0\ndef make():\n    return SCALE\n"
    (tmp_path / "own_models_of_tests.py").write_text(text)
    (tmp_path / "own_package_of_tests").mkdir()
    (tmp_path / "own_package_of_tests" / "__init__.py").write_text("")
    (tmp_path / "own_package_of_tests" / "inner.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    try:
        first = _text(function)
        assert _text(function) == first
        name = "own_package_of_tests.inner" if function is _from_a_package else "own_models_of_tests"
        sys.modules[name].SCALE = 3.0  # pyright: ignore[reportAttributeAccessIssue]
        assert _text(function) != first
    finally:
        for name in set(sys.modules) - loaded:
            del sys.modules[name]


def test_imports_that_fail_or_are_of_libraries_are_passed_over(tmp_path, monkeypatch):
    (tmp_path / "own_broken_of_tests.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    assert set(describe_value(_of_a_module_that_fails)) == {"function", "code"}
    assert "json.tool" not in sys.modules


def test_a_module_that_may_never_be_imported_is_not_loaded(tmp_path, monkeypatch):
    (tmp_path / "own_models_of_tests.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    _text(_of_a_branch)
    assert "own_models_of_tests" not in sys.modules


# Methods


def test_methods_of_objects_of_libraries_are_described_by_what_the_objects_hold():
    def steps(rate, every=2):
        return Descent(optax.MultiSteps(optax.sgd(rate), every).gradient_transformation(), rate=0.1)

    assert _text(steps(0.1)) == _text(steps(0.1))
    assert len({_text(steps(0.1)), _text(steps(0.2)), _text(steps(0.1, 3))}) == 3


def test_methods_stay_themselves_when_objects_remember():
    """Caches of libraries, and cached properties, come with use."""
    say = logging.getLogger("jaxsolve.tests.fingerprint").isEnabledFor
    first = _text(lambda: say)
    say(logging.INFO)
    assert _text(lambda: say) == first

    class Squares:
        @functools.cached_property
        def four(self):
            return 2**2

    squares = Squares()
    first = _text(squares)
    assert squares.four == 4
    assert _text(squares) == first


def test_an_object_may_hold_its_own_methods():
    transformation = optax.MultiSteps(optax.sgd(0.1), 2)
    vars(transformation).update(_opt=transformation, unnamed=1.0)  # the method reads the first alone
    described = json.loads(_text(transformation.update))["refers to"]["self"]
    assert described["_opt"] == described["type"] == "<MultiSteps>"
    assert "unnamed" not in described


def test_what_objects_of_the_standard_library_remember_is_no_setting():
    draw = random.Random(0).gauss
    first = _text(draw)
    draw(0.0, 1.0)
    assert _text(draw) == first


@jaxtyped(typechecker=beartype)
def _checked(x: float) -> float:
    return x


def test_checks_of_types_are_no_setting():
    assert set(describe_value(_checked)) == {"function", "code"}


# Values


class Slots:
    __slots__ = ("__hidden", "shown", "unset")

    def __init__(self, shown, hidden=0.0):
        self.shown, self.__hidden = shown, hidden


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("*", "+"),
        (1 + 0j, 3 + 0j),
        ({(0, 1): 1.0}, {(0, 1): 3.0}),
        ({(0, 1): 1.0}, {(0, 2): 1.0}),
        (Slots(1.0), Slots(3.0)),
        (Slots(1.0), Slots(1.0, 2.0)),
        (b"a", b"b"),
        (bytearray(b"a"), bytearray(b"b")),
        (Path("a"), Path("b")),
        (slice(0, 1), slice(0, 2)),
        ([Path("a"), b"a", 1j, slice(1)], [Path("a"), b"b", 1j, slice(1)]),
    ],
)
def test_values_that_a_function_refers_to(one, other):
    before, again, now = (describe_value(lambda: value) for value in (one, one, other))  # noqa: B023
    assert before == again
    for old, new in ((before, now), (now, before)):
        with pytest.raises(ValueError, match=r"problem_fn\.refers to\.value.* in the store"):
            _agree({"problem_fn": old}, {"problem_fn": new})


def test_values_that_a_class_holds(monkeypatch):
    """Its text may name a constant, and others may set it."""

    class Held:
        scale = len("a")

    described = lambda: describe_value(lambda rate: Held.scale * rate)
    before = described()
    assert described() == before
    monkeypatch.setattr(Held, "scale", 64)
    with pytest.raises(ValueError, match=r"refers to\.Held.*scale: 1 in the store, 64 now"):
        _agree({"problem_fn": before}, {"problem_fn": described()})


def _agree(old, new, **drawn):
    precision = {"x64": cases.X64, "prng": "threefry2x32", "threefry_partitionable": True}
    require_same_plan(
        Path("run.zarr"),
        Path("manifest.json"),
        {"precision": {"x64": cases.X64}} | old,
        {"precision": precision | drawn} | new,
    )


def test_how_random_numbers_are_drawn_is_of_the_plan():
    """Older stores do not say it; those agree with JAX's defaults."""
    facts = lambda: plan_facts(
        read_plan(lambda rate: rate, {"rate": [1.0]}, cases.ModesDecay(), [1.0], observe=[observe.loss()])
    )["precision"]
    assert facts() == facts() | {"prng": "threefry2x32", "threefry_partitionable": True}
    with jax.default_prng_impl("rbg"), jax.threefry_partitionable(False):
        assert facts() == facts() | {"prng": "rbg", "threefry_partitionable": False}
    _agree({}, {})
    _agree({"precision": "*"}, {}, prng="rbg")
    with pytest.raises(ValueError, match=r'precision\.prng: "threefry2x32" in the store, "rbg" now'):
        _agree({}, {}, prng="rbg")
    with pytest.raises(ValueError, match=r"precision\.threefry_partitionable: true in the store, false now"):
        _agree({}, {}, threefry_partitionable=False)


def test_integers_are_not_the_floats_that_they_equal(tmp_path):
    """10 ** -1 of integers is none; a store of them is not carried on with floats."""

    def problem(power):
        return cases.modes([1.0], 10 ** (1 - power) * jnp.ones(1))

    def plan(values):
        return plan_facts(
            read_plan(problem, {"power": values}, Descent(optax.sgd(0.1)), [1.0], observe=[observe.loss()])
        )

    whole, real = plan([1, 2]), plan([1.0, 2.0])
    require_same_plan(tmp_path, tmp_path / "manifest.json", json.loads(json.dumps(whole)), whole)
    with pytest.raises(ValueError, match="another plan"):
        require_same_plan(tmp_path, tmp_path / "manifest.json", json.loads(json.dumps(whole)), real)


def test_members_of_enumerations_are_the_values_that_a_manifest_holds(tmp_path):
    class Kind(enum.IntEnum):
        ONE = 1

    class Name(enum.StrEnum):
        TWO = "two"

    held = {
        "plan": {"a": Kind.ONE, "b": [Name.TWO]},
        "precision": {"x64": True, "prng": "", "threefry_partitionable": True},
    }
    require_same_plan(tmp_path, tmp_path / "manifest.json", json.loads(json.dumps(held)), held)


def test_another_minor_version_is_not_another_plan():
    """The syntax tree by hand, without what only some versions of Python have."""

    def plain(x):
        return x + 1

    for function, text in (
        (lambda x: x + 1, "[arguments(args=[arg(arg='x')]),BinOp(left=Name(id='x'),op=Add(),right=Constant(value=1))]"),
        (
            plain,
            "[arguments(args=[arg(arg='x')]),Return(value=BinOp(left=Name(id='x'),op=Add(),right=Constant(value=1)))]",
        ),
    ):
        assert hashlib.sha256(text.encode()).hexdigest()[:16] in _text(function)
