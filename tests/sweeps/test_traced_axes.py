"""What a function of a sweep cannot do with an axis whose values it does not know."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import GradientFlow, nets, Problem, solve, sweep


def _net_problem(seed=0, activation="tanh"):
    net = nets.MLP(
        in_size=2,
        out_size=1,
        width_size=4,
        depth=1,
        activation=activation,
        scaling=nets.Scaling.ntk(),
        key=jr.key(seed),
    )
    return Problem(net, jnp.eye(2), jnp.ones((2, 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: _net_problem(seed=int(seed)),
        lambda seed: _net_problem(activation="relu" if seed > 0 else "tanh"),
    ],
)
def test_what_needs_a_traced_axis_is_told_to_make_it_static(make):
    message = r"needs the concrete value of an axis that is traced, one of \['seed'\].*Make this axis static.*jnp.where"
    with pytest.raises(TypeError, match=message):
        sweep(make, {"seed": range(2)}, GradientFlow(), (0.0, 1.0), progress=False)


@pytest.mark.parametrize("within", [lambda f: f, lambda f: lambda params, x: f(params, x)])
@pytest.mark.parametrize("factor", [lambda gamma: gamma, lambda gamma: jnp.ones(2)])
def test_an_array_that_is_closed_over_is_told_where_it_belongs(factor, within):
    def make(gamma):
        gamma = factor(gamma)
        net = nets.Function(within(lambda params, x: jnp.sum(gamma) * jnp.tanh(x) @ params), jnp.ones((2, 1)))
        return Problem(net, jnp.eye(2), jnp.ones((2, 1)))

    with pytest.raises(TypeError, match=r"closes over an array that problem_fn makes.*in the parameters"):
        sweep(make, {"gamma": [0.5, 1.0]}, GradientFlow(), (0.0, 1.0), progress=False)


def test_an_array_among_the_parameters_need_not_train():
    def make(gamma):
        f = lambda params, x: jax.lax.stop_gradient(params["gamma"]) * jnp.tanh(x) @ params["w"]
        return Problem(nets.Function(f, {"w": jnp.ones((2, 1)), "gamma": gamma}), jnp.eye(2), jnp.ones((2, 1)))

    data = sweep(make, {"gamma": [0.5, 1.0]}, GradientFlow(), (0.0, 1.0), progress=False)
    alone = solve(make(jnp.asarray(0.5)), GradientFlow(), (0.0, 1.0))
    np.testing.assert_allclose(data["loss"][0], alone["loss"], rtol=1e-5)


def test_a_seed_is_an_integer():
    message = r"makes a random key of floats, from the axes \['seed'\]; a seed is an integer"
    with pytest.raises(TypeError, match=message):
        sweep(_net_problem, {"seed": [0.0, 1.0]}, GradientFlow(), (0.0, 1.0), progress=False)
