"""What a plan says of functions and values: two that differ are told apart, and what does not change stays itself."""

import functools
import json
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from jaxsolve import Descent
from tests.sweeps.inside import describe_value


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
    vars(transformation).update(itself=transformation, again=transformation.update)
    described = json.loads(_text(transformation.update))["refers to"]["self"]
    assert described["itself"] == described["type"] == "<MultiSteps>"
