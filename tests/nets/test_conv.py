import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve import Problem
from jaxsolve.nets import (
    AbstractInit,
    ConvNet,
    Given,
    LambdaBalanced,
    Mirrored,
    NearParallel,
    partition,
    rates,
    Scaling,
    Sphere,
)
from tests.cases import assert_fails, eps
from tests.nets.images import convolve, draw, Drawn, drifts, problem, relu, velocity
from tests.nets.twins import left_out


IMAGE = (2, 8, 8)


def _scaling(**changes):
    """Five weight arrays, every hyperparameter different."""
    values = {
        "multiplier": np.array([0.25, 0.15, 0.2, 0.12, 1.1]),
        "sigma": np.array([0.9, 0.7, 1.2, 0.8, 0.5]),
        "eta": np.array([1.7, 0.4, 2.3, 0.9, 0.6]),
        "gamma": 0.75,
        "bias_sigma": 0.3,
        "bias_eta": 0.65,
    }
    return Scaling(**(values | changes))


SHAPES = [(4, 2, 5, 5), *[(4, 4, 5, 5)] * 3, (2, 4)]


def _net(key, activation: str = "relu", *, bias=True, init: AbstractInit = Drawn(), dtype=None, **changes: Any):
    return ConvNet(
        in_shape=IMAGE,
        out_size=2,
        width_size=4,
        activation=activation,
        bias=bias,
        scaling=_scaling(**changes),
        init=init,
        key=key,
        dtype=dtype,
    )


def _forward(net, x):
    """The network in NumPy: strides 2, 1, 2, 1, the average over pixels, the read-out."""
    z = np.asarray(x)
    multipliers = np.asarray(net.scaling.multiplier)
    for index, stride in enumerate((2, 1, 2, 1)):
        z = multipliers[index] * convolve(net.weights[index], z, stride)
        z = relu(z + np.asarray(net.biases[index])[:, None, None] if net.biases else z)
    z = multipliers[4] * np.asarray(net.weights[4]) @ z.mean((1, 2))
    return np.asarray(net.scaling.gamma) * (z + np.asarray(net.biases[4]) if net.biases else z)


def _assert_forward(out, net, x):
    def check(net):
        expected = np.stack([_forward(net, one) for one in x])
        np.testing.assert_allclose(out, expected, rtol=0, atol=eps(20) * np.max(np.abs(expected)))

    check(net)
    # a convolution in the sense of mathematics turns the window round
    turned = eqx.tree_at(lambda net: net.weights[2], net, net.weights[2][..., ::-1, ::-1])
    for twin in (turned, *left_out(net)):
        assert_fails(functools.partial(check, twin))


def test_forward_is_the_formula(getkey):
    net, x = _net(getkey(), bias=False), draw(getkey(), 2, *IMAGE)
    _assert_forward(jax.jit(jax.vmap(net))(x), net, x)


def test_an_ensemble_is_the_formula(getkey):
    """Mapped over networks and samples."""
    members, x = [_net(getkey()) for _ in range(2)], draw(getkey(), 2, *IMAGE)
    ensemble = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    out = eqx.filter_jit(eqx.filter_vmap(lambda net: jax.vmap(net)(x)))(ensemble)
    for index, net in enumerate(members):
        _assert_forward(out[index], net, x)


def test_shapes_rates_and_parameters(getkey):
    net = _net(getkey())
    assert [w.shape for w in net.weights] == SHAPES
    assert [b.shape for b in net.biases] == [*[(4,)] * 4, (2,)]
    assert (net.in_shape, net.out_size, net.gains, net.normalizers) == (IMAGE, 2, (), ())
    params, eta = partition(net)[0], rates(net)
    assert eqx.tree_equal(jax.tree.leaves(params), [*net.weights, *net.biases])
    assert jax.tree.structure(params) == jax.tree.structure(eta)
    np.testing.assert_allclose(jnp.stack(eta.weights), [1.7, 0.4, 2.3, 0.9, 0.6], rtol=eps(2))
    np.testing.assert_allclose(jnp.stack(eta.biases), 0.65, rtol=eps(2))
    small = _net(getkey(), bias=False, dtype="float16")
    assert small.biases == ()
    assert {leaf.dtype for leaf in jax.tree.leaves(small)} == {jnp.dtype("float16")}


