"""Kernels of networks that calculate with complex, half and whole numbers, against the whole Jacobian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import kernels, nets, Problem
from tests.cases import eps
from tests.inside import LayeredJacobian, networks_in


@pytest.fixture(autouse=True)
def as_users_have_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


def whole(net, x1, x2=None):
    params, rest = nets.partition(net)
    rows = jax.jacrev(lambda p, x: jax.vmap(eqx.combine(p, rest))(x))
    flat = lambda x: [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(rows(params, x))]
    pairs = zip(flat(x1), flat(x1 if x2 is None else x2), strict=True)
    return sum(np.einsum("nap,mbp->namb", a, b) for a, b in pairs)


def close(found, expected, units=100):
    np.testing.assert_allclose(found, expected, rtol=0, atol=eps(units) * np.max(np.abs(expected)))


X, W = jr.normal(jr.key(0), (4, 3)), jr.normal(jr.key(1), (2, 3))


@pytest.mark.parametrize(
    "f",
    [
        lambda p, x: jnp.real(p["re"] @ jnp.fft.fft(x)),
        lambda p, x: jnp.imag((p["re"] + 1j * p["im"]) @ x),
        lambda p, x: jnp.abs((p["re"] + 1j * p["im"]) @ x) ** 2,
        lambda p, x: jnp.real(jnp.exp(1j * p["im"][:, 0]) * (p["re"] @ x)),
    ],
)
def test_real_parameters_in_complex_products(f):
    net = nets.Function(f, {"re": W, "im": W[::-1]})
    close(kernels.empirical(net, X).ntk, whole(net, X))
    jacobian = LayeredJacobian(net, X)
    pushed = jacobian.push(nets.partition(net)[0])
    assert pushed.dtype == X.dtype
    outputs = lambda p: jax.vmap(lambda x: f(p, x))(X)
    _, expected = jax.jvp(outputs, (net.params,), (net.params,))
    np.testing.assert_allclose(pushed, expected, rtol=eps(1e3), atol=eps(1e3))


def test_a_number_that_was_rounded_multiplies_as_such():
    net = nets.Function(lambda p, x: (p * x[0].astype(jnp.int32)) @ x, W)
    x = jnp.array([[2.7, 1.0, 0.5], [1.9, -1.0, 2.0]])
    found = kernels.empirical(net, x).ntk
    close(found, whole(net, x))
    np.testing.assert_allclose(found[0, 0, 0, 0], 4 * x[0] @ x[0], rtol=eps(100))  # with 2.7 it would be 7.29


def test_products_of_half_precision_leave_a_kernel_positive():
    half = jnp.bfloat16
    params = {"w": jr.normal(jr.key(2), (64, 4)) / 2, "v": jr.normal(jr.key(3), (1, 64)) / 8}
    net = nets.Function(
        lambda p, x: (p["v"].astype(half) @ (p["w"].astype(half) @ x.astype(half))).astype(x.dtype), params
    )
    x = jr.normal(jr.key(4), (60, 4))
    kernel = kernels.empirical(net, x).ntk
    assert kernel.dtype == x.dtype
    values = np.linalg.eigvalsh(kernel[:, 0, :, 0])
    assert values[0] > -eps(1000) * values[-1]
    kernels.linearized(kernel[:, 0, :, 0], x[:, :1])  # refuses what is not


@pytest.mark.parametrize("tokens", [[0, 6, 7], [6, 0, 1], [5, 5, 0]])
def test_a_look_up_beyond_the_table_is_the_read_out(tokens):
    table = jr.normal(jr.key(5), (6, 4))
    net = nets.Function(lambda p, t: p.at[t].get(mode="fill", fill_value=0.0), table)
    tokens = jnp.array(tokens)
    inside = (tokens < 6)[:, None] & (tokens[:, None] == tokens[None])
    np.testing.assert_array_equal(np.einsum("iaja->ij", kernels.empirical(net, tokens).ntk), 4.0 * inside)


def test_inputs_of_two_shapes_are_refused():
    params = {"w": jr.normal(jr.key(6), (8, 2)), "v": jr.normal(jr.key(7), (1, 8))}
    net = nets.Function(lambda p, x: p["v"] @ jnp.tanh(p["w"] @ jnp.mean(x, axis=0)), params)  # of any length
    short, long = jr.normal(jr.key(8), (4, 3, 2)), jr.normal(jr.key(9), (5, 12, 2))
    with pytest.raises(
        ValueError, match=r"x1 and x2 must hold inputs of one shape and dtype, got .*4, 3, 2.* and .*5, 12, 2"
    ):
        kernels.empirical(net, short, long)
    problem = Problem(net, short, jnp.ones((4, 1)), test=(long, jnp.ones((5, 1))))
    assert problem.test_outputs(problem.params).shape == (5, 1)
    with pytest.raises(ValueError, match="inputs of one shape"):
        problem.kernel(problem.params, long, short)


def test_networks_of_ours_inside_of_others_keep_their_rates():
    scaling = nets.Scaling([1.0, 2.0], [1.0, 1.0], [0.5, 3.0], gamma=0.7)
    inner = nets.MLP(in_size=3, out_size=2, width_size=5, depth=1, activation="tanh", scaling=scaling, key=jr.key(0))
    outer = nets.Function(lambda net, x: net(x), inner)
    close(Problem(outer, X, W[:, :2].repeat(2, 0)).kernel(nets.partition(outer)[0], X),
          Problem(inner, X, W[:, :2].repeat(2, 0)).kernel(nets.partition(inner)[0], X))  # fmt: skip
    trained = jax.tree.leaves(nets.partition(outer)[0])
    assert [leaf.shape for leaf in trained] == [w.shape for w in inner.weights]  # neither gamma nor multipliers
    pair = nets.Function(lambda both, x: (both[0](x) - both[1](x)) / 2**0.5, (inner, inner))
    rates = [float(rate) for rate in jax.tree.leaves(nets.rates(pair))]
    assert rates == [0.5, 3.0, 0.5, 3.0]


def test_parameters_alone_and_stacks_of_networks_train_as_any_module():
    make = lambda key: nets.MLP(
        in_size=3, out_size=2, width_size=5, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=key
    )
    net = make(jr.key(0))
    params, rest = nets.partition(net)
    alone = nets.Function(lambda p, x: eqx.combine(p, rest)(x), params)
    close(kernels.empirical(alone, X).ntk, kernels.empirical(net, X).ntk)
    stack = eqx.filter_vmap(make)(jr.split(jr.key(1), 4))
    mean = nets.Function(lambda nets, x: jnp.mean(eqx.filter_vmap(lambda net: net(x))(nets), axis=0), stack)
    close(kernels.empirical(mean, X).ntk, whole(mean, X))
    assert networks_in(alone) == networks_in(mean) == []
