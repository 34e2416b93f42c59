"""Convolutions in loops: the same numbers, in the layout for which XLA has fast code."""

import re

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest
from jax import lax

import jaxsolve as js
from tests.inside import channels_last


LAYOUTS = [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NCHW", "HWOI", "CWHN"), ("CHNW", "IOHW", "NHCW")]
OPTIONS = [
    {"window_strides": (1, 1), "padding": "SAME"},
    {"window_strides": (2, 1), "padding": ((1, 2), (0, 1)), "rhs_dilation": (1, 2)},
    {"window_strides": (1, 1), "padding": ((0, 0), (1, 1)), "lhs_dilation": (2, 1), "feature_group_count": 2},
]


def _sized(spec, sizes):
    return tuple(sizes[name] for name in spec)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "strides", "groups"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_every_layout_gives_the_same_numbers(layout, options, getkey):
    x = jr.normal(getkey(), _sized(layout[0], {"N": 3, "C": 4, "H": 7, "W": 6}))
    channels = 4 // options.get("feature_group_count", 1)
    kernel = jr.normal(getkey(), _sized(layout[1], {"O": 2, "I": channels, "H": 3, "W": 2}))
    f = lambda x, kernel: lax.conv_general_dilated(x, kernel, dimension_numbers=layout, **options)
    gradient = jax.grad(lambda x, kernel: jnp.sum(jnp.sin(f(x, kernel))), argnums=(0, 1))
    for function in (f, gradient, jax.jit(gradient)):
        found, wanted = channels_last(function)(x, kernel), function(x, kernel)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert one.shape == two.shape
            assert jnp.allclose(one, two, rtol=0, atol=20 * jnp.finfo(one.dtype).eps * jnp.max(jnp.abs(two)))


def test_it_maps_and_differentiates(getkey):
    x, kernel = jr.normal(getkey(), (5, 1, 2, 6)), jr.normal(getkey(), (3, 2, 3))
    f = lambda x: jnp.sum(lax.conv(x, kernel, (1,), "SAME") ** 3)
    assert jnp.allclose(jax.vmap(channels_last(f))(x), jax.vmap(f)(x), rtol=1e-4)
    assert jnp.allclose(jax.hessian(channels_last(f))(x[0]), jax.hessian(f)(x[0]), rtol=1e-3, atol=1e-4)


def test_functions_without_convolutions_stay_as_they_are(getkey):
    x = jr.normal(getkey(), (4,))
    f = lambda x, more: (jax.jit(jnp.sin)(x), jax.nn.relu(x) + more)
    assert all(map(jnp.array_equal, channels_last(f)(x, 2.0), f(x, 2.0)))
    assert "jit" in str(jax.make_jaxpr(channels_last(f))(x, 2.0))


def _network(key):
    first, second, last = jr.split(key, 3)
    return eqx.nn.Sequential([
        eqx.nn.Conv2d(1, 4, 3, padding=1, key=first),
        eqx.nn.Lambda(jnp.tanh),
        eqx.nn.Conv2d(4, 4, 3, padding=1, key=second),
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(4 * 36, 2, key=last),
    ])  # fmt: skip


def _layouts(text):
    """The layouts of a compiled program's convolutions."""
    return set(re.findall(r"convolution\(.*dim_labels=(\w+->\w+)", text))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a layout of CPUs")
@pytest.mark.parametrize(
    "dynamics", [js.Descent(optax.sgd(0.01)), js.GradientFlow(diffrax.Tsit5())], ids=["descent", "flow"]
)
def test_all_convolutions_of_a_run_have_channels_last(dynamics, getkey):
    problem = js.Problem(_network(getkey()), jr.normal(getkey(), (8, 1, 6, 6)), jr.normal(getkey(), (8, 2)))
    run = lambda y: js.solve(eqx.tree_at(lambda problem: problem.y, problem, y), dynamics, 0.05)["loss"]
    assert _layouts(jax.jit(run).lower(problem.y).compile().as_text()) == {"b01f_01io->b01f"}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a layout of CPUs")
def test_a_plain_loop_has_them_not(getkey):
    # Once XLA mends this, `channels_last` can go.
    problem = js.Problem(_network(getkey()), jr.normal(getkey(), (8, 1, 6, 6)), jr.normal(getkey(), (8, 2)))
    step = lambda _, params: jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(problem.objective)(params))
    looped = jax.jit(lambda params: lax.fori_loop(0, 5, step, params))
    assert _layouts(looped.lower(problem.params).compile().as_text()) - {"b01f_01io->b01f"}
