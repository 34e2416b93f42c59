"""The reader of programs: what it follows through calls, branches and loops, against running them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.cases import assert_fails
from tests.inside import depends_on_inputs, equations, read, Rules, Steps


@jax.custom_jvp
def ruled(x, y):
    return jnp.sin(x), y + 1


ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents))


@jax.custom_vjp
def pulled(x, y):
    return 2 * x, y


pulled.defvjp(lambda x, y: (pulled(x, y), None), lambda _, back: back)


def _shift(a, b):
    """Each of four numbers takes the place of the next: it takes as many steps until all depend on the first."""
    step = lambda carry, _: ((a, *carry[:-1]), carry[-1])
    carry, last = lax.scan(step, (b, b, b, b), None, length=6)
    return *carry, last[-1]


def _nested(a, b):
    """Loops in a loop, in a call."""
    inner = lambda _, pair: (pair[1], lax.fori_loop(0, 2, lambda _, z: z + a, b))
    return jax.jit(lambda: lax.fori_loop(0, 3, inner, (b, b)))()


# Functions of two numbers that return several: each of these is to depend on the first number or not.
PROGRAMS = {
    "operations": lambda a, b: (a * b, b + 1, jnp.zeros(())),
    "a call": lambda a, b: jax.jit(lambda a, b: (a, b))(a, b),
    "a call in a call": lambda a, b: jax.jit(lambda a, b: jax.checkpoint(lambda a, b: (b, jnp.sin(a)))(a, b))(a, b),
    "a rule for forward mode": ruled,
    "a rule for the way back": pulled,
    "a scan": _shift,
    "a scan of rows": lambda a, b: lax.scan(lambda c, row: (c + b, row * b), b, a * jnp.arange(3.0)),
    "branches": lambda a, b: lax.cond(b > 0, lambda: (a, b), lambda: (b, b)),
    "the other branch": lambda a, b: lax.cond(b > 0, lambda: (b, b), lambda: (b, a)),
    "the number that chooses": lambda a, b: lax.cond(a > 0, lambda: b, lambda: 2 * b),
    "a loop": lambda a, b: lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] + a, c[2] + b), (b, b, b)),
    "what ends a loop": lambda a, b: lax.while_loop(lambda c: c < 3 * a, lambda c: c + 1, b),
    "loops in a loop": _nested,
}


def _moves(f, first):
    """Which outputs change where the first number does."""
    outputs = [[np.asarray(out) for out in jax.tree.leaves(f(a, jnp.asarray(0.5)))] for a in first]
    return [any(not np.array_equal(out, first) for out in others) for first, *others in zip(*outputs, strict=True)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_which_outputs_depend_on_an_input(name):
    f = PROGRAMS[name]
    program = jax.make_jaxpr(f)(1.0, 0.5)
    if name in ("branches", "the other branch"):  # both are seen in the program, one in a run
        either = [_moves(lambda a, b, sign=sign: f(a, sign * b), (-2.0, -1.0, 1.0, 2.5)) for sign in (-1, 1)]
        expected = [any(pair) for pair in zip(*either, strict=True)]
    else:
        expected = _moves(f, (-2.0, -1.0, 1.0, 2.5))
    assert depends_on_inputs(program, [True, False]) == expected
    assert depends_on_inputs(program, [False, False]) == [False] * len(expected)
    assert any(expected)


@pytest.mark.parametrize("name", ["a scan", "branches", "a loop", "loops in a loop"])
def test_what_is_joined_counts(name):
    """Twin: rules that keep the first of two values, as if a loop had one step and a branch were the first."""
    program = jax.make_jaxpr(PROGRAMS[name])(1.0, 0.5)
    any_of = lambda eqn, values: [any(values)] * len(eqn.outvars)
    by = lambda join: read(program, [True, False], Rules(lambda _: False, any_of, join=join))
    expected = depends_on_inputs(program, [True, False])
    assert by(lambda one, two: one or two) == expected
    assert_fails(lambda: np.testing.assert_array_equal(by(lambda one, two: one), expected))


def test_rules_say_what_is_entered():
    """By default all that runs a program, down to single operations."""
    names = lambda enters: _applied(PROGRAMS["a call in a call"], enters)
    assert names(None) == ["sin"]
    assert names(lambda eqn, _: eqn.primitive.name in ("jit", "pjit")) in (["checkpoint"], ["remat2"], ["remat"])


def _applied(f, enters):
    seen = []

    def apply(eqn, values):
        seen.append(eqn.primitive.name)
        return [None] * len(eqn.outvars)

    rules = Rules(lambda _: None, apply) if enters is None else Rules(lambda _: None, apply, enters)
    read(jax.make_jaxpr(f)(1.0, 0.5), [None, None], rules)
    return seen


def test_every_equation_is_found():
    """Those of loops in loops, of conditions and of all branches, in the order of the program."""

    def f(x):
        x = lax.while_loop(lambda x: jnp.cos(x) < 0, lambda x: lax.fori_loop(0, 2, lambda _, x: jnp.exp(x), x), x)
        return lax.cond(x > 0, jnp.sin, jax.jit(jnp.tan), x)

    found = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(f)(1.0))]
    assert found[0] == "while"
    assert {"cos", "exp", "cond", "sin", "tan"} <= set(found)
    assert found.index("exp") < found.index("cond") < found.index("sin")


@pytest.mark.parametrize("name", ["a scan", "a call in a call", "the number that chooses", "a rule for forward mode"])
def test_steps_run_as_the_function_does(name):
    """Written by its own rules: what is entered becomes steps, what is not is one step."""
    f, given = PROGRAMS[name], (jnp.asarray(1.5), jnp.asarray(0.5))
    closed, steps = jax.make_jaxpr(f)(*given), Steps()
    inputs = [steps.slot(var.aval) for var in closed.jaxpr.invars]
    enters = lambda eqn, _: eqn.primitive.name in ("jit", "pjit", "checkpoint", "remat", "remat2")
    outputs = read(closed, inputs, Rules(steps.constant, steps.apply, enters))
    held = steps.values | dict(zip(inputs, given, strict=True))
    for step in steps.steps:
        held |= zip(step.outputs, step.call(*(held[slot] for slot in step.inputs)), strict=True)
    for slot, expected in zip(outputs, jax.tree.leaves(f(*given)), strict=True):
        np.testing.assert_array_equal(held[slot], expected)
        assert steps.shapes[slot].shape == np.shape(expected)
