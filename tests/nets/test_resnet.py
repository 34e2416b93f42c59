import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import nets, Problem
from jaxsolve.nets import (
    AbstractInit,
    BatchNorm,
    GroupNorm,
    Mirrored,
    NoNormalization,
    ResNet18,
    Scaling,
    Start,
    WideResNet,
)
from tests.cases import assert_fails, eps, randomized
from tests.inside import AbstractNormalization, LayerRegister, SpatialMean
from tests.nets.images import convolve, draw, Drawn, drifts, problem, relu, velocity


IMAGE = (1, 8, 8)


def _sizes(make):
    """The network with shapes in place of its arrays: nothing is drawn or compiled."""
    return eqx.filter_eval_shape(lambda: make(scaling=Scaling.ntk(), key=jax.random.key(0)))


def _net(make, key, **options):
    """A network whose hyperparameters all differ, and whose biases and gains are drawn by NumPy."""
    shapes = [w.shape for w in _sizes(lambda **rest: make(**rest, **options)).weights]
    spread = 1 + 0.3 * np.sin(np.arange(1, len(shapes) + 1))
    multiplier = spread / np.sqrt([np.prod(shape[1:]) for shape in shapes])
    net = make(scaling=Scaling(multiplier, spread, spread, 0.75, bias_eta=0.65), init=Drawn(), key=key, **options)
    vectors = lambda arrays: tuple(draw(jax.random.fold_in(key, i), *a.shape) for i, a in enumerate(arrays))
    where = lambda net: (net.biases, net.gains)
    return eqx.tree_at(where, net, (vectors(net.biases), tuple(1 + 0.3 * g for g in vectors(net.gains))))


class _Arrays:
    """Hands out the arrays of a network one after the other, in the order in which a sample meets them."""

    def __init__(self, net, groups):
        as_arrays = lambda leaves: iter([np.asarray(leaf) for leaf in leaves])
        self.weights, self.biases, self.gains = as_arrays(net.weights), as_arrays(net.biases), as_arrays(net.gains)
        self.multipliers, self.groups = as_arrays(net.scaling.multiplier), groups
        self.bias = len(net.biases) > len(net.gains)  # normalizations have theirs in any case

    def own_bias(self, z, drawn):
        return z + next(self.biases).reshape(-1, *(1,) * (z.ndim - 1)) if drawn else z

    def conv(self, z, stride=1):
        return self.own_bias(next(self.multipliers) * convolve(next(self.weights), z, stride), self.bias)

    def normalize(self, z):
        if not self.groups:
            return z
        grouped = z.reshape(self.groups, -1)
        scale = np.sqrt(grouped.var(1, keepdims=True) + 1e-5)
        out = ((grouped - grouped.mean(1, keepdims=True)) / scale).reshape(z.shape)
        return self.own_bias(next(self.gains)[:, None, None] * out, drawn=True)

    def read_out(self, z):
        return 0.75 * self.own_bias(next(self.multipliers) * next(self.weights) @ z.mean((1, 2)), self.bias)


