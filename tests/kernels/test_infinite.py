"""Kernels at infinite width against recursions written out in NumPy and against wide networks."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import kernels, nets
from jaxsolve.nets import Apply, Residual
from tests.cases import ACTIVATIONS, assert_fails, eps, inputs, mlp, scaling
from tests.inside import (
    Bias,
    Conv,
    Dense,
    dual,
    expand,
    find_activation,
    Gain,
    neural_tangents as door,
    SpatialMean,
    StandardizeBatch,
)


SLOPES = {"linear": (1.0, 1.0), "relu": (0.0, 1.0), "leaky_relu(0.3)": (0.3, 1.0)}


# --- by hand


def _average(f, covariance):
    """E[f(u) f(v)] for every pair, by the trapezoidal rule in two dimensions."""
    z = np.arange(-80, 81) / 10
    weights = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / 10
    deviation = np.sqrt(np.diag(covariance))
    rho = np.clip(covariance / np.outer(deviation, deviation), -1, 1)[..., None, None]
    v = deviation[:, None, None] * (rho * z[:, None] + np.sqrt(1 - rho**2) * z)
    return np.einsum("a,b,iab,ijab->ij", weights, weights, f(deviation[:, None, None] * z[:, None] + 0 * z), f(v))


def _arc_cosine(minus, plus, covariance):
    size = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    angle = np.arccos(np.clip(covariance / size, -1, 1))
    kink = (plus - minus) ** 2 / (2 * np.pi)
    slopes = (plus**2 + minus**2) / 2 - kink * angle
    return kink * size * np.sin(angle) + slopes * covariance, slopes


def _by_hand(net, name, x1, x2, eta):
    """Jacot et al.'s recursion: covariances and NTK of all inputs, layer by layer."""
    values = net.scaling
    m, sigma = np.asarray(values.multiplier, np.float64), np.asarray(values.sigma, np.float64)
    _, phi, slope = ACTIVATIONS[name]
    x = np.concatenate([np.asarray(x1, np.float64), np.asarray(x2, np.float64)])
    covariance, ntk = x @ x.T / x.shape[1], np.zeros((len(x), len(x)))
    for layer, w in enumerate(net.weights):
        if layer and name in SLOPES:
            covariance, slopes = _arc_cosine(*SLOPES[name], covariance)
            ntk = slopes * ntk
        elif layer:
            ntk, covariance = _average(slope, covariance) * ntk, _average(phi, covariance)
        gain = w.shape[1] * m[layer] ** 2
        ntk = gain * (float(eta.weights[layer]) * covariance + sigma[layer] ** 2 * ntk)
        covariance = gain * sigma[layer] ** 2 * covariance
        if net.biases:
            ntk, covariance = ntk + float(eta.biases[layer]), covariance + float(values.bias_sigma) ** 2
    pairs = np.s_[: len(x1), len(x1) :]
    return float(values.gamma) ** 2 * covariance[pairs], float(values.gamma) ** 2 * ntk[pairs]


def _assert_kernels(found, expected, tolerance=6e-14):
    tolerance = max(tolerance, eps(300))
    for name, value in zip(("nngp", "ntk"), expected, strict=True):
        np.testing.assert_allclose(getattr(found, name), value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "depth", "bias"),
    [
        ("linear", 2, False),
        ("relu", 1, False),
        ("relu", 2, True),
        ("leaky_relu(0.3)", 2, True),
        ("erf", 2, True),
        ("gelu", 1, True),
        ("tanh", 2, True),
        ("softplus(5)", 1, False),
    ],
)
def test_dense_networks_against_the_recursion(name, depth, bias, getkey):
    """Every multiplier, sigma and rate different, gamma, rates that are not the network's own."""
    net, x1, x2 = mlp(getkey(), ACTIVATIONS[name][0], depth=depth, bias=bias), inputs(getkey(), 4), inputs(getkey(), 3)
    rates = nets.rates(net)
    found = kernels.infinite(net, x1, x2, eta=rates)
    assert found.ntk.shape == (4, 3)
    assert found.ntk.dtype == x1.dtype
    expected = _by_hand(net, name, x1, x2, rates)
    tolerance = 1e-10 if name == "softplus(5)" else 6e-14
    _assert_kernels(found, expected, tolerance)
    leaves, structure = jax.tree.flatten(rates)
    for index in range(len(leaves)):  # every array's rate counts: without it the kernel is another
        off = jax.tree.unflatten(structure, [0 * e if i == index else e for i, e in enumerate(leaves)])
        twin = kernels.infinite(net, x1, x2, eta=off)
        assert_fails(lambda twin=twin: _assert_kernels(twin, expected, tolerance))
    plain = _by_hand(net, name, x1, x2, kernels.unit_rates(net))
    _assert_kernels(kernels.infinite(net, x1, x2), plain, tolerance)


