"""What a function of a sweep cannot do with an axis whose values it does not know."""

import jax.numpy as jnp
import jax.random as jr
import pytest

from jaxsolve import GradientFlow, nets, Problem, sweep


def _net_problem(seed=0, activation="tanh"):
    net = nets.MLP(2, 4, 1, 1, activation, scaling=nets.Scaling.ntk(), key=jr.key(seed))
    return Problem(net, jnp.eye(2), jnp.ones((2, 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: _net_problem(seed=int(seed)),
        lambda seed: _net_problem(activation="relu" if seed > 0 else "tanh"),
    ],
)
def test_what_needs_a_traced_axis_is_told_to_make_it_static(make):
    message = r"needs to know the value of an axis that is traced, one of \['seed'\].*Make this axis static.*jnp.where"
    with pytest.raises(TypeError, match=message):
        sweep(make, {"seed": range(2)}, GradientFlow(), (0.0, 1.0), progress=False)


def test_a_seed_is_an_integer():
    message = r"makes a random key of floats, of an axis of \['seed'\]; a seed is an integer"
    with pytest.raises(TypeError, match=message):
        sweep(_net_problem, {"seed": [0.0, 1.0]}, GradientFlow(), (0.0, 1.0), progress=False)