def _wide(net, x, groups, b):
    arrays = _Arrays(net, groups)
    z = arrays.conv(np.asarray(x))
    for out, stride in ((net.weights[-1].shape[1] // 4, 1), (net.weights[-1].shape[1] // 2, 2), (None, 2)):
        for block in range(b):
            changes = block == 0 and (stride == 2 or z.shape[0] != out)
            before = relu(arrays.normalize(z))
            inner = relu(arrays.normalize(arrays.conv(before, stride if block == 0 else 1)))
            branch = arrays.conv(inner)
            z = branch + (arrays.conv(before, stride) if changes else z)
    return arrays.read_out(relu(arrays.normalize(z)))


def _eighteen(net, x, groups):
    arrays = _Arrays(net, groups)
    z = relu(arrays.normalize(arrays.conv(np.asarray(x))))
    for group, block in itertools.product(range(4), range(2)):
        stride = 2 if group and not block else 1
        inner = relu(arrays.normalize(arrays.conv(z, stride)))
        branch = arrays.normalize(arrays.conv(inner))
        z = relu(branch + (arrays.normalize(arrays.conv(z, stride)) if stride == 2 else z))
    return arrays.read_out(z)


def _assert_forward(net, x, formula):
    out = eqx.filter_jit(net)(x)

    def check(net):
        expected = formula(net)
        np.testing.assert_allclose(out, expected, rtol=0, atol=eps(10) * np.max(np.abs(expected)))

    check(net)
    # Without normalization every multiplier counts; behind one the gain and the bias before the read-out do.
    without = (lambda net: net.gains[-1]) if net.gains else (lambda net: net.scaling.multiplier)
    assert_fails(lambda: check(eqx.tree_at(without, net, replace_fn=jnp.ones_like)))
    if net.biases:
        assert_fails(lambda: check(eqx.tree_at(lambda net: net.biases[-1], net, replace_fn=jnp.zeros_like)))


WRN = lambda k, b: lambda **rest: WideResNet(in_shape=IMAGE, out_size=2, k=k, b=b, **rest)
R18 = lambda **rest: ResNet18(in_shape=IMAGE, out_size=2, width_size=2, **rest)


def test_wide_resnet_is_the_formula(getkey):
    net, x = _net(WRN(1, 1), getkey(), normalization=GroupNorm(4), bias=True), draw(getkey(), *IMAGE)
    _assert_forward(net, x, lambda net: _wide(net, x, 4, 1))


@pytest.mark.slow
@pytest.mark.parametrize("norm", [NoNormalization(), GroupNorm(8)])
def test_wider_and_deeper_resnet_is_the_formula(norm, getkey):
    net, x = _net(WRN(2, 2), getkey(), normalization=norm), draw(getkey(), *IMAGE)
    _assert_forward(net, x, lambda net: _wide(net, x, getattr(norm, "groups", 0), 2))


def test_resnet18_is_the_formula(getkey):
    net, x = _net(R18, getkey(), normalization=GroupNorm(2), bias=True), draw(getkey(), *IMAGE)
    _assert_forward(net, x, lambda net: _eighteen(net, x, 2))


@pytest.mark.slow
def test_resnet18_without_normalization_is_the_formula(getkey):
    net, x = _net(R18, getkey()), draw(getkey(), *IMAGE)
    _assert_forward(net, x, lambda net: _eighteen(net, x, 0))


@pytest.mark.parametrize("make", [pytest.param(WRN(2, 1), marks=pytest.mark.slow), R18], ids=["wide", "18"])
def test_a_wider_window_with_a_border_of_zeros_is_the_same_network(make, getkey):
    narrow = make(scaling=Scaling.standard(), key=getkey())
    wide = make(window=5, scaling=Scaling.standard(), key=getkey())
    grown = [w if w.shape[2:] in ((), (1, 1)) else jnp.pad(w, ((0, 0), (0, 0), (1, 1), (1, 1))) for w in narrow.weights]
    assert [w.shape for w in wide.weights] == [w.shape for w in grown]
    bordered = eqx.tree_at(lambda net: net.weights, wide, tuple(grown))
    x = draw(getkey(), *IMAGE)
    np.testing.assert_allclose(bordered(x), narrow(x), rtol=eps(100), atol=eps(100))
    assert_fails(lambda: np.testing.assert_allclose(wide(x), narrow(x), rtol=0.1))


@pytest.mark.parametrize(("k", "b"), [(1, 1), (10, 4)])
def test_wide_resnet_has_the_sizes_of_its_name(k, b):
    net = _sizes(
        lambda **rest: WideResNet(in_shape=(3, 32, 32), out_size=10, k=k, b=b, normalization=GroupNorm(16), **rest)
    )
    shapes = [w.shape for w in net.weights]
    assert len(shapes) - 1 == 6 * b + 4 - (k == 1)  # the depth, less the 1 x 1 convolution not needed
    assert shapes[0] == (16, 3, 3, 3)
    assert shapes[-1] == (10, 64 * k)
    assert [s[:2] for s in shapes if s[2:] == (1, 1)] == [(16 * k, 16), (32 * k, 16 * k), (64 * k, 32 * k)][k == 1 :]
    assert len(net.gains) == len(net.biases) == 6 * b + 1
    assert (net.in_shape, net.out_size, net.normalizers) == ((3, 32, 32), 10, ())
    if (k, b) == (10, 4):  # WRN-28-10: 36.5 million parameters (Zagoruyko & Komodakis, Table 2)
        assert round(sum(a.size for a in (*net.weights, *net.biases, *net.gains)) / 1e6, 1) == 36.5


def test_resnet18_has_the_sizes_of_its_name():
    net = _sizes(lambda **rest: ResNet18(in_shape=(3, 32, 32), out_size=10, normalization=GroupNorm(32), **rest))
    assert len(net.weights) == 21
    assert [w.shape[0] for w in net.weights if w.shape[2:] == (3, 3)] == [64] * 5 + [128] * 4 + [256] * 4 + [512] * 4
    assert [w.shape[:2] for w in net.weights if w.shape[2:] == (1, 1)] == [(128, 64), (256, 128), (512, 256)]
    assert len(net.gains) == len(net.biases) == 20
    # 11.2 million: the original's 11.17 without the biases of the read-out
    assert round(sum(a.size for a in (*net.weights, *net.biases, *net.gains)) / 1e6, 2) == 11.17


def test_gains_biases_and_rates(getkey):
    rule = Scaling.ntk(eta=2.0).with_bias(sigma=1.0, eta=0.5)
    net = R18(scaling=rule, init=Drawn(), normalization=GroupNorm(2), bias=True, key=getkey())
    assert (len(net.gains), len(net.biases)) == (20, 41)
    assert all(float(jnp.min(g)) == float(jnp.max(g)) == 1 for g in net.gains)
    zero = [not np.any(b) for b in net.biases]  # those of the normalization, each after that of its convolution
    assert zero == [False, True] * 20 + [False]
    params, eta = nets.partition(net)[0], nets.rates(net)
    assert jax.tree.structure(params) == jax.tree.structure(eta)
    assert eqx.tree_equal(jax.tree.leaves(params), [*net.weights, *net.biases, *net.gains])
    assert {float(e) for e in eta.weights} == {2.0}
    assert {float(e) for e in (*eta.biases, *eta.gains)} == {0.5}
    assert net.conserved(params, eta) == ()


class _Sigmas(AbstractInit):
    """Every weight is its sigma."""

    def __call__(self, shapes, scaling, key):
        return Start(tuple(s * np.ones(shape) for s, shape in zip(scaling.sigma, shapes.weights, strict=True)), ())


@pytest.mark.parametrize("make", [R18, WRN(2, 1)])
def test_sigma_multiplies_the_start_of_every_layer(make, getkey):
    """Each by its own factor, on the square root of 2/fan_in, the window counted."""
    count = len(_sizes(make).weights)
    factors = 1.0 + np.arange(count)
    net = make(scaling=Scaling.kaiming(sigma=factors), init=_Sigmas(), key=getkey())
    for factor, w in zip(factors, net.weights, strict=True):
        np.testing.assert_allclose(w, factor * np.sqrt(2 / np.prod(w.shape[1:])), rtol=eps(5))


def test_conserved_quantities_have_no_slope_along_the_flow(getkey):
    """One pair of convolutions per block; with one rate left out its quantity drifts."""
    start = problem(_net(WRN(1, 1), getkey()), getkey())
    drift = lambda eta: drifts(start.net, start.params, velocity(start), eta)
    assert drift(start.eta).shape == (3,)
    assert jnp.max(drift(start.eta)) < eps(25)
    for pair, index in enumerate((1, 3, 6)):  # the first convolution of each block
        found = drift(eqx.tree_at(lambda eta, i=index: eta.weights[i], start.eta, replace_fn=jnp.ones_like))
        assert found[pair] > 0.01


# --- batch normalization


class Small(nets.AbstractLayered):
    """One convolution, batch normalization, the average, the read-out."""

    weights: tuple
    biases: tuple
    gains: tuple
    normalizers: tuple
    scaling: Scaling
    found: nets.Layers = eqx.field(static=True)

    def __init__(self, key, normalization: AbstractNormalization = BatchNorm()):
        register = LayerRegister(nets.tanh, normalization, False)
        layers = (*register.conv(1, 3, 3, 2), *register.activate(3))
        self.found = (*layers, SpatialMean(), *register.dense(3, 2))
        scaling = Scaling([0.4, 0.8], [1.0, 1.0], [1.7, 0.6], 0.75, bias_eta=0.65)
        parts = register.build(scaling=scaling, init=Drawn(), key=key, dtype=None)
        self.weights, self.biases, self.gains, self.normalizers, self.scaling = parts

    @property
    def in_shape(self):
        return (1, 4, 4)

    @property
    def layers(self):
        return self.found


def _start(getkey, **options):
    net, state = eqx.nn.make_with_state(Small)(getkey())
    return problem(net, getkey(), n=3, test=2, state=state, **options)


def _by_hand(net, x, training):
    """The network in NumPy at inputs x, with the statistics of the training set."""
    arrays = [np.asarray(a) for a in (*net.weights, *net.gains, *net.biases)]
    w, u, g, b = arrays
    z, seen = (0.4 * np.stack([convolve(w, one, 2) for one in np.asarray(batch)]) for batch in (x, training))
    mean, variance = (f(seen, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    z = g[:, None, None] * (z - mean) / np.sqrt(variance + 1e-5) + b[:, None, None]
    return 0.75 * 0.8 * np.tanh(z).mean((2, 3)) @ u.T


def test_outputs_use_the_statistics_of_the_training_set(getkey):
    start = _start(getkey)
    params = randomized(start.params, getkey())
    net = start.network(params)
    assert start.x_test is not None
    check = lambda found, x: np.testing.assert_allclose(found, _by_hand(net, x, start.x), rtol=0, atol=eps(5))
    run = jax.jit(lambda p: (start.outputs(p), start.test_outputs(p), start.predict(p, start.x)))
    outputs, test_outputs, again = run(params)
    check(outputs, start.x)
    check(test_outputs, start.x_test)
    np.testing.assert_allclose(again, outputs, rtol=0, atol=eps(5))
    alone = _by_hand(net, start.x_test, start.x_test)
    assert np.max(np.abs(alone - test_outputs)) > 0.01  # its own statistics would say something else


def test_centered_outputs_vanish_at_the_start(getkey):
    start = _start(getkey, centered=True)
    out = jax.jit(lambda p: (start.outputs(p), start.test_outputs(p), start.predict(p, start.x)))(start.params)
    assert all(jnp.max(jnp.abs(f)) < eps(5) for f in out)


@pytest.mark.parametrize("which", ["train", "test"])
def test_kernel_drives_the_batch_function(which, getkey):
    """df/dt = -K dL/df, with K between the inputs asked for and the training set."""
    start = _start(getkey)
    x = start.x if which == "train" else start.x_test
    assert x is not None

    @jax.jit
    def both(params):
        speed = jax.tree.map(lambda rate, g: -rate * g, start.eta, jax.grad(start.objective)(params))
        kernel = start.kernel(params, x, start.x)
        slope = start.loss.gradient(start.outputs(params), start.y)
        motion = jax.jvp(lambda p: start.predict(p, x), (params,), (speed,))[1]
        by_sample = -jnp.einsum("iajb,jb->jia", kernel, slope)
        return motion, by_sample, kernel

    motion, by_sample, kernel = both(randomized(start.params, getkey()))
    check = lambda found: np.testing.assert_allclose(found, motion, rtol=0, atol=eps(10) * np.max(np.abs(motion)))
    check(jnp.sum(by_sample, axis=0))
    assert_fails(lambda: check(jnp.sum(by_sample[1:], axis=0)))  # one training sample left out
    assert kernel.shape == (x.shape[0], 2, 3, 2)


def test_state_is_asked_for_and_refused(getkey):
    net, state = eqx.nn.make_with_state(Small)(getkey())
    x, y = np.zeros((2, 1, 4, 4), net.weights[0].dtype), np.zeros((2, 2))
    with pytest.raises(ValueError, match=r"this network has state .* give Problem\(..., state=state\); got state=None"):
        Problem(net, x, y)
    with pytest.raises(ValueError, match=r"normalizes over batches: call it as net\(x, state\) under jax.vmap"):
        net(x[0])
    plain = Small(getkey(), GroupNorm(1))
    with pytest.raises(ValueError, match="this network has no state, so Problem needs state=None, got State"):
        Problem(plain, x, y, state=state)
    out, same = plain(jnp.asarray(x[0]), state)
    np.testing.assert_array_equal(out, plain(jnp.asarray(x[0])))
    assert same is state


def test_resnets_take_batch_normalization(getkey):
    def batch(x):
        net, state = eqx.nn.make_with_state(ResNet18)(
            in_shape=(3, 8, 8),
            out_size=2,
            width_size=2,
            normalization=BatchNorm(),
            scaling=Scaling.kaiming(),
            key=jax.random.key(0),
        )
        assert [norm.input_size for norm in net.normalizers] == [gain.size for gain in net.gains]
        assert len(net.gains) == 20
        return jax.vmap(net, (0, None), (0, None), axis_name="batch")(x, state)

    x = jax.ShapeDtypeStruct((5, 3, 8, 8), jnp.result_type(float))
    out, state = eqx.filter_eval_shape(batch, x)
    assert out.shape == (5, 2)
    assert isinstance(state, eqx.nn.State)


# --- bad input


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda **r: R18(normalization=GroupNorm(3), **r), ValueError, r"GroupNorm\(3\) cannot divide 2 channels"),
        (lambda **r: WRN(1, 1)(normalization=GroupNorm(32), **r), ValueError, r"GroupNorm\(32\) cannot divide 16"),
        (
            lambda **r: R18(normalization="group", **r),
            TypeError,
            "normalization must be nets.NoNormalization.* 'group'",
        ),
        (lambda **r: R18(normalization=BatchNorm, **r), TypeError, "normalization must be nets.NoNormalization"),
        (lambda **r: ResNet18(in_shape=(1, 7, 8), out_size=2, **r), ValueError, r"too small: .* at least 8 x 8 pixels"),
        (
            lambda **r: WideResNet(in_shape=(1, 8, 3), out_size=2, k=1, b=1, **r),
            ValueError,
            r"too small: .* at least 4 x 4 pixels",
        ),
        (
            lambda **r: WideResNet(in_shape=(1, 8), out_size=2, k=1, b=1, **r),  # pyright: ignore
            ValueError,
            r"in_shape must be \(channels, height, width\)",
        ),
        (lambda **r: R18(window=4, **r), ValueError, "window must be odd, so that a convolution has a middle, got 4"),
        (lambda **r: WRN(0, 1)(**r), ValueError, "k must be an integer >= 1, got 0"),
        (lambda **r: WRN(1, 0)(**r), ValueError, "b must be an integer >= 1, got 0"),
        (lambda **r: WRN(1, 1)(init=Mirrored(), **r), ValueError, "Mirrored needs a network without residual branches"),
        (lambda **r: R18(bias=1, **r), TypeError, "bias must be True or False, got int 1"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make(scaling=Scaling.ntk(), key=jax.random.key(0))


@pytest.mark.usefixtures("as_users")
def test_bad_normalizations():
    with pytest.raises(ValueError, match="groups must be an integer >= 1, got 0"):
        GroupNorm(0)
    for make in (lambda: GroupNorm(2, eps=0.0), lambda: BatchNorm(eps=-1.0)):
        with pytest.raises(ValueError, match="eps must be finite and > 0"):
            make()
