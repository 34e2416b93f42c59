"""The transformer by hand: its forward pass, its kernel, and what its flow conserves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.nets import Scaling, Transformer
from tests.cases import assert_fails, eps
from tests.nets.images import drifts, relu, velocity
from tests.nets.twins import left_out


SCALING = Scaling(
    multiplier=np.array([1.2, 0.9, 0.8, 1.1, 0.7, 1.3, 0.6, 0.5, 1.4]),
    sigma=np.array([1.0, 0.8, 1.5, 1.2, 0.9, 0.7, 1.1, 0.6, 0.5]),
    eta=np.array([1.7, 0.4, 2.3, 0.9, 0.6, 1.2, 0.8, 1.9, 0.3]),
    gamma=0.75,
)


def _net(key, activation="relu"):
    return Transformer(
        in_shape=(3, 6), out_size=5, width_size=4, activation=activation, heads=2, scaling=SCALING, key=key
    )


def _data():
    return js.data.modular_addition(5, 6, key=jax.random.key(2))


def _forward(net, x):
    """Token by token and head by head."""
    w = [float(m) * np.asarray(a) for m, a in zip(net.scaling.multiplier, net.weights, strict=True)]
    embed, place, query, key, value, output, expand, contract, read = w
    h = [embed @ one + place[:, t] for t, one in enumerate(np.asarray(x))]
    seen = []
    for head in (slice(0, 2), slice(2, 4)):
        scores = np.exp([(query[head] @ h[-1]) @ (key[head] @ other) / np.sqrt(2) for other in h])
        seen.append(sum(p * (value[head] @ other) for p, other in zip(scores / scores.sum(), h, strict=True)))
    last = h[-1] + output @ np.concatenate(seen)
    last = last + contract @ relu(expand @ last)
    return float(net.scaling.gamma) * read @ last


def test_forward_is_the_formula(getkey):
    net, x = _net(getkey()), _data().x
    out = jax.jit(jax.vmap(net))(x)

    def check(net):
        expected = np.stack([_forward(net, one) for one in x])
        np.testing.assert_allclose(out, expected, rtol=0, atol=eps(50) * np.max(np.abs(expected)))

    check(net)
    for twin in left_out(net):
        assert_fails(functools.partial(check, twin))


def _problem(net):
    data = _data()
    return js.Problem(net, data.x[:3], data.y[:3])


def test_kernel_is_that_of_the_jacobian(getkey):
    case = _problem(_net(getkey()))
    jacobian = jax.jacobian(lambda params: case.outputs(params))(case.params)

    def check(rates):
        blocks = [
            rate * jnp.einsum("iap,jbp->iajb", *2 * [leaf.reshape(3, 5, -1)])
            for leaf, rate in zip(jax.tree.leaves(jacobian), rates, strict=True)
        ]
        expected = sum(blocks, jnp.zeros(()))
        atol = eps(100) * float(jnp.abs(expected).max())
        np.testing.assert_allclose(case.kernel(case.params, case.x), expected, rtol=0, atol=atol)

    rates = jax.tree.leaves(case.eta)
    check(rates)
    for index in range(len(rates)):
        assert_fails(functools.partial(check, [*rates[:index], jnp.zeros(()), *rates[index + 1 :]]))


def test_what_the_flow_conserves(getkey):
    case = _problem(_net(getkey()))
    shapes = [quantity.value.shape for quantity in case.net.conserved(case.params, case.eta)]
    assert shapes == [(2, 2, 2), (2, 2, 2), (16,)]
    assert np.all(drifts(case.net, case.params, velocity(case), case.eta) < eps(100))
    others = jax.tree.map(jnp.ones_like, case.eta)  # the rates are part of what is conserved
    assert np.all(drifts(case.net, case.params, velocity(case), others) > 1e-3)
    smooth = _problem(_net(getkey(), "gelu"))
    assert len(smooth.net.conserved(smooth.params, smooth.eta)) == 2


def test_it_learns_in_a_flow_and_by_steps(getkey):
    import optax

    data = _data()
    net = Transformer(in_shape=(3, 6), out_size=5, width_size=8, scaling=Scaling.standard(), key=getkey())
    problem = js.Problem(net, *data.train, test=data.test, loss=js.losses.CrossEntropy())
    for dynamics, t in ((js.GradientFlow(rtol=1e-3), 20.0), (js.Descent(optax.adam(1e-2)), 1.0)):
        run = js.solve(problem, dynamics, [0.0, t], observe=[js.observe.loss(), js.observe.accuracy()])
        assert run["loss"][1] < 0.5 * run["loss"][0]
        assert run["accuracy"][1] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "heads must divide width_size, got 3 heads and width_size 4"),
        ({"in_shape": (3,)}, r"in_shape must be \(tokens, symbols\)"),
        ({"scaling": Scaling([1.0], [1.0], [1.0])}, "9 weight matrices, the Scaling is for 1"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_what_is_refused(change, message):
    made: dict[str, Any] = {
        "in_shape": (3, 6),
        "width_size": 4,
        "out_size": 5,
        "scaling": Scaling.ntk(),
        "key": jax.random.key(0),
    }
    with pytest.raises(ValueError, match=message):
        Transformer(**(made | change))


def test_what_is_conserved_is_observed_head_by_head():
    net = Transformer(in_shape=(3, 6), out_size=5, width_size=4, heads=2, scaling=Scaling.ntk(), key=jax.random.key(0))
    problem = js.Problem(net, jax.nn.one_hot(jnp.array([[0, 1, 2], [3, 4, 5]]), 6), jnp.eye(2, 5))
    view = js.View(problem, jnp.zeros(()), problem.params)
    quantities = net.conserved(problem.params, problem.eta)
    for index in (0, 1):
        found = js.observe.conserved(index)(view)
        one, two = quantities[index].value
        np.testing.assert_array_equal(found, np.block([[one, np.zeros_like(one)], [np.zeros_like(two), two]]))


@pytest.mark.parametrize("init", [js.nets.LambdaBalanced(), js.nets.Sphere()])
def test_starts_of_dense_networks_are_refused(init):
    with pytest.raises(ValueError, match="is for dense networks, got weights of shapes"):
        Transformer(in_shape=(8, 8), out_size=8, width_size=8, init=init, scaling=Scaling.ntk(), key=jax.random.key(0))
