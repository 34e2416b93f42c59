"""Every layer of images against a loop in NumPy or Equinox's own, and what a network of them offers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve.nets import Apply, relu, Residual
from tests.cases import assert_fails, eps
from tests.inside import Bias, Conv, Dense, Gain, run, SpatialMean, StandardizeBatch, StandardizeGroups
from tests.nets.images import convolve, draw


class _Arrays(eqx.Module):
    """All that a layer asks of a network."""

    weights: tuple
    biases: tuple
    gains: tuple
    scaling: "_Multipliers"


class _Multipliers(eqx.Module):
    multiplier: jax.Array


def _arrays(key, *shapes):
    biases, gains, *weights = (draw(jax.random.fold_in(key, i), *s) for i, s in enumerate([(4,), (4,), *shapes]))
    return _Arrays(tuple(weights), (biases,), (gains,), _Multipliers(jnp.asarray([0.8, 1.3])))


@pytest.mark.parametrize(("window", "size", "stride"), [((5, 3), (4, 7), 1), ((3, 3), (6, 5), 2), ((1, 1), (5, 4), 2)])
def test_convolution_is_the_sum_over_its_window(window, size, stride, getkey):
    net, z = _arrays(getkey(), (4, 2, *window)), draw(getkey(), 2, *size)
    out = np.asarray(run(net, (Conv(0, stride),), z))
    expected = 0.8 * convolve(net.weights[0], z, stride)
    assert out.shape == (4, -(-size[0] // stride), -(-size[1] // stride))
    check = lambda found: np.testing.assert_allclose(found, expected, rtol=0, atol=eps(50))
    check(out)
    without_multiplier = eqx.tree_at(lambda net: net.scaling.multiplier, net, jnp.ones(2))
    assert_fails(lambda: check(run(without_multiplier, (Conv(0, stride),), z)))
    turned = eqx.tree_at(lambda net: net.weights, net, (net.weights[0][..., ::-1, ::-1],))
    if window != (1, 1):
        assert_fails(lambda: check(run(turned, (Conv(0, stride),), z)))


@pytest.mark.parametrize("groups", [1, 2])
def test_group_normalization_is_equinox_s(groups, getkey):
    net, z = _arrays(getkey()), 3 + 2 * draw(getkey(), 4, 3, 5)
    theirs = eqx.nn.GroupNorm(groups, 4)
    theirs = eqx.tree_at(lambda norm: (norm.weight, norm.bias), theirs, (net.gains[0], net.biases[0]))
    out = run(net, (StandardizeGroups(groups), Gain(0), Bias(0)), z)
    check = lambda found: np.testing.assert_allclose(found, theirs(z), rtol=0, atol=eps(50))
    check(out)
    assert_fails(lambda: check(run(net, (StandardizeGroups(3 - groups), Gain(0), Bias(0)), z)))  # 1 for 2, 2 for 1
    assert_fails(lambda: check(run(net, (StandardizeGroups(groups), Bias(0)), z)))
    assert_fails(lambda: check(run(net, (StandardizeGroups(groups), Gain(0)), z)))
    plain = np.asarray(run(net, (StandardizeGroups(groups),), z)).reshape(groups, -1)
    np.testing.assert_allclose(plain.mean(1), 0, atol=eps(20))
    np.testing.assert_allclose(plain.var(1), 1, atol=1e-4)  # up to the layer's own eps


def test_group_normalization_of_a_constant_image_differentiates(getkey):
    slope = jax.grad(lambda z: jnp.sum(run(None, (StandardizeGroups(2),), z) ** 2))(jnp.ones((4, 2, 2)))
    np.testing.assert_array_equal(slope, 0)


def test_layers_after_each_other_and_side_by_side(getkey):
    """relu(z + b) averaged, then read out, plus the same without the activation."""
    net, z = _arrays(getkey(), (3, 4)), draw(getkey(), 4, 2, 3)
    shifted = np.asarray(z) + np.asarray(net.biases[0])[:, None, None]
    branch, shortcut = np.maximum(shifted, 0), np.asarray(z)
    out = run(net, (Residual((Bias(0), Apply(relu)), ()), SpatialMean(), Dense(0)), z)
    expected = 0.8 * np.asarray(net.weights[0]) @ (branch + shortcut).mean((1, 2))
    np.testing.assert_allclose(out, expected, rtol=0, atol=eps(5))
    gained = run(net, (Residual((Bias(0),), (Gain(0),)),), z)
    np.testing.assert_allclose(
        gained, shifted + shortcut * np.asarray(net.gains[0])[:, None, None], rtol=0, atol=eps(5)
    )


def test_the_tap_sees_layers_with_parameters_in_order_and_may_change_them(getkey):
    net, z = _arrays(getkey(), (4, 4, 3, 3), (3, 4)), draw(getkey(), 4, 4, 4)
    branch = (Conv(0), Bias(0), Apply(relu))
    layers = (StandardizeGroups(2), Gain(0), Residual(branch, ()), StandardizeBatch(0), SpatialMean(), Dense(1))
    seen = []

    def tap(layer, z, out):
        seen.append((layer, z.shape, out.shape))
        return 0 * out if isinstance(layer, Dense) else out

    np.testing.assert_array_equal(run(net, layers, z, tap), 0)
    image = (4, 4, 4)
    assert seen == [
        (Gain(0), image, image),
        (Conv(0), image, image),
        (Bias(0), image, image),
        (StandardizeBatch(0), image, image),
        (Dense(1), (4,), (3,)),
    ]


def test_parameters_are_found_in_any_tree_of_the_shape_of_a_network(getkey):
    net = _arrays(getkey(), (4, 4, 3, 3), (3, 4))
    rates = _Arrays(("first", "second"), ("bias",), ("gain",), net.scaling)
    found = [layer.parameter(rates) for layer in (Conv(0), Dense(1), Bias(0), Gain(0))]
    assert found == ["first", "second", "bias", "gain"]
