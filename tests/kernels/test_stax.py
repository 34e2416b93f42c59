"""Networks of neural-tangents, as neural-tangents has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import InfiniteWidth, kernels, nets, observe, Problem, solve
from tests.cases import assert_fails, eps


# What neural-tangents says of any product of branches, and of any attention.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`FanIn` layers assume"),
    pytest.mark.filterwarnings("ignore:Linear scaling attention"),
]


@pytest.fixture(autouse=True)
def _as_written():
    """The rules of promotion that neural-tangents was written for."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _branches(stax, end):
    sides = (stax.serial(stax.Dense(128), stax.Relu()), stax.serial(stax.Dense(128), stax.Erf()))
    return stax.serial(stax.FanOut(2), stax.parallel(*sides), end, stax.Dense(16))


def _images(stax, *layers, padding="SAME"):
    return stax.serial(stax.Conv(128, (3, 3), padding=padding), stax.Relu(), *layers, stax.Dense(16))


# A network of 16 outputs and the shape of an input.
NETWORKS = {
    "biases": (lambda s: s.serial(s.Dense(128, b_std=0.3), s.Gelu(), s.Dense(16, b_std=0.2)), (5,)),
    "layer normalization": (lambda s: s.serial(s.Dense(128), s.LayerNorm(), s.Relu(), s.Dense(16)), (5,)),
    "product": (lambda s: _branches(s, s.FanInProd()), (5,)),
    "concatenation": (lambda s: _branches(s, s.FanInConcat(-1)), (5,)),
    "flatten": (lambda s: _images(s, s.Flatten()), (4, 4, 2)),
    "average pooling": (lambda s: _images(s, s.AvgPool((2, 2), (2, 2)), s.Flatten()), (4, 4, 2)),
    "valid": (lambda s: _images(s, s.GlobalAvgPool(), padding="VALID"), (4, 4, 2)),
    "circular": (lambda s: _images(s, s.GlobalAvgPool(), padding="CIRCULAR"), (4, 4, 2)),
    "attention": (lambda s: _images(s, s.GlobalSelfAttention(128, 128, 8, 16), s.Flatten()), (4, 4, 2)),
}


def _distance(one, two):
    return float(jnp.linalg.norm(one - two) / jnp.linalg.norm(two))


@pytest.mark.parametrize("name", NETWORKS)
def test_wide_networks_have_the_kernels_of_infinite_width(name, getkey):
    """The average of ten networks from `from_stax`, whose kernels are computed here, beside what kernel_fn says."""
    make, shape = NETWORKS[name]
    network = make(kernels.neural_tangents().stax)
    x = jax.random.normal(getkey(), (4, *shape))
    drawn = [nets.from_stax(network, network[0](getkey(), (-1, *shape))[1]) for _ in range(10)]
    limit = kernels.infinite(drawn[0], x)
    # The parts of wide networks have errors of 1/sqrt(10 . 128) = 3 %, their outputs of 1/sqrt(160) = 8 %.
    ntk = sum(kernels.empirical(net, x, trace=True).ntk for net in drawn) / 160
    nngp = sum(kernels.empirical_nngp(net, x) for net in drawn) / 10
    assert _distance(ntk, limit.ntk) < 0.1
    assert _distance(nngp, limit.nngp) < 0.25
    assert _distance(ntk, limit.ntk - limit.nngp) > 0.3  # without what the last layer's weights add


def _small(getkey):
    """A network with a pooling that no network of this library has, its parameters, and images."""
    stax = kernels.neural_tangents().stax
    network = stax.serial(stax.Conv(4, (2, 2), padding="VALID"), stax.Erf(), stax.SumPool((2, 2)), stax.Flatten())
    network = stax.serial(network, stax.Dense(2, b_std=0.5))
    x = jax.random.normal(getkey(), (4, 4, 4, 1))
    return network, network[0](getkey(), (-1, 4, 4, 1))[1], x


def test_outputs_and_kernels_are_its_own(getkey):
    nt, (network, params, x) = kernels.neural_tangents(), _small(getkey)
    net = nets.from_stax(network, params)
    np.testing.assert_allclose(jax.vmap(net)(x), network[1](params, x), atol=eps(10))
    blocks = nt.empirical_ntk_fn(network[1], trace_axes=())(x[:2], x[2:], params)
    ours = kernels.empirical(net, x[:2], x[2:]).ntk
    np.testing.assert_allclose(ours, np.transpose(blocks, (0, 2, 1, 3)), atol=eps(100))
    nngp = nt.empirical_nngp_fn(network[1])(x[:2], x[2:], params)
    np.testing.assert_allclose(kernels.empirical_nngp(net, x[:2], x[2:]), nngp, atol=eps(10))
    assert_fails(lambda: np.testing.assert_allclose(kernels.empirical_nngp(net, x[:2]), nngp, atol=eps(10)))


