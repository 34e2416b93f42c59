"""LeNet by hand: its forward pass, its kernel, what its flow conserves, and what is not known of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.nets import LeNet, Scaling
from tests.cases import assert_fails, eps
from tests.inside import AveragePool, Flatten, run
from tests.nets.images import convolve, draw, Drawn, drifts, problem, relu, velocity
from tests.nets.twins import left_out


IMAGE = (2, 9, 8)  # the ninth row fills no square of the pooling
SCALING = Scaling(
    multiplier=np.array([0.25, 0.15, 0.2, 0.12, 1.1]),
    sigma=np.array([0.9, 0.7, 1.2, 0.8, 0.5]),
    eta=np.array([1.7, 0.4, 2.3, 0.9, 0.6]),
    gamma=0.75,
    bias_sigma=0.3,
    bias_eta=0.65,
)


def _net(key, bias=True):
    return LeNet(in_shape=IMAGE, out_size=3, bias=bias, scaling=SCALING, init=Drawn(), key=key)


def _pool(z):
    """By a path of its own: four shifted copies."""
    z = z[:, : z.shape[1] // 2 * 2, : z.shape[2] // 2 * 2]
    return (z[:, ::2, ::2] + z[:, 1::2, ::2] + z[:, ::2, 1::2] + z[:, 1::2, 1::2]) / 4


def _forward(net, x, pool=_pool):
    z, m = np.asarray(x), np.asarray(net.scaling.multiplier)
    bias = lambda index: np.asarray(net.biases[index]) if net.biases else np.zeros(net.weights[index].shape[0])
    for index in (0, 1):
        z = pool(relu(m[index] * convolve(net.weights[index], z, 1) + bias(index)[:, None, None]))
    z = z.ravel()
    for index in (2, 3):
        z = relu(m[index] * np.asarray(net.weights[index]) @ z + bias(index))
    return np.asarray(net.scaling.gamma) * (m[4] * np.asarray(net.weights[4]) @ z + bias(4))


@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_formula(bias, getkey):
    net, x = _net(getkey(), bias), draw(getkey(), 2, *IMAGE)
    out = jax.jit(jax.vmap(net))(x)

    def check(net, pool=_pool):
        expected = np.stack([_forward(net, one, pool) for one in x])
        np.testing.assert_allclose(out, expected, rtol=0, atol=eps(20) * np.max(np.abs(expected)))

    check(net)
    for twin in left_out(net):
        assert_fails(functools.partial(check, twin))
    assert_fails(functools.partial(check, net, lambda z: _pool(z)[:, ::-1]))


def test_kernel_is_that_of_the_jacobian(getkey):
    case = problem(_net(getkey()), getkey(), n=3)
    jacobian = jax.jacobian(lambda params: case.outputs(params))(case.params)

    def check(rates):
        blocks = [
            rate * jnp.einsum("iap,jbp->iajb", *2 * [leaf.reshape(3, 3, -1)])
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
    case = problem(_net(getkey()), getkey(), n=3)
    # Between the convolutions, whose pooling acts channel by channel, and between the dense layers; flattening ends it.
    shapes = [quantity.value.shape for quantity in case.net.conserved(case.params, case.eta)]
    assert shapes == [(6,), (120,), (84,)]
    assert np.all(drifts(case.net, case.params, velocity(case), case.eta) < eps(100))
    others = jax.tree.map(jnp.ones_like, case.eta)  # the rates are part of what is conserved
    assert np.all(drifts(case.net, case.params, velocity(case), others) > 1e-3)


def test_infinite_width_is_not_known(getkey, as_users):
    with pytest.raises(ValueError, match=r"infinite width of LeNet is not known .* AveragePool\(window=2\)"):
        js.kernels.infinite(_net(getkey()), jnp.ones((1, *IMAGE)))


def test_layers_alone():
    z = jnp.arange(2 * 3 * 5.0).reshape(2, 3, 5)
    np.testing.assert_array_equal(run(None, (AveragePool(2),), z), _pool(np.asarray(z)))
    np.testing.assert_array_equal(run(None, (Flatten(),), z), np.arange(30.0))


def test_a_mirrored_start_is_zero(getkey):
    net = LeNet(in_shape=(1, 8, 8), out_size=2, scaling=Scaling.kaiming(), init=js.nets.Mirrored(), key=getkey())
    x = jax.random.normal(getkey(), (3, 1, 8, 8))
    np.testing.assert_allclose(jax.vmap(net)(x), 0, atol=1e-6)
