"""Centered problems: what rounding leaves of a difference of large outputs is said."""

import jax
import jax.numpy as jnp
import pytest

from jaxsolve import Problem
from tests.cases import eps, inputs, mlp


def test_a_difference_of_large_outputs_is_warned_of(getkey):
    """That of outputs 1e5 times the targets in float32, 1e13 times in float64."""
    x, y = inputs(getkey()), jnp.ones((4, 2))
    size = 1e-4 / eps()
    for factor, warned in ((0.1, False), (100.0, True)):
        net = mlp(jax.random.key(0), gamma=factor * size)
        if warned:
            with pytest.warns(UserWarning, match="f - f_0 is the difference of outputs"):
                Problem(net, x, y, centered=True)
        else:
            Problem(net, x, y, centered=True)
        Problem(net, x, y)