def test_what_does_not_vary_or_learn(getkey):
    """sigma = 0 and eta = 0 in any layer: no division by either."""
    x1, x2 = inputs(getkey(), 4), inputs(getkey(), 3)
    for name in ("relu", "tanh"):
        net = mlp(getkey(), name, bias=False, sigma=jnp.array([0.0, 0.7, 1.2]), eta=jnp.array([1.7, 0.0, 0.0]))
        found = kernels.infinite(net, x1, x2, eta=nets.rates(net))
        slope = 1.0 if name == "tanh" else None  # phi'(0), which ReLU does not have
        assert np.all(found.nngp == 0)
        assert np.all(np.isfinite(found.ntk))
        if slope:
            gram = np.asarray(x1, np.float64) @ np.asarray(x2, np.float64).T
            gains = 0.75**2 * 0.8**2 * 1.7 * 5 * (1.3 * 0.7) ** 2 * 5 * (0.6 * 1.2) ** 2
            np.testing.assert_allclose(found.ntk, gains * gram, rtol=eps(100), atol=eps(100))
    still = kernels.infinite(net, x1, x2, eta=jax.tree.map(jnp.zeros_like, nets.rates(net)))
    assert np.all(still.ntk == 0)


def test_symmetric_and_not_negative(getkey):
    """Of points among which some are equal, some opposite, and one is the origin."""
    x = inputs(getkey(), 4)
    x = jnp.concatenate([x, x[:2], -x[1:3], 0 * x[:1]])
    for name in ("relu", "tanh"):
        net = mlp(getkey(), name, bias=False)
        found, other = kernels.infinite(net, x), kernels.infinite(net, x, x)
        for kernel, pair in ((found.nngp, other.nngp), (found.ntk, other.ntk)):
            kernel = np.asarray(kernel)
            np.testing.assert_allclose(kernel, kernel.T, rtol=eps(4))
            np.testing.assert_allclose(kernel, pair, rtol=eps(100), atol=eps(30))
            np.testing.assert_allclose(kernel[0], kernel[4], rtol=eps(100), atol=eps(30))
            assert np.linalg.eigvalsh(kernel).min() > -eps(30) * np.trace(kernel)


def test_many_decades_of_scale(getkey):
    """A homogeneous network: its kernels scale by powers of sigma, down to the ends of the range of floats."""
    x, power = inputs(getkey(), 3), 70 if eps() < 1e-10 else 9
    net = lambda sigma: mlp(jr.key(0), "relu", bias=False, sigma=jnp.array([sigma, 0.7, 1.2]))
    one = kernels.infinite(net(1.0), x)
    for scale in (10.0**-power, 10.0**power):
        found = kernels.infinite(net(scale), x)
        np.testing.assert_allclose(found.nngp / scale / scale, one.nngp, rtol=eps(100))
        assert np.all(np.isfinite(found.ntk))


# --- the series