# width 8, 3 input channels, 2 outputs; a window is 25 pixels
FAN_IN = np.array([75, 200, 200, 200, 8])
FAN_OUT = np.array([200, 200, 200, 200, 2])
RULES = {
    "ntk": (Scaling.ntk(), FAN_IN**-0.5, np.ones(5), np.ones(5)),
    "mean_field": (Scaling.mean_field(), [*FAN_IN[:4] ** -0.5, 1 / 8], np.ones(5), np.full(5, 8)),
    "xavier": (Scaling.xavier(), np.ones(5), (2 / (FAN_IN + FAN_OUT)) ** 0.5, np.ones(5)),
    "kaiming": (Scaling.kaiming(), np.ones(5), (2 / FAN_IN) ** 0.5, np.ones(5)),
    "mup": (Scaling.mup(), np.ones(5), [*FAN_IN[:4] ** -0.5, 1 / 8], [8, 1, 1, 1, 1 / 8]),
    "mup, Adam": (Scaling.mup(adam=True), np.ones(5), [*FAN_IN[:4] ** -0.5, 1 / 8], [1, *1 / FAN_IN[1:]]),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_count_the_window(name, getkey):
    rule, *expected = RULES[name]
    made = ConvNet(in_shape=(3, 8, 8), out_size=2, width_size=8, scaling=rule, init=Drawn(), key=getkey()).scaling
    for found, wanted in zip((made.multiplier, made.sigma, made.eta), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=eps(5))


@eqx.filter_jit
def _outputs(width, keys, x, sigma):
    """The outputs of one network after the other, under the ntk scaling with gain."""
    rule = Scaling.ntk(sigma=sigma, gain=True)
    return jax.lax.map(
        lambda key: jax.vmap(ConvNet(in_shape=IMAGE, out_size=2, width_size=width, scaling=rule, key=key))(x), keys
    )


@pytest.mark.slow
def test_outputs_keep_their_size_as_the_width_grows(getkey):
    x, keys = draw(getkey(), 2, *IMAGE), jax.random.split(getkey(), 100)
    sizes = [float(jnp.sqrt(jnp.mean(_outputs(width, keys, x, jnp.ones(5)) ** 2))) for width in (2, 8)]
    assert 0.05 < sizes[0] < 1  # the average over 2 x 2 pixels and the zeros around them take their part
    assert 0.75 < sizes[1] / sizes[0] < 1.33


def test_sigma_multiplies_every_layer(getkey):
    """A homogeneous network without biases grows like the product of the sigmas."""
    x, keys = draw(getkey(), 2, *IMAGE), jax.random.split(getkey(), 100)
    output = lambda sigma: _outputs(2, keys, x, sigma)
    base = output(jnp.ones(5))
    for index, factor in (*((i, 1.5) for i in range(5)), (slice(5), 1.5**5)):
        out = output(jnp.ones(5).at[index].set(1.5))
        np.testing.assert_allclose(out, factor * base, rtol=0, atol=eps(50) * float(jnp.max(jnp.abs(out))))


@pytest.mark.parametrize("layer", [0, 2])
def test_abc_symmetry(layer, getkey):
    """(m, sigma, eta) -> (m s, sigma/s, eta/s^2): the same function, and the flow moves W_l/s at 1/s of the speed."""
    key, data, s = getkey(), getkey(), 1.7
    base = _scaling()
    scaled = lambda name, factor: np.asarray(getattr(base, name)) * np.where(np.arange(5) == layer, factor, 1.0)

    def motion(multiplier, sigma, eta):
        factors: dict[str, Any] = {"multiplier": multiplier, "sigma": sigma, "eta": eta}
        changes: dict[str, Any] = {name: scaled(name, factor) for name, factor in factors.items()}
        start = problem(_net(key, **changes), data)
        return start.objective(start.params), velocity(start)

    value, expected = motion(1, 1, 1)
    expected = eqx.tree_at(lambda v: v.weights[layer], expected, expected.weights[layer] / s)
    found_value, found = motion(s, 1 / s, s**-2)
    np.testing.assert_allclose(found_value, value, rtol=eps(50))

    def check(found):
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=eps(20) * np.max(np.abs(b)))

    check(found)
    assert_fails(lambda: check(motion(s, 1 / s, 1)[1]))  # the rate as it was


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_conserved_quantities_have_no_slope_along_the_flow(activation, getkey):
    """d lambda/dt vanishes at the start, for unequal rates and multipliers; with one rate left out it does not."""
    start = problem(_net(getkey(), activation), getkey())
    quantities = start.net.conserved(start.params, start.eta)
    assert [q.value.shape for q in quantities] == [(4,) if activation == "relu" else (4, 4)] * 4
    drift = lambda eta: float(jnp.max(drifts(start.net, start.params, velocity(start), eta)))
    assert drift(start.eta) < eps(100)
    for index in range(5):
        assert drift(eqx.tree_at(lambda eta, i=index: eta.weights[i], start.eta, replace_fn=jnp.ones_like)) > 0.01
    assert drift(eqx.tree_at(lambda eta: eta.biases[0], start.eta, replace_fn=jnp.ones_like)) > 0.01


