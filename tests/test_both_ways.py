"""Networks with a backward rule of their own (`jax.custom_vjp`), which have a derivative in forward mode as well."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import assert_fails, eps, slow_after
from tests.inside import both_ways


@jax.custom_vjp
def own_tanh(x):
    return jnp.tanh(x)


own_tanh.defvjp(lambda x: (jnp.tanh(x), jnp.tanh(x)), lambda kept, back: (back * (1 - kept**2),))


@jax.custom_vjp
def row(table, index):
    return table[index]


def _row_back(kept, back):
    shape, index = kept
    return jnp.zeros(shape, back.dtype).at[index].set(back), None


row.defvjp(lambda table, index: (table[index], (table.shape, index)), _row_back)


class Net(eqx.Module):
    """Two layers; `within` says where the rule stands."""

    first: jax.Array
    last: jax.Array
    activation: Any = eqx.field(static=True)
    within: str = eqx.field(static=True)

    def __call__(self, x):
        z = self.first @ x
        if self.within == "scan":
            z, _ = jax.lax.scan(lambda z, shift: (self.activation(z + shift), None), z, jnp.array([0.1, 0.2]))
        elif self.within == "branch":
            z = jax.lax.cond(x[0] > 0, self.activation, jnp.sin, z)
        elif self.within == "call":
            z = jax.jit(jax.checkpoint(lambda z: self.activation(z)))(z)
        elif self.within == "batch":
            z = jax.vmap(self.activation)(z)
        elif self.within == "integers":
            z = self.activation(row(jnp.stack([z, 2 * z]), jnp.asarray(x[0] > 0, jnp.int32)))
        else:
            z = self.activation(z)
        return self.last @ z


WITHIN = ("itself", "scan", "branch", "call", "batch", "integers")


def _net(activation, within="itself"):
    first, last = jr.normal(jr.key(0), (7, 3)), jr.normal(jr.key(1), (2, 7))
    return Net(first, last / 7**0.5, activation, within)


def _problem(activation, within="itself"):
    x = jr.normal(jr.key(2), (6, 3))
    return js.Problem(_net(activation, within), x, jnp.sin(x[:, :2]), test=(x[:2], x[:2, :2]))


@pytest.mark.parametrize("within", WITHIN)
def test_derivatives_of_both_modes_and_of_second_order_are_those_without_the_rule(within):
    own, plain = _problem(own_tanh, within), _problem(jnp.tanh, within)
    assert own.own_rule
    turned = lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)

    @jax.jit
    def seen(problem):
        v = jax.tree.map(turned, problem.params)
        forward = lambda p: jax.jvp(problem.outputs, (p,), (v,))
        curvature = jax.jvp(jax.grad(problem.objective), (problem.params,), (v,))[1]
        twice = jax.jvp(lambda p: forward(p)[1], (problem.params,), (v,))[1]
        kept = jax.grad(lambda p: jnp.sum(jnp.sin(forward(p)[1])))(problem.params)
        back = jax.vjp(problem.test_outputs, problem.params)[1](jnp.ones((2, 2)))
        return jax.tree.leaves((forward(problem.params), curvature, twice, kept, back))

    def check(twin):
        for found, expected in zip(seen(own), seen(twin), strict=True):
            np.testing.assert_allclose(found, expected, atol=eps(30))

    check(plain)
    assert_fails(lambda: check(_problem(jnp.sin, within)))


def test_forward_mode_obeys_the_rule_and_not_the_function():
    @jax.custom_vjp
    def steeper(x):
        return jnp.tanh(x)

    steeper.defvjp(lambda x: (jnp.tanh(x), x), lambda x, back: (3 * back * (1 - jnp.tanh(x) ** 2),))
    x = jnp.array([0.3, -1.0])
    found = jax.jvp(both_ways(steeper), (x,), (jnp.ones(2),))[1]
    np.testing.assert_allclose(found, 3 * (1 - np.tanh(x) ** 2), rtol=eps(10))


@pytest.mark.parametrize("flow", slow_after(1, [js.integrators.FunctionSpace(), js.integrators.ParameterSpace()]))
def test_it_flows_as_without_the_rule_by_what_needs_forward_mode(flow):
    watched = (js.observe.loss(), js.observe.outputs())
    run = lambda activation: js.solve(_problem(activation), js.GradientFlow(flow), [1.0, 5.0], observe=watched)
    own, plain = run(own_tanh), run(jnp.tanh)
    np.testing.assert_allclose(own["outputs"], plain["outputs"], atol=eps(1e4))


def test_conditions_are_located():
    flow = js.GradientFlow(diffrax.Tsit5(), until=js.until.loss_below(0.1))
    run = lambda activation: js.solve(_problem(activation), flow, [0.0, jnp.inf])
    np.testing.assert_allclose(run(own_tanh).t_end, run(jnp.tanh).t_end, rtol=eps(1e4))


def test_products_with_the_kernel():
    own, plain = _problem(own_tanh), _problem(jnp.tanh)
    product = lambda problem: js.kernels.NTKOperator(problem.net, problem.x).mv(problem.y)
    np.testing.assert_allclose(product(own), product(plain), rtol=eps(1e3))


@pytest.mark.slow
def test_it_is_diagnosed_as_without_the_rule():
    found = [
        js.diagnose(problem.net, problem.x, problem.y, steps=20) for problem in map(_problem, (own_tanh, jnp.tanh))
    ]
    assert str(found[0]) == str(found[1])


RULES = {
    "clips": lambda back, x: jnp.clip(back, -0.01, 0.01),
    "adds": lambda back, x: back + 0.1 * x,
    "chooses": lambda back, x: jnp.where(x > 0, back, 0.1),
    "ignores": lambda back, x: 0.1 * x,
    "quantizes": lambda back, x: (100 * back).astype(jnp.int8).astype(back.dtype) / 100,
    "signs": lambda back, x: (back > 0).astype(back.dtype) - (back < 0).astype(back.dtype),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_not_linear_serves_backwards_only(name):
    rule = RULES[name]

    @jax.custom_vjp
    def own(x):
        return x

    own.defvjp(lambda x: (x, x), lambda x, back: (rule(back, x),))
    problem = _problem(own)
    found = jax.grad(problem.objective)(problem.params).first
    back = (problem.net.last.T @ (problem.outputs(problem.params) - problem.y).T) / len(problem.x)
    pulled = jax.vmap(rule, in_axes=1, out_axes=1)(back, problem.net.first @ problem.x.T)
    np.testing.assert_allclose(found, pulled @ problem.x, atol=eps(10))
    assert np.abs(pulled - back).max() > 0.003
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(problem.outputs, (problem.params,), (problem.params,))


def test_who_needs_forward_mode_says_what_else_there_is():
    @jax.custom_vjp
    def own(x):
        return jnp.tanh(x)

    own.defvjp(lambda x: (jnp.tanh(x), x), lambda x, back: (RULES["clips"](back, x),))
    problem = _problem(own)
    said = r"forward mode.*DirectAdjoint.*JAX: can't apply"
    with pytest.raises(TypeError, match=said):
        js.solve(problem, js.GradientFlow(js.integrators.FunctionSpace()), 1.0)
    with pytest.raises(TypeError, match=said):
        js.diagnose(problem.net, problem.x, problem.y, steps=2)
    for dynamics in (js.GradientFlow(diffrax.Tsit5()), js.Descent(optax.sgd(0.1))):
        assert js.solve(problem, dynamics, 1.0)["loss"] < problem.objective(problem.params)


def test_a_rule_may_close_over_arrays_and_meet_data_where_it_is_infinite():
    table = jnp.array([0.5, 2.0])

    @jax.custom_vjp
    def own(w, x):
        return w * jnp.sqrt(x) * table[1]

    def back(kept, back):
        w, x = kept
        return back * jnp.sqrt(x) * table[1], back * w * table[1] / (2 * jnp.sqrt(x))

    own.defvjp(lambda w, x: (own(w, x), (w, x)), back)
    x = jnp.array([0.0, 4.0])
    move = lambda w: both_ways(jax.tree_util.Partial(own, w))(x)
    found = jax.jvp(move, (jnp.ones(2),), (jnp.array([1.0, 3.0]),))[1]
    np.testing.assert_allclose(found, [0.0, 12.0])


@pytest.mark.usefixtures("as_users")
def test_a_network_that_needs_the_value_of_a_weight_is_refused_where_the_problem_is_made():
    class Branching(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * x if self.w > 0 else x

    with pytest.raises(jax.errors.TracerBoolConversionError):
        js.Problem(Branching(jnp.asarray(1.0)), jnp.ones((2, 1)), jnp.ones((2, 1)))


def test_others_are_called_as_they_are():
    assert not _problem(jnp.tanh).own_rule
    assert not _problem(jax.nn.relu).own_rule  # a forward rule of its own