def test_series_of_activations_against_closed_forms():
    s = jnp.array([0.0, 1e-3, 0.5, 1.0, 2.0])
    points = expand(jax.scipy.special.erf, s)
    for rho in (-1.0, -0.6, 0.0, 0.9, 1.0):
        table = jnp.full((5, 5), rho)
        found = [dual(rows, rows, table, ((1,), (0,))) for rows in (points.values, points.slopes)]
        z = np.asarray(s, np.float64)
        norm = np.outer(1 + 2 * z**2, 1 + 2 * z**2)
        cross = 2 * rho * np.outer(z, z)
        expected = (2 / np.pi * np.arcsin(cross / np.sqrt(norm)), 4 / np.pi / np.sqrt(norm - cross**2))
        if abs(rho) == 1:  # there only points of equal variance are exact
            found, expected = [[np.diag(a) for a in pair] for pair in (found, expected)]
        close = lambda value, reference: np.testing.assert_allclose(
            value, reference, rtol=max(1e-10, eps(100)), atol=eps(30)
        )
        for value, reference in zip(found, expected, strict=True):
            close(value, reference)
        # The same series without its first term.
        short = dual(points.slopes.at[0].set(0), points.slopes, table, ((1,), (0,)))
        short = np.diag(short) if abs(rho) == 1 else short
        assert_fails(lambda short=short, expected=expected, close=close: close(short, expected[1]))


def test_series_of_activations_with_a_kink():
    """Exact for equal and opposite points; otherwise to the size of what the series leaves out."""
    s = jnp.array([0.0, 0.4, 3.0])
    points = expand(nets.relu, s)
    equal = [np.diag(dual(rows, rows, jnp.ones((3, 3)), ((1,), (0,)))) for rows in points]
    np.testing.assert_allclose(equal[0], s**2 / 2, rtol=eps(100), atol=eps(1))
    np.testing.assert_allclose(equal[1][1:], 0.5, rtol=eps(30))
    opposite = np.diag(dual(points.values, points.values, -jnp.ones((3, 3)), ((1,), (0,))))
    np.testing.assert_allclose(opposite, 0, atol=eps(300))
    near = np.asarray(dual(points.slopes, points.slopes, jnp.full((3, 3), 0.9), ((1,), (0,))))[1:, 1:]
    np.testing.assert_allclose(near, 0.5 - np.arccos(0.9) / (2 * np.pi), rtol=1e-4)


# --- transformations


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_under_jit_vmap_and_grad(name, getkey):
    net, x = mlp(getkey(), name, depth=1), inputs(getkey(), 3)
    tuned = lambda sigma, gamma: eqx.tree_at(lambda n: (n.scaling.sigma, n.scaling.gamma), net, (sigma, gamma))
    total = lambda sigma, gamma: kernels.infinite(tuned(sigma, gamma), x, eta=nets.rates(net)).ntk
    sigma, gamma = net.scaling.sigma, net.scaling.gamma
    alone = total(sigma, gamma)
    many = jax.jit(jax.vmap(total))(jnp.stack([sigma, 2 * sigma]), jnp.stack([gamma, 2 * gamma]))
    np.testing.assert_allclose(many[0], alone, rtol=eps(100))
    np.testing.assert_allclose(many[1], total(2 * sigma, 2 * gamma), rtol=eps(100))
    np.testing.assert_allclose(total(sigma, 2 * gamma), 4 * alone, rtol=eps(10))
    if eps() > 1e-10:
        return  # differences need more digits
    direction, step = jnp.array([0.3, -0.8]), 1e-5
    _, forward = jax.jvp(lambda s: total(s, gamma), (sigma,), (direction,))
    difference = (total(sigma + step * direction, gamma) - total(sigma - step * direction, gamma)) / (2 * step)
    close = lambda slope: np.testing.assert_allclose(slope, difference, rtol=1e-8, atol=1e-9)
    close(forward)  # points of the diagonal are parallel to themselves
    _, first = jax.jvp(lambda s: total(s, gamma), (sigma,), (direction.at[1].set(0),))
    assert_fails(lambda: close(first))  # the derivative in the second layer's sigma is left out
    backward = jax.grad(lambda s: jnp.sum(total(s, gamma)))(sigma)
    np.testing.assert_allclose(backward @ direction, jnp.sum(forward), rtol=1e-10)