@pytest.mark.slow
@pytest.mark.x64_only
def test_conserved_quantities_stay_along_a_flow(getkey):
    """Up to the integrator's error, which the twins with one eta left out exceed."""
    start = problem(_net(getkey(), "linear"), getkey())
    end = js.solve(start, js.GradientFlow(rtol=1e-7, atol=1e-9), jnp.asarray([0.0, 1.0])).final.params
    assert start.objective(end) < 0.9 * start.objective(start.params)

    def drift(eta):
        before, after = (start.net.conserved(params, eta) for params in (start.params, end))
        return [float(jnp.max(jnp.abs(b.value - a.value))) for a, b in zip(before, after, strict=True)]

    assert max(drift(start.eta)) < 2e-7
    for index in range(5):
        twin = eqx.tree_at(lambda eta, i=index: eta.weights[i], start.eta, replace_fn=jnp.ones_like)
        assert max(drift(twin)) > 1e-2


def test_smooth_activations_conserve_nothing(getkey):
    net = _net(getkey(), "tanh")
    assert net.conserved(partition(net)[0], rates(net)) == ()


# --- initialization


def test_mirrored_vanishes_and_given_is_given(getkey):
    x = draw(getkey(), *IMAGE)
    net = _net(getkey(), init=Mirrored(Drawn()))
    np.testing.assert_allclose(jax.jit(lambda x: net(x))(x), 0, atol=eps(1))
    np.testing.assert_array_equal(net.weights[3][:2], net.weights[3][2:])
    assert jnp.max(jnp.abs(net.weights[4])) > 0.01
    weights, biases = [np.asarray(w) for w in net.weights], [np.ones_like(b) for b in net.biases]
    again = _net(getkey(), init=Given(weights, biases))
    assert eqx.tree_equal(again.weights, net.weights)
    np.testing.assert_array_equal(again.biases[0], 1)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("init", [Sphere(), NearParallel(0.1), LambdaBalanced()])
def test_other_initializations_are_for_dense_networks(init, getkey):
    with pytest.raises(ValueError, match=rf"{type(init).__name__} is for dense networks, got weights of shapes"):
        ConvNet(in_shape=IMAGE, out_size=2, width_size=4, scaling=_scaling(), init=init, key=getkey())


# --- bad input


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("in_shape", "error", "message"),
    [
        ((2, 3, 8), ValueError, r"in_shape \(2, 3, 8\) is too small: .* at least 4 x 4 pixels"),
        ((8, 8), ValueError, r"in_shape must be \(channels, height, width\) of one image, got tuple"),
        (64, ValueError, r"in_shape must be \(channels, height, width\) of one image, got int 64"),
        ((1, 8.0, 8), TypeError, r"in_shape\[1\] must be an integer >= 1, got float"),
        ((0, 8, 8), ValueError, r"in_shape\[0\] must be an integer >= 1, got 0"),
    ],
)
def test_bad_shapes(in_shape, error, message, getkey):
    with pytest.raises(error, match=message):
        ConvNet(in_shape=in_shape, out_size=2, width_size=4, scaling=Scaling.ntk(), key=getkey())


@pytest.mark.usefixtures("as_users")
def test_other_bad_arguments(getkey):
    key = getkey()
    with pytest.raises(ValueError, match="width_size must be an integer >= 1, got 0"):
        ConvNet(in_shape=IMAGE, out_size=2, width_size=0, scaling=Scaling.ntk(), key=key)
    with pytest.raises(ValueError, match="out_size must be an integer >= 1, got 0"):
        ConvNet(in_shape=IMAGE, out_size=0, width_size=2, scaling=Scaling.ntk(), key=key)
    with pytest.raises(ValueError, match="this network has 5 weight matrices, the Scaling is for 2"):
        ConvNet(in_shape=IMAGE, out_size=1, width_size=2, scaling=Scaling([1, 1], [1, 1], [1, 1]), key=key)
    with pytest.raises(TypeError, match="bias must be True or False"):
        ConvNet(in_shape=IMAGE, out_size=1, width_size=2, bias=1, scaling=Scaling.ntk(), key=key)  # pyright: ignore
    net = _net(getkey())
    with pytest.raises(ValueError, match=r"has shape \(2, 8, 7\), the network takes \(2, 8, 8\)"):
        Problem(net, np.zeros((3, 2, 8, 7)), np.zeros((3, 1)))
