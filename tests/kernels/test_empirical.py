from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import kernels, nets
from tests.cases import ACTIVATIONS, assert_fails, eps, inputs, scaling, slow_after


def _net(key, activation: Any = "tanh", *, depth=2, bias=True):
    return nets.MLP(
        in_size=3,
        out_size=3,
        width_size=5,
        depth=depth,
        activation=activation,
        bias=bias,
        scaling=scaling(depth + 1),
        key=key,
    )


@eqx.filter_jit
def _brute_force(net, eta, x1, x2):
    """sum_l eta_l <df/dtheta_l, df/dtheta_l> from the whole Jacobian."""
    params, rest = nets.partition(net)
    jacobian = lambda x: jax.jacobian(lambda p: jax.vmap(eqx.combine(p, rest))(x))(params)
    rows = lambda leaf: leaf.reshape(*leaf.shape[:2], -1)
    return sum(
        rate * jnp.einsum("nap,mbp->namb", rows(one), rows(two))
        for rate, one, two in zip(*map(jax.tree.leaves, (eta, jacobian(x1), jacobian(x2))), strict=True)
    )


@eqx.filter_jit
def _ntk(net, x1, x2=None, **options):
    return kernels.empirical(net, x1, x2, **options).ntk


def _assert_close(kernel, reference, units=30):
    kernel, reference = np.asarray(kernel), np.asarray(reference)
    size = np.max(np.abs(reference))
    assert kernel.shape == reference.shape
    np.testing.assert_allclose(kernel, reference, rtol=0, atol=eps(units) * size)


@pytest.mark.parametrize("name", slow_after(5, ACTIVATIONS))
def test_dense_networks_against_brute_force(name, getkey):
    """Three outputs, biases, unequal rates, x1 other than x2."""
    net, x1, x2 = _net(getkey(), ACTIVATIONS[name][0]), inputs(getkey(), 4), inputs(getkey(), 6)
    kernel = _ntk(net, x1, x2, eta=nets.rates(net))
    assert kernel.shape == (4, 3, 6, 3)
    _assert_close(kernel, _brute_force(net, nets.rates(net), x1, x2))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_depths_and_biases_against_brute_force(depth, bias, getkey):
    net, x = _net(getkey(), depth=depth, bias=bias), inputs(getkey(), 4)
    _assert_close(_ntk(net, x, eta=nets.rates(net)), _brute_force(net, nets.rates(net), x, x))
    # every array's rate counts: a twin that leaves one of them out differs
    leaves, structure = jax.tree.flatten(nets.rates(net))
    reference = np.asarray(_brute_force(net, nets.rates(net), x, x))
    for index in range(len(leaves)):
        off = jax.tree.unflatten(structure, [0 * e if i == index else e for i, e in enumerate(leaves)])
        twin = np.asarray(_ntk(net, x, eta=off))
        assert np.max(np.abs(twin - reference)) > eps(1e3) * np.max(np.abs(reference))


@pytest.mark.parametrize(
    "make",
    [
        lambda key: nets.TwoLayerLinear(in_size=3, out_size=3, width_size=4, scaling=scaling(2), key=key),
        lambda key: nets.DeepLinear(in_size=3, out_size=3, width_size=4, depth=3, scaling=scaling(4), key=key),
        lambda key: nets.SingleNeuron(in_size=3, scaling=scaling(2), key=key),
    ],
)
def test_linear_networks_against_brute_force(make, getkey):
    net, x = make(getkey()), inputs(getkey(), 4)
    _assert_close(_ntk(net, x, eta=nets.rates(net)), _brute_force(net, nets.rates(net), x, x))


def test_two_layer_linear_kernel_by_hand(getkey):
    """gamma^2 m_1^2 m_2^2 (eta_1 |u|^2 + eta_2 W^T W) between x and x' for one output."""
    net, x = nets.TwoLayerLinear(in_size=3, width_size=4, scaling=scaling(2), key=getkey()), inputs(getkey(), 4)
    w, u, z = np.asarray(net.weights[0]), np.asarray(net.weights[1]), np.asarray(x)
    expected = (0.75 * 0.8 * 1.3) ** 2 * (1.7 * np.sum(u**2) * z @ z.T + 0.4 * z @ w.T @ w @ z.T)
    found = _ntk(net, x, eta=nets.rates(net))[:, 0, :, 0]
    _assert_close(found, expected)
    first = (0.75 * 0.8 * 1.3) ** 2 * 1.7 * np.sum(u**2) * z @ z.T
    assert_fails(lambda: _assert_close(found, first))  # the second layer is left out


def test_the_plain_kernel_has_eta_one(getkey):
    net, x = _net(getkey()), inputs(getkey(), 4)
    ones = kernels.unit_rates(net)
    assert jax.tree.structure(ones) == jax.tree.structure(nets.rates(net))
    assert {float(e) for e in jax.tree.leaves(ones)} == {1.0}
    plain = _ntk(net, x)
    _assert_close(plain, _brute_force(net, ones, x, x))
    assert np.max(np.abs(plain - _ntk(net, x, eta=nets.rates(net)))) > 0.1


def test_symmetric_and_not_negative(getkey):
    net, x = _net(getkey()), inputs(getkey(), 6)
    kernel = np.asarray(_ntk(net, x)).reshape(18, 18)
    np.testing.assert_allclose(kernel, kernel.T, atol=eps(30) * np.abs(kernel).max())
    assert np.linalg.eigvalsh(kernel).min() > -eps(30) * np.abs(kernel).max()
    np.testing.assert_allclose(_ntk(net, x, x).reshape(18, 18), kernel, atol=eps(30) * kernel.max())