# --- against wide networks


class _Images(nets.AbstractLayered):
    """All layers of images: strides, windows and images that are not square, biases, branches with and without weights
    in their shortcut."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    scaling: nets.Scaling
    activation: nets.Activation = eqx.field(static=True)

    def __init__(self, width, activation, key):
        shapes = [(width, 1, 3, 3), (width, width, 3, 2), (width, width, 1, 1), (width, width, 1, 1), (2, width)]
        fans = np.array([float(np.prod(shape[1:])) for shape in shapes])
        self.scaling = nets.Scaling(
            np.array([1.3, 1.1, 0.9, 1.2, 1.4]) / np.sqrt(fans),
            np.array([0.9, 0.7, 1.2, 0.5, 1.3]),
            np.array([1.7, 0.4, 2.3, 0.9, 0.6]),
            0.75,
            bias_sigma=0.3,
            bias_eta=0.65,
        )
        keys = jr.split(key, 7)
        drawn = zip(self.scaling.sigma, keys, shapes, strict=False)
        self.weights = tuple(sigma * jr.normal(key, shape) for sigma, key, shape in drawn)
        self.biases = tuple(0.3 * jr.normal(key, (size,)) for key, size in zip(keys[5:], (width, 2), strict=True))
        self.activation = find_activation(activation)

    gains = property(lambda self: ())  # pyright: ignore[reportAssignmentType]
    normalizers = property(lambda self: ())  # pyright: ignore[reportAssignmentType]

    @property
    def in_shape(self):
        return (1, 3, 4)

    @property
    def layers(self):
        phi = Apply(self.activation)
        first = Residual((phi, Conv(1)))
        second = Residual((Conv(2, 2),), (phi, Conv(3, 2)))
        return (Conv(0), Bias(0), first, second, phi, SpatialMean(), Dense(4), Bias(1))


def _averages(shape, window, stride):
    """For each pixel of a window: the matrix that reads it off an image, for every pixel of a convolution's output."""
    sides = [
        (size, k, -(-size // stride), max((-(-size // stride) - 1) * stride + k - size, 0) // 2)
        for size, k in zip(shape, window, strict=True)
    ]
    outs = [(row, column) for row in range(sides[0][2]) for column in range(sides[1][2])]
    for offset in np.ndindex(*window):
        matrix = np.zeros((len(outs), shape[0] * shape[1]))
        for index, out in enumerate(outs):
            at = [o * stride + d - low for o, d, (_, _, _, low) in zip(out, offset, sides, strict=True)]
            if all(0 <= a < size for a, size in zip(at, shape, strict=True)):
                matrix[index, at[0] * shape[1] + at[1]] = 1
        yield matrix


def _images_by_hand(net, name, x):
    """The recursion for `_Images`, pixel by pixel: rows and columns are sample times pixel."""
    values, eta, n = net.scaling, np.asarray(net.scaling.eta), len(x)
    m, sigma = np.asarray(values.multiplier, np.float64), np.asarray(values.sigma, np.float64)
    bias = (float(values.bias_sigma) ** 2, float(values.bias_eta))
    _, phi, slope = ACTIVATIONS[name]

    def apply(pair):
        if name in SLOPES:
            covariance, slopes = _arc_cosine(*SLOPES[name], pair[0])
            return covariance, slopes * pair[1]
        return _average(phi, pair[0]), _average(slope, pair[0]) * pair[1]

    def conv(pair, index, shape, stride=1):
        channels, *window = net.weights[index].shape[1:]
        gain = channels * m[index] ** 2
        covariance, ntk = pair
        parts = gain * sigma[index] ** 2 * covariance, gain * (eta[index] * covariance + sigma[index] ** 2 * ntk)
        reads = [np.kron(np.eye(n), a) for a in _averages(shape, window, stride)]
        return tuple(sum(a @ part @ a.T for a in reads) for part in parts)

    pixels = np.asarray(x, np.float64).reshape(-1, 1)
    pair = conv((pixels @ pixels.T, np.zeros((len(pixels), len(pixels)))), 0, (3, 4))
    pair = tuple(part + b for part, b in zip(pair, bias, strict=True))
    pair = tuple(a + b for a, b in zip(pair, conv(apply(pair), 1, (3, 4)), strict=True))
    pair = tuple(a + b for a, b in zip(conv(pair, 2, (3, 4), 2), conv(apply(pair), 3, (3, 4), 2), strict=True))
    pair = tuple(part.reshape(n, 4, n, 4).mean((1, 3)) for part in apply(pair))
    gain = net.weights[4].shape[1] * m[4] ** 2
    pair = gain * sigma[4] ** 2 * pair[0], gain * (eta[4] * pair[0] + sigma[4] ** 2 * pair[1])
    return tuple(float(values.gamma) ** 2 * (part + b) for part, b in zip(pair, bias, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_images_against_the_recursion(name, getkey):
    x = inputs(getkey(), 3, 12).reshape(3, 1, 3, 4)
    x = x.at[0, 0, :, :2].set(0)  # pixels around which nothing is lit
    net = _Images(6, name, getkey())
    nngp, ntk = _images_by_hand(net, name, x)
    found = kernels.infinite(net, x[:2], x[1:], eta=nets.rates(net))
    _assert_kernels(found, (nngp[:2, 1:], ntk[:2, 1:]))
    _assert_kernels(kernels.infinite(net, x, eta=nets.rates(net)), (nngp, ntk))


@functools.partial(jax.jit, static_argnames="make")
def _ensemble(make, keys, x):
    """NTKs of networks drawn from these keys, at the networks' rates."""
    ntk = lambda net: kernels.empirical(net, x, eta=nets.rates(net)).ntk[:, 0, :, 0]
    return jax.vmap(lambda key: ntk(make(key)))(keys)


def _z_scores(sample, expected):
    return np.abs(np.mean(sample, axis=0) - expected) / (np.std(sample, axis=0) / np.sqrt(len(sample)))


@pytest.mark.slow
def test_the_covariance_of_outputs(getkey):
    x, make = inputs(getkey(), 3), lambda key: mlp_of_width(128, "tanh", key)
    f = jax.jit(jax.vmap(lambda key: jax.vmap(make(key))(x)))(jr.split(getkey(), 4000))
    products = np.einsum("knc,kmc->knm", f, f) / 2
    found = kernels.infinite(make(getkey()), x).nngp
    assert _z_scores(products, found).max() < 4
    mixed = f[:, :, 0, None] * f[:, None, :, 1]
    assert _z_scores(mixed, 0).max() < 4  # different outputs are independent
    assert np.std(products, axis=0).max() / np.sqrt(4000) < 0.02 * np.max(found)


def mlp_of_width(width: int, activation: str, key) -> nets.MLP:
    """Two hidden layers; all hyperparameters different, their order that of the limit."""
    values = scaling(3)
    values = eqx.tree_at(lambda s: s.multiplier, values, values.multiplier / jnp.sqrt(jnp.array([3.0, width, width])))
    return nets.MLP(
        in_size=3,
        out_size=2,
        width_size=width,
        depth=2,
        activation=ACTIVATIONS[activation][0],
        bias=True,
        scaling=values,
        key=key,
    )


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", "softplus(5)", "images"])
def test_the_deviation_falls_like_width_to_minus_one_half(activation, getkey):
    widths = (32, 128, 512) if activation != "images" else (8, 24, 64)
    x = inputs(getkey(), 3) if activation != "images" else inputs(getkey(), 2, 12).reshape(2, 1, 3, 4)
    errors, keys, limit = [], jr.split(getkey(), 64 if activation != "images" else 32), np.ones(())
    for width in widths:
        if activation == "images":
            make = lambda key, width=width: _Images(width, "tanh", key)
        else:
            make = lambda key, width=width: mlp_of_width(width, activation, key)
        net = make(keys[0])
        limit = np.asarray(kernels.infinite(net, x, eta=nets.rates(net)).ntk)
        errors.append(np.sqrt(np.mean((np.asarray(_ensemble(make, keys, x)) - limit) ** 2)))
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)
    assert errors[-1] < 0.25 * np.max(limit)


# --- what is refused


class _Any(nets.AbstractLayered):
    """Any layers."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    scaling: nets.Scaling
    gains: tuple[Any, ...]
    normalizers: tuple[Any, ...]
    given: nets.Layers = eqx.field(static=True)

    @property
    def in_shape(self):
        return (3,)

    @property
    def layers(self):
        return self.given


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((Dense(0), Apply(nets.relu)), "it does not end in a layer with weights"),
        ((Apply(nets.tanh), Dense(0)), r"_Any applies tanh to features that are not Gaussian"),
        ((Dense(0), Apply(nets.relu), Apply(nets.tanh), Dense(1)), r"_Any applies tanh to features that are not"),
        ((Dense(0), Dense(0)), "uses one weight array in two layers"),
        ((Dense(0), Residual((Apply(nets.relu),)), Dense(1)), "a branch and a shortcut that depend on each other"),
        ((Dense(0), Residual((Residual((Dense(1),)),)), Dense(2)), "that depend on each other"),
        ((Dense(0), Gain(0), Dense(1)), r"it has the layer Gain\(index=0\)\. kernels\.empirical gives"),
        ((Dense(0), StandardizeBatch(0), Dense(1)), r"it has the layer StandardizeBatch"),
    ],
)
def test_layers_without_a_limit_are_named(layers, message):
    net = _Any(weights=(jnp.ones((3, 3)),) * 3, biases=(), scaling=scaling(3), gains=(), normalizers=(), given=layers)
    with pytest.raises(ValueError, match=message):
        kernels.infinite(net, jnp.ones((2, 3)))


def _shapes(make) -> Any:
    """A network without its numbers: what is refused, is refused for its layers."""
    return eqx.filter_eval_shape(make, jr.key(0))


@pytest.mark.usefixtures("as_users")
def test_bad_arguments(getkey, monkeypatch):
    net, x = mlp(getkey()), inputs(getkey(), 2)
    with pytest.raises(TypeError, match="the infinite width of MLP is not known: net must be one of the networks of"):
        kernels.infinite(eqx.nn.MLP(3, 1, 4, 1, key=getkey()), x)
    with pytest.raises(ValueError, match=r"x2 must hold inputs of shape \(3,\)"):
        kernels.infinite(net, x, x[:, :2])
    with pytest.raises(ValueError, match="x1 is float16 but the network's parameters are"):
        kernels.infinite(net, x.astype(jnp.float16))
    image = jnp.ones((2, 1, 8, 8))
    rule = nets.Scaling.ntk()
    post = _shapes(lambda key: nets.ResNet18(in_shape=(1, 8, 8), out_size=2, width_size=2, scaling=rule, key=key))
    with pytest.raises(ValueError, match="ResNet18 applies relu to features that are not Gaussian"):
        kernels.infinite(post, image)
    normed = nets.GroupNorm(4)
    normal = _shapes(
        lambda key: nets.WideResNet(
            in_shape=(1, 8, 8), out_size=2, k=1, b=1, normalization=normed, scaling=rule, key=key
        )
    )
    with pytest.raises(ValueError, match=r"WideResNet is not known in closed form: it has the layer StandardizeGroups"):
        kernels.infinite(normal, image)

    def missing():
        raise door.NeuralTangentsUnavailable("neural-tangents is not installed")

    monkeypatch.setattr(door, "neural_tangents", missing)
    with pytest.raises(kernels.NeuralTangentsUnavailable, match="is not installed"):
        kernels.infinite(net, inputs(getkey(), 7))