def test_kernels_of_infinite_width_are_its_own(getkey):
    network, params, x = _small(getkey)
    net, expected = nets.from_stax(network, params), network[2](x[:3], x[2:], ("nngp", "ntk"))
    for given in (net, network, nets.Function(lambda p, x: p, 1.0, kernel_fn=network[2])):
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):  # whatever a user has set
            found = kernels.infinite(given, x[:3], x[2:])
        np.testing.assert_allclose(found.nngp, expected.nngp, rtol=eps(10))
        np.testing.assert_allclose(found.ntk, expected.ntk, rtol=eps(10))
        assert jnp.isnan(found.error)  # which nobody estimates
    alone = kernels.infinite(net, x).ntk
    np.testing.assert_array_equal(alone, alone.T)
    np.testing.assert_allclose(alone[:3, 2:], expected.ntk, rtol=eps(100))


def test_they_are_those_of_the_same_network_here(getkey):
    stax = kernels.neural_tangents().stax
    layers = (stax.Dense(8), stax.Relu(), stax.Dense(8), stax.Relu(), stax.Dense(1))
    rule = nets.Scaling.ntk()
    net = nets.MLP(in_size=5, out_size=1, width_size=8, depth=2, activation="relu", scaling=rule, key=getkey())
    x = jax.random.normal(getkey(), (4, 5))
    its, ours = kernels.infinite(stax.serial(*layers), x), kernels.infinite(net, x)
    np.testing.assert_allclose(its.nngp, ours.nngp, rtol=eps(100))
    np.testing.assert_allclose(its.ntk, ours.ntk, rtol=eps(100))


def test_it_trains_as_its_prediction_says(getkey):
    network, params, x = _small(getkey)
    net, y = nets.from_stax(network, params), jax.random.normal(getkey(), (3, 2))
    problem = Problem(net, x[:3], y, test=(x[3:], jnp.zeros((1, 2))))
    run = solve(problem, InfiniteWidth(), [2.0], observe=[observe.outputs(), observe.test_outputs()])
    kernel_fn, f = network[2], lambda x: network[1](params, x)
    predict = kernels.neural_tangents().predict.gradient_descent_mse(kernel_fn(x[:3], None, "ntk"), y)
    # Twice the time, as in docs/coming-from.md.
    expected = predict(jnp.asarray(4.0), f(x[:3]), f(x[3:]), kernel_fn(x[3:], x[:3], "ntk"))
    np.testing.assert_allclose(run["outputs"][0], expected[0], atol=eps(1e3))
    np.testing.assert_allclose(run["test_outputs"][0], expected[1], atol=eps(1e3))
    assert_fails(lambda: np.testing.assert_allclose(run["outputs"][0], f(x[:3]), atol=0.1))


def test_dropout_takes_a_key(getkey):
    stax, key = kernels.neural_tangents().stax, getkey()
    network = stax.serial(stax.Dense(8), stax.Dropout(0.5), stax.Dense(1))
    _, params = network[0](getkey(), (-1, 3))
    x = jax.random.normal(getkey(), (3,))
    expected = network[1](params, x[None], rng=key)[0]
    np.testing.assert_allclose(nets.from_stax(network, params, rng=key)(x), expected, atol=eps(10))


@pytest.mark.usefixtures("as_users")
def test_what_is_refused(getkey):
    network, params, x = _small(getkey)
    net = nets.from_stax(network, params)
    with pytest.raises(TypeError, match=r"network must be \(init_fn, apply_fn, kernel_fn\)"):
        nets.from_stax(network[:2], params)
    with pytest.raises(ValueError, match="leave eta out"):
        kernels.infinite(net, x, eta=nets.rates(net))
    with pytest.raises(ValueError, match="x2 holds 16 value"):
        kernels.infinite(network, x, x[:1] * jnp.nan)
    stax = kernels.neural_tangents().stax
    with pytest.raises(ValueError, match=r"kernels have shape \(4, 4, 4, 4, 4, 4\).* End it in stax.Flatten"):
        kernels.infinite(stax.serial(stax.Conv(2, (2, 2), padding="SAME")), x)
    with pytest.raises(TypeError, match="js.nets.from_stax"):
        kernels.infinite(nets.Function(lambda p, x: p * x, 1.0), x)