def test_under_jit_vmap_and_grad(getkey):
    keys, x = jax.random.split(getkey(), 3), inputs(getkey(), 4)
    kernel = lambda net: _ntk(net, x, eta=nets.rates(net))
    singles = [_net(key) for key in keys]
    ensemble = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    many, one = eqx.filter_jit(eqx.filter_vmap(kernel))(ensemble), eqx.filter_jit(kernel)
    for index, net in enumerate(singles):
        single = np.asarray(one(net))
        np.testing.assert_allclose(many[index], single, atol=eps(50) * np.abs(single).max())

    @jax.jit
    @jax.value_and_grad
    def trace(gamma):
        values = eqx.tree_at(lambda s: s.gamma, scaling(3), gamma)
        net = nets.MLP(
            in_size=3, out_size=3, width_size=5, depth=2, activation="tanh", bias=True, scaling=values, key=keys[0]
        )
        return jnp.trace(kernel(net).reshape(12, 12))

    value, slope = trace(jnp.asarray(0.75))
    np.testing.assert_allclose(slope, 2 * value / 0.75, rtol=eps(100))  # gamma^2 is in the kernel


# --- other modules


def test_dense_modules(getkey):
    net, x1, x2 = eqx.nn.MLP(3, 2, 5, 2, jnp.tanh, key=getkey()), inputs(getkey(), 4), inputs(getkey(), 6)
    kernel = _ntk
    _assert_close(kernel(net, x1, x2), _brute_force(net, nets.rates(net), x1, x2), units=100)
    _assert_close(kernel(net, x1), _brute_force(net, nets.rates(net), x1, x1), units=100)


def test_a_module_with_a_convolution(getkey):
    class Convolution(eqx.Module):
        conv: eqx.nn.Conv2d
        scale: jax.Array

        def __call__(self, x):
            return self.scale * jnp.mean(jnp.tanh(self.conv(x)), axis=(1, 2))

    net = Convolution(eqx.nn.Conv2d(2, 3, 2, key=getkey()), jnp.asarray(0.7))
    x = jax.random.normal(getkey(), (3, 2, 4, 4))
    eta = jax.tree.unflatten(jax.tree.structure(nets.rates(net)), [jnp.asarray(e) for e in (2.0, 0.0, 0.3)])
    _assert_close(_ntk(net, x, eta=eta), _brute_force(net, eta, x, x), units=100)


# --- against the limit of infinite width


@pytest.mark.x64_only
def test_finite_kernels_approach_the_arc_cosine_kernel_like_width_to_minus_one_half(getkey):
    x = np.asarray(inputs(getkey(), 3))
    norms = np.linalg.norm(x, axis=1)
    angle = np.arccos(np.clip(x @ x.T / np.outer(norms, norms), -1, 1))
    # relu, ntk parameters: E[phi phi'] + <x, x'>/d E[phi' phi'']
    limit = np.outer(norms, norms) / 3 * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    limit += x @ x.T / 3 * (np.pi - angle) / (2 * np.pi)
    widths, errors, keys = (64, 362, 2048), [], jax.random.split(getkey(), 128)
    for width in widths:
        net = lambda key, width=width: nets.MLP(
            in_size=3, out_size=1, width_size=width, depth=1, activation="relu", scaling=nets.Scaling.ntk(), key=key
        )
        many = jax.jit(jax.vmap(lambda key, net=net: _ntk(net(key), jnp.asarray(x))[:, 0, :, 0]))(keys)
        errors.append(np.sqrt(np.mean((np.asarray(many) - limit) ** 2)))
        noise = np.std(many, axis=0) / np.sqrt(128)
        assert np.all(np.abs(np.mean(many, axis=0) - limit) < 4 * noise)
    assert np.polyfit(np.log(widths), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.05)


@pytest.mark.usefixtures("as_users")
def test_inputs_and_rates_that_no_kernel_has(getkey):
    net, x = _net(getkey()), inputs(getkey(), 4)
    with pytest.raises(ValueError, match=r"x1 holds 1 value\(s\) that are NaN or infinite"):
        kernels.empirical(net, x.at[0, 0].set(jnp.nan))
    negative = jax.tree.map(lambda rate: -rate, nets.rates(net))
    with pytest.raises(ValueError, match="every learning rate in eta must be finite and >= 0, got -"):
        kernels.empirical(net, x, eta=negative)
    with pytest.raises(ValueError, match="eta must be a pytree with one number at every trainable array.*got list"):
        kernels.empirical(net, x, eta=[1.0])


def test_a_second_kernel_of_these_shapes_compiles_nothing():
    compiled = []
    note = lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(note)  # for good: JAX 0.8 has no way to take it off
    net = lambda seed: nets.TwoLayerLinear(
        in_size=3, width_size=7, scaling=nets.Scaling.ntk(), key=jax.random.key(seed)
    )
    nets_of, x = [net(0), net(1)], jnp.ones((5, 3))
    inputs_of = [x, x + x, jnp.ones((6, 3))]
    kernels.empirical(nets_of[0], inputs_of[0])
    assert compiled
    compiled.clear()
    kernels.empirical(nets_of[1], inputs_of[1])
    assert not compiled
    kernels.empirical(nets_of[1], inputs_of[2])
    assert compiled  # of other shapes
