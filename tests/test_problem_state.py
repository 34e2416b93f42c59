"""Networks with a state: the batch normalization of equinox."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import diagnose, kernels, nets, Problem
from tests.cases import eps
from tests.inside import takes_state


class _Normalized(eqx.Module):
    """A small network with equinox's own batch normalization."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, mode: Literal["ema", "batch"], momentum: float):
        keys = jax.random.split(jax.random.key(0))
        self.first, self.last = eqx.nn.Linear(3, 5, key=keys[0]), eqx.nn.Linear(5, 2, key=keys[1])
        self.norm = eqx.nn.BatchNorm(5, "batch", momentum=momentum, mode=mode)

    def __call__(self, x, state):
        h, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(h)), state


@pytest.mark.parametrize(("mode", "momentum"), [("batch", 0.0), ("batch", 0.99), ("ema", 0.99)])
@pytest.mark.parametrize("used", [False, True])
def test_statistics_are_of_the_training_set_whatever_the_momentum(mode, momentum, used):
    net, state = eqx.nn.make_with_state(_Normalized)(mode, momentum)
    x, y = jax.random.normal(jax.random.key(1), (6, 3)), jnp.ones((6, 2))
    if used:  # the statistics of other data are in it
        _, state = jax.vmap(net, (0, None), (0, None), axis_name="batch")(5 + 3 * x, state)
    start = Problem(net, x, y, test=(x, y), state=state)
    h = np.asarray(jax.vmap(net.first)(x))
    h = (h - h.mean(0)) / np.sqrt(h.var(0) + net.norm.eps)
    expected = jax.vmap(net.last)(np.tanh(h))  # pyright: ignore[reportArgumentType]
    found = (start.outputs(start.params), start.predict(start.params, x), start.test_outputs(start.params))
    for f in found:
        np.testing.assert_allclose(f, expected, atol=eps(20))


class _Frozen(eqx.Module):
    """A network that brings its state along."""

    net: Any
    state: eqx.nn.State

    def __call__(self, x):
        return self.net(x, self.state)[0]


def _made() -> Any:
    return eqx.nn.make_with_state(_Normalized)("ema", 0.9)


@pytest.mark.parametrize("way", ["function", "module"])
def test_statistics_that_stay(way):
    """As the message says; the same network without batch normalization is the other path."""
    net, state = _made()
    x, y = jax.random.normal(jax.random.key(1), (6, 3)), jnp.ones((6, 2))
    _, state = jax.vmap(net, (0, None), (0, None), axis_name="batch")(x, state)
    with pytest.raises(ValueError, match=r"has state.*js.nets.Function\(lambda net, x: net\(x, state\)\[0\], frozen\)"):
        kernels.empirical(net, x)
    frozen: Any = eqx.nn.inference_mode(net)
    given = nets.Function(lambda net, x: net(x, state)[0], frozen) if way == "function" else _Frozen(frozen, state)
    mean, variance = state.get(net.norm.ema_state_index)
    scale = 1 / jnp.sqrt(variance + net.norm.eps)

    def plain(parts, x):
        first, norm, last = parts
        h = norm["weight"] * (first(x) - mean) * scale + norm["bias"]
        return last(jnp.tanh(h))

    twin = nets.Function(plain, (net.first, {"weight": net.norm.weight, "bias": net.norm.bias}, net.last))
    expected = kernels.empirical(twin, x).ntk
    problem = Problem(given, x, y)
    np.testing.assert_allclose(problem.kernel(problem.params, x), expected, atol=eps(100) * np.max(expected))
    found, plain_one = (diagnose(net, x, y, steps=2) for net in (given, twin))
    np.testing.assert_allclose(found["kernel_change"], plain_one["kernel_change"], rtol=eps(400))  # measured: 45


def test_who_brings_the_state_along():
    net, state = _made()
    frozen = eqx.nn.inference_mode(net)
    call = lambda net, x, *, state: net(x, state)[0]
    assert takes_state(net)
    assert takes_state(eqx.nn.Sequential([net.norm]))
    assert not takes_state(net.first)
    assert not takes_state(eqx.nn.Sequential([_Frozen(frozen, state), eqx.nn.Lambda(jnp.tanh)]))
    assert takes_state(jax.tree_util.Partial(call, frozen))
    assert not takes_state(jax.tree_util.Partial(call, frozen, state=state))
