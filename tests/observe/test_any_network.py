"""Layers, pairs of them and activation patterns of networks of any kind, each against NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flax import nnx

import jaxsolve as js
from jaxsolve import nets, observe, Problem, View
from tests import cases


def _moved(net, x, outputs=2, state=None):
    """A view of a network away from its start."""
    problem = Problem(net, x, jnp.ones((len(x), outputs)), state=state)
    return View(problem, jnp.zeros(()), cases.randomized(problem.params, jr.key(7)))


def _read(observable, view):
    return np.asarray(eqx.filter_jit(observable)(view))


def _names(observable, view):
    return observable.names(view.problem)


def _zeta(above, below):
    return np.linalg.norm(above @ below) / (np.linalg.norm(above) * np.linalg.norm(below))


def _close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=cases.eps(100))


# --- a convolutional and residual network as a plain function: images (channels, height, width)


def _convolve(x, kernel):
    """Zeros around the image, stride 1."""
    return jax.lax.conv(x[None], kernel, (1, 1), "SAME")[0]


def _residual(p, x):
    stem = _convolve(x, p["stem"])
    stem = stem + _convolve(jax.nn.relu(_convolve(jax.nn.relu(stem), p["up"])), p["down"])
    pooled = jax.lax.reduce_window(jax.nn.relu(stem), 0.0, jax.lax.add, (1, 2, 2), (1, 2, 2), "VALID")
    return p["out"] @ pooled.reshape(-1)


def _function_view():
    k = jr.split(jr.key(0), 5)
    shapes = {"stem": (3, 2, 3, 3), "up": (5, 3, 3, 3), "down": (3, 5, 1, 1), "out": (2, 12)}
    params = {name: jr.normal(key, shape) for key, (name, shape) in zip(k, shapes.items(), strict=False)}
    return _moved(nets.Function(_residual, params), jr.normal(k[4], (6, 2, 4, 4)))


def _numpy_convolve(x, kernel):
    size = kernel.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (size, size), (size, size)))
    out = np.zeros((len(x), len(kernel), 4, 4))
    for i in range(4):
        for j in range(4):
            patch = padded[:, :, i : i + kernel.shape[2], j : j + kernel.shape[3]]
            out[:, :, i, j] = np.einsum("ncab,ocab->no", patch, kernel)
    return out


def _numpy_units(p, x):
    """What goes into each relu."""
    p, relu = {name: np.asarray(w, float) for name, w in p.items()}, lambda z: np.maximum(z, 0)
    stem = _numpy_convolve(np.asarray(x, float), p["stem"])
    up = _numpy_convolve(relu(stem), p["up"])
    return [stem, up, stem + _numpy_convolve(relu(up), p["down"])]


def test_weights_of_a_residual_function():
    view = _function_view()
    now, start = (view.params.params, view.problem.params.params)
    names = _names(observe.weight_norms(), view)
    assert [name.split("'")[1] for name in names] == ["stem", "up", "down", "out"]  # in the order of the program
    keys = ("stem", "up", "down", "out")
    _close(_read(observe.weight_norms(), view), [np.linalg.norm(np.ravel(now[key])) for key in keys])
    distances = [np.linalg.norm(np.ravel(now[key] - start[key])) for key in keys]
    _close(_read(observe.weight_distances(), view), distances)


def test_layers_of_a_residual_function_meet_by_channels():
    view = _function_view()
    p = {name: np.asarray(w) for name, w in view.params.params.items()}
    reads = lambda w: np.moveaxis(w, 1, 0).reshape(w.shape[1], -1).T  # out k k by in
    writes = lambda w: w.reshape(len(w), -1)  # out by in k k
    channels = np.moveaxis(p["out"].reshape(2, 3, 4), 1, 0).reshape(3, -1).T  # channel after channel, of 4 pixels
    expected = {
        "stem up": _zeta(reads(p["up"]), writes(p["stem"])),
        "stem out": _zeta(channels, writes(p["stem"])),
        "up down": _zeta(reads(p["down"]), writes(p["up"])),
        "down out": _zeta(channels, writes(p["down"])),
    }
    names = [" ".join(name.split("'")[1::2]) for name in _names(observe.layer_alignment(), view)]
    assert names == list(expected)
    found = dict(zip(names, _read(observe.layer_alignment(), view), strict=True))
    for name, value in expected.items():
        _close(found[name], value)
    pixels = np.moveaxis(p["out"].reshape(2, 4, 3), 2, 0).reshape(3, -1).T  # as if the channels came last
    cases.assert_fails(lambda: _close(found["down out"], _zeta(pixels, writes(p["down"]))))


def test_patterns_of_a_residual_function():
    view = _function_view()
    both = (_numpy_units(params.params, view.problem.x) for params in (view.params, view.problem.params))
    switched = [np.sum((now > 0) != (start > 0)) / 6 for now, start in zip(*both, strict=True)]
    found = _read(observe.hamming_distance(), view)
    _close(found, sum(switched))
    cases.assert_fails(lambda: _close(found, sum(switched[:2])))  # without the units after the sum


# --- networks of others


class _Images(nnx.Module):
    """Images (height, width, channels), as Flax has them."""

    def __init__(self, rngs):
        options = {"rngs": rngs, "param_dtype": jnp.result_type(float)}
        self.one, self.two = nnx.Conv(2, 3, (3, 3), **options), nnx.Conv(3, 4, (3, 3), **options)
        self.out = nnx.Linear(4 * 4, 2, **options)

    def __call__(self, x):
        z = nnx.relu(self.two(nnx.relu(self.one(x))))
        return self.out(nnx.max_pool(z, (2, 2), strides=(2, 2)).reshape(*z.shape[:-3], -1))


def test_channels_come_last_in_flax():
    view = _moved(nets.from_nnx(_Images(nnx.Rngs(0))), jr.normal(jr.key(1), (5, 4, 4, 2)))
    kernels = {leaf.shape: np.asarray(leaf) for leaf in jax.tree.leaves(view.params) if leaf.ndim > 1}
    one, two, out = kernels[3, 3, 2, 3], kernels[3, 3, 3, 4], kernels[16, 2]
    writes = lambda w: np.moveaxis(w, -1, 0).reshape(w.shape[-1], -1)
    reads = lambda w: np.moveaxis(w, -2, 0).reshape(w.shape[-2], -1).T
    by_channel = np.moveaxis(out.reshape(4, 4, 2), 1, 0).reshape(4, -1).T  # pixels, channels, outputs
    found = _read(observe.layer_alignment(), view)
    _close(found, [_zeta(reads(two), writes(one)), _zeta(by_channel, writes(two))])
    wrong = out.reshape(4, -1).T  # as if they came first
    cases.assert_fails(lambda: _close(found[1], _zeta(wrong, writes(two))))
    assert 0 < _read(observe.hamming_distance(), view) < 16 * 3 + 16 * 4
    _close(_read(observe.weight_norms(), view), [np.linalg.norm(np.ravel(w)) for w in (one, two, out)])


def test_the_order_is_that_of_the_program_whatever_the_names_are():
    """Neither that of keys, which JAX sorts, nor that of shapes; matrices may be (out, in) or (in, out)."""
    one, two = jnp.outer(jnp.eye(3)[0], jnp.eye(3)[1]), jnp.outer(jnp.eye(3)[1], jnp.eye(3)[2])  # two one = 0
    x = jnp.eye(3)
    inward = lambda p, x: jnp.tanh(x @ p["Dense_10"]) @ p["Dense_9"]
    outward = lambda p, x: p["Dense_9"].T @ jnp.tanh(p["Dense_10"].T @ x)
    for net in (inward, outward):
        for params, expected in (({"Dense_10": one, "Dense_9": two}, 1), ({"Dense_10": two, "Dense_9": one}, 0)):
            problem = Problem(nets.Function(net, params), x, x)
            view = View(problem, jnp.zeros(()), problem.params)
            np.testing.assert_array_equal(_read(observe.layer_alignment(), view), [expected])
            tiny = View(problem, view.t, jax.tree.map(lambda w: 1e-24 * w, problem.params))  # squares vanish in float32
            np.testing.assert_array_equal(_read(observe.layer_alignment(), tiny), [expected])


def test_of_many_classes_units_by_units_are_multiplied(getkey):
    """The same number by the smaller matrices: 300 outputs read 4 units of 200 inputs."""
    net = nets.MLP(
        in_size=200, out_size=300, width_size=4, depth=1, activation="tanh", scaling=cases.scaling(2), key=getkey()
    )
    view = _moved(net, jr.normal(getkey(), (3, 200)), outputs=300)
    w, u = (np.asarray(a, float) for a in view.params.weights)
    _close(_read(observe.layer_alignment(), view), [_zeta(u, w)])


def test_a_network_with_batch_normalization():
    """Its state is that of the training set, as in the problem's outputs: that of Xu & Liu Ziyin's figure 3."""
    make = eqx.nn.make_with_state(nets.ResNet18)
    options = {"normalization": nets.BatchNorm(), "scaling": nets.Scaling.kaiming(), "key": jr.key(0)}
    net, state = make(in_shape=(1, 8, 8), out_size=2, width_size=2, **options)
    view = _moved(net, jr.normal(jr.key(1), (3, 1, 8, 8)), state=state)
    weights = [np.asarray(w, float) for w in view.params.weights]
    _close(_read(observe.weight_norms(), view), [np.linalg.norm(w.ravel()) for w in weights])
    zeta = dict(zip(_names(observe.layer_alignment(), view), _read(observe.layer_alignment(), view), strict=True))
    last = _zeta(weights[-1], weights[-2].reshape(len(weights[-2]), -1))  # pixels are averaged in between
    _close(zeta["weights[19] to weights[20]"], last)
    assert all(0 < value <= 1 for value in zeta.values())
    assert "weights[19] to weights[18]" not in zeta
    start = View(view.problem, view.t, view.problem.params)
    assert _read(observe.hamming_distance(), start) == 0
    assert _read(observe.hamming_distance(), view) > 1


# --- which units there are


def _hat(z):
    return jnp.where(z > 0, jnp.where(z > 1, 2 - z, z), 0)


KINKED = {
    "relu": (jax.nn.relu, [0]),
    "maximum": (lambda z: jnp.maximum(0, z), [0]),
    "leaky": (lambda z: jax.nn.leaky_relu(z, 0.2), [0]),
    "where": (lambda z: jnp.where(z > 0, z, 0.1 * z), [0]),
    "mask": (lambda z: z * (z > 0).astype(z.dtype), [0]),
    "squared": (lambda z: jax.nn.relu(z) ** 2, [0]),
    "abs": (jnp.abs, [0]),
    "relu6": (lambda z: jax.nn.relu6(6 * z), [0, 1]),
    "hard tanh": (jax.nn.hard_tanh, [-1, 1]),
    "clip": (lambda z: jnp.clip(z, -0.5, 0.5), [-0.5, 0.5]),
    "lax.clamp": (lambda z: jax.lax.clamp(-0.5, z, 0.5), [-0.5, 0.5]),
    "hat": (_hat, [0, 1]),
}
SMOOTH = {
    "softplus": jax.nn.softplus,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "celu": jax.nn.celu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "squareplus": jax.nn.squareplus,
    "log sigmoid": jax.nn.log_sigmoid,
    "identity": lambda z: z,
}


def _activated(activation):
    """A normalized layer, whose variance is held above 0 by a maximum, which is no unit."""

    def net(p, x):
        z = x - jnp.mean(x)
        z = p["w"] @ (z * jax.lax.rsqrt(jnp.maximum(jnp.mean(z**2), 0.0) + 1e-5)) + p["b"]
        z = activation(z)
        logits = p["u"] @ (z * jax.lax.rsqrt(jnp.maximum(jnp.mean(z**2), 0.0) + 1e-5))
        return jax.nn.softmax(logits)

    k = jr.split(jr.key(3), 4)
    params = {"w": jr.normal(k[0], (40, 3)), "b": jr.normal(k[1], (40,)), "u": jr.normal(k[2], (2, 40))}
    return _moved(nets.Function(net, params), jr.normal(k[3], (7, 3)))


@pytest.mark.parametrize("name", KINKED)
def test_units_are_those_with_kinks(name):
    activation, kinks = KINKED[name]
    view = _activated(activation)
    x = np.asarray(view.problem.x, float)
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5)
    sides = []
    for params in (view.params.params, view.problem.params.params):
        z = x @ np.asarray(params["w"], float).T + np.asarray(params["b"], float)
        sides.append(np.digitize(z, kinks))  # the piece that each unit is on
    switched = np.mean(np.sum(sides[0] != sides[1], axis=1))
    found = _read(observe.hamming_distance(), view)
    _close(found, switched)
    if len(kinks) > 1:
        every = sum(
            np.mean(np.sum((one <= k) != (two <= k), axis=1)) for k in range(len(kinks)) for one, two in [sides]
        )
        cases.assert_fails(lambda: _close(found, every))  # as if its kinks were units


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_networks_have_no_patterns(name):
    view = _activated(SMOOTH[name])
    with pytest.raises(js.NotApplicable, match="relu or another piecewise linear activation.*none was found"):
        observe.hamming_distance()(view)
    assert _read(observe.layer_alignment(), view).shape == (1,)


def test_where_layers_do_not_meet_is_said():
    alone = _moved(nets.Function(lambda w, x: w @ x, jnp.ones((2, 3))), jnp.ones((2, 3)))
    assert _read(observe.weight_norms(), alone).shape == (1,)
    shuffled = lambda p, x: p[1] @ jnp.flip(jnp.tanh(p[0] @ x))
    turned = _moved(nets.Function(shuffled, [jnp.ones((4, 3)), jnp.ones((2, 4))]), jnp.ones((2, 3)))
    for view in (alone, turned):
        with pytest.raises(ValueError, match="needs two layers of which one reads the units of the other; none were"):
            observe.layer_alignment()(view)
    none = Problem(nets.Function(lambda w, x: w * x, jnp.ones(2)), jnp.eye(2), jnp.eye(2))
    for observable in (observe.weight_norms(), observe.layer_alignment(), observe.hamming_distance()):
        with pytest.raises(ValueError, match="no product of data with parameters was found"):
            observable(View(none, jnp.zeros(()), none.params))
