import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxsolve.nets import (
    DeepLinear,
    Gaussian,
    Given,
    LambdaBalanced,
    Mirrored,
    MLP,
    NearParallel,
    rates,
    Shapes,
    Sphere,
    TwoLayerLinear,
)
from tests.cases import assert_fails, eps, inputs, scaling, X64


def _shapes(*sizes, bias=False):
    return Shapes(tuple((out, into) for into, out in itertools.pairwise(sizes)), bias, jnp.result_type(float))


def _start(init, sizes, key, *, bias=False, **changes):
    values = jax.tree.map(jnp.asarray, scaling(len(sizes) - 1, **changes))
    return init(_shapes(*sizes, bias=bias), values, key)


SIGMA = np.array([0.9, 0.7, 1.2])
ETA = np.array([1.7, 0.4, 2.3])


# --- Gaussian


def test_gaussian_entries_have_the_standard_deviation_sigma(getkey):
    weights, biases = _start(Gaussian(), (300, 400, 400, 300), getkey(), bias=True)
    for w, sigma, of_another in zip(weights, SIGMA, np.roll(SIGMA, 1), strict=True):
        check = lambda sigma, w=w: np.testing.assert_allclose(np.std(w), sigma, rtol=5e-3)
        check(sigma)
        assert_fails(functools.partial(check, of_another))
        assert scipy.stats.kstest(np.ravel(w)[:20000] / sigma, "norm").pvalue > 1e-3
    every = np.concatenate([np.ravel(b) for b in biases])
    assert scipy.stats.kstest(every / 0.3, "norm").pvalue > 1e-3
    assert scipy.stats.kstest(every / 0.33, "norm").pvalue < 0.05


def test_gaussian_layers_and_biases_are_drawn_independently(getkey):
    weights, biases = _start(Gaussian(), (200, 200, 200, 200), getkey(), bias=True)
    for a, b in itertools.combinations([*weights, *biases], 2):
        n = min(a.size, b.size)
        assert abs(np.corrcoef(np.ravel(a)[:n], np.ravel(b)[:n])[0, 1]) < 4 / np.sqrt(n)


def test_gaussian_is_linear_in_sigma_and_silent_at_zero(getkey):
    key = getkey()
    one, two = (_start(Gaussian(), (3, 5, 2), key, sigma=np.array(s)) for s in ([1.0, 1.0], [2.0, 0.0]))
    np.testing.assert_allclose(two.weights[0], 2 * one.weights[0], rtol=eps(2))
    np.testing.assert_array_equal(two.weights[1], 0)


# --- Sphere


def test_sphere_has_unit_rows_and_a_signed_read_out(getkey):
    (first, second, readout), biases = _start(Sphere(), (7, 60, 60, 5), getkey(), bias=True)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), SIGMA[0], rtol=eps(10))
    np.testing.assert_allclose(np.linalg.norm(second, axis=1), SIGMA[1], rtol=eps(10))
    np.testing.assert_array_equal(np.abs(readout), readout.dtype.type(SIGMA[2]))
    assert abs(np.mean(np.sign(readout))) < 4 / np.sqrt(readout.size)
    assert [b.shape for b in biases] == [(60,), (60,), (5,)]


def test_sphere_is_uniform(getkey):
    w = np.asarray(_start(Sphere(), (3, 4000, 1), getkey()).weights[0], np.float64) / SIGMA[0]
    # in three dimensions each coordinate is uniform on [-1, 1]
    for column in w.T:
        assert scipy.stats.kstest(column, "uniform", args=(-1, 2)).pvalue > 1e-3
    np.testing.assert_allclose(w.T @ w / 4000, np.eye(3) / 3, atol=0.025)


def test_sphere_gives_kunins_delta(getkey):
    tau, alpha = 0.6, 1.5
    w, a = _start(Sphere(), (4, 6, 1), getkey(), sigma=np.array([tau / alpha, tau * alpha])).weights
    delta = np.asarray(a[0]) ** 2 - np.sum(np.asarray(w) ** 2, axis=1)
    np.testing.assert_allclose(delta, tau**2 * (alpha**2 - alpha**-2), rtol=eps(20))


# --- Mirrored


@pytest.mark.parametrize("inner", [Gaussian(), Sphere()])
@pytest.mark.parametrize("depth", [1, 2])
def test_mirrored_networks_vanish_and_can_learn(inner, depth, getkey):
    key = getkey()
    make = lambda init: MLP(
        in_size=3,
        out_size=2,
        width_size=6,
        depth=depth,
        activation="tanh",
        bias=True,
        scaling=scaling(depth + 1),
        init=init,
        key=key,
    )
    net, plain = make(Mirrored(inner)), make(inner)
    x = 3 * inputs(getkey(), 5)
    f, original = jax.vmap(net)(x), jax.vmap(plain)(x)
    np.testing.assert_allclose(f, 0, atol=eps(10))
    assert jnp.min(jnp.max(jnp.abs(original), axis=1)) > 0.05
    np.testing.assert_array_equal(net.weights[-1][:, :3], plain.weights[-1][:, :3])
    np.testing.assert_array_equal(net.weights[-1][:, 3:], -plain.weights[-1][:, :3])
    for half in (slice(0, 3), slice(3, 6)):
        np.testing.assert_array_equal(net.weights[-2][half], plain.weights[-2][:3])
        np.testing.assert_array_equal(net.biases[-2][half], plain.biases[-2][:3])
    np.testing.assert_array_equal(net.biases[-1], 0)
    for below, same in zip(net.weights[:-2], plain.weights[:-2], strict=True):
        np.testing.assert_array_equal(below, same)
    # what learns first is the mirrored layer and its read-out; to the layers below the halves' signals cancel
    *below, hidden, readout = jax.grad(lambda net: net(x[0])[0])(net).weights
    assert min(jnp.max(jnp.abs(hidden)), jnp.max(jnp.abs(readout))) > 0.01
    assert all(jnp.max(jnp.abs(w)) < eps(10) for w in below)


@pytest.mark.usefixtures("as_users")
def test_mirrored_needs_an_even_width_and_an_init(getkey):
    with pytest.raises(ValueError, match="Mirrored needs an even width, got 5"):
        _start(Mirrored(), (3, 5, 2), getkey())
    with pytest.raises(TypeError, match="Mirrored needs an initialization such as nets.Gaussian.., got int 3"):
        Mirrored(3)  # pyright: ignore[reportArgumentType]


# --- NearParallel


def _zeta(u, w, x):
    hidden = np.asarray(w) @ np.asarray(x)
    return np.asarray(u)[0] @ hidden / (np.linalg.norm(u) * np.linalg.norm(hidden))


@pytest.mark.x64_only
def test_near_parallel_layers_approach_each_other_like_eps_squared(getkey):
    key = getkey()
    epsilons = np.array([1e-1, 1e-2, 1e-3])
    for x in ([1.0, 0.2, 0.4], [-1.0, -0.3, 0.1]):
        zetas = []
        for e in epsilons:
            w, u = _start(NearParallel(e), (3, 50, 1), key).weights
            zetas.append(_zeta(u, w, x))
        assert np.sign(zetas[-1]) == np.sign(sum(x))
        slope = np.polyfit(np.log(epsilons), np.log(1 - np.abs(zetas)), 1)[0]
        assert slope == pytest.approx(2, abs=0.05)


def test_near_parallel_is_the_formula(getkey):
    key, direction = getkey(), np.array([1.0, 2.0, -2.0])
    scaled = direction / 3 * 3**0.5  # |d|^2 = in_size
    w, u = _start(NearParallel(0.0, direction), (3, 200, 1), key).weights
    shared = np.asarray(u[0]) / SIGMA[1]
    np.testing.assert_allclose(w, SIGMA[0] * np.outer(shared, scaled), rtol=eps(10), atol=eps(4))
    assert scipy.stats.kstest(shared, "norm").pvalue > 1e-3
    twice = _start(NearParallel(0.0, 2 * direction), (3, 200, 1), key).weights[0]
    np.testing.assert_allclose(twice, w, rtol=eps(10))
    # the perturbation is Gaussian, of size eps sigma_1, and independent of what is shared
    more = _start(NearParallel(0.2, direction), (3, 200, 1), key)
    np.testing.assert_array_equal(more.weights[1], u)
    h = np.asarray(more.weights[0] - w) / (0.2 * SIGMA[0])
    assert scipy.stats.kstest(np.ravel(h), "norm").pvalue > 1e-3
    assert np.max(np.abs(h.T @ shared)) / 200 < 4 / np.sqrt(200)
    # without a direction: (1, ..., 1)
    np.testing.assert_allclose(_start(NearParallel(0.0), (3, 9, 1), key).weights[0].std(1), 0, atol=eps(4))


@pytest.mark.usefixtures("as_users")
def test_near_parallel_bad_input(getkey):
    for sizes, found in (((3, 4, 2), "2 and 2"), ((3, 4, 4, 1), "3 and 1")):
        with pytest.raises(ValueError, match=f"NearParallel is for two weight matrices and one output, got {found}"):
            _start(NearParallel(0.1), sizes, getkey())
    with pytest.raises(ValueError, match=r"direction must have shape \(3,\), got \(2,\)"):
        _start(NearParallel(0.1, [1.0, 2.0]), (3, 4, 1), getkey())
    with pytest.raises(ValueError, match="eps must be one finite number >= 0, got -0.1"):
        NearParallel(-0.1)
    with pytest.raises(ValueError, match="direction must not be zero"):
        NearParallel(0.1, [0.0, 0.0])
    with pytest.raises(ValueError, match="direction holds 1 value"):
        NearParallel(0.1, [0.0, np.nan])


# --- LambdaBalanced


@pytest.mark.parametrize(
    ("delta", "sizes"),
    [
        (0.0, (3, 4, 2)),
        (0.0, (5, 3, 4)),
        (1.3, (3, 2, 4)),
        (1.3, (2, 3, 3)),
        (-0.8, (4, 3, 2)),
        (-0.8, (3, 3, 5)),
        (0.0, (3, 4, 4, 2)),
        (0.0, (5, 3, 3, 3, 4)),
        (1.3, (3, 2, 2, 4)),
        (1.3, (3, 1, 1, 1, 1)),
        (-0.8, (4, 3, 3, 2)),
        (-0.8, (3, 3, 3, 3, 1)),
    ],
)
def test_balanced_conserved_matrices(delta, sizes, getkey):
    eta = np.array([1.7, 0.4, 2.3, 0.9])[: len(sizes) - 1]
    weights = [np.asarray(w) for w in _start(LambdaBalanced(delta), sizes, getkey()).weights]
    assert [w.shape for w in weights] == [(out, into) for into, out in itertools.pairwise(sizes)]
    last = len(weights) - 2

    def check(eta):
        for layer in range(last + 1):
            expected = (layer == last) * delta / (eta[-2] * eta[-1]) * np.eye(sizes[layer + 1])
            outgoing = weights[layer + 1].T @ weights[layer + 1] / eta[layer + 1]
            incoming = weights[layer] @ weights[layer].T / eta[layer]
            np.testing.assert_allclose(outgoing - incoming, expected, atol=eps(50))

    check(eta)
    for index in range(len(eta)):  # without one of the rates
        assert_fails(functools.partial(check, np.where(np.arange(len(eta)) == index, 1, eta)))
    end_to_end = np.linalg.multi_dot(weights[::-1])
    assert np.linalg.matrix_rank(end_to_end, tol=1e-6) == min(sizes)


@pytest.mark.parametrize("make", [TwoLayerLinear, functools.partial(DeepLinear, depth=2)])
def test_balanced_networks_by_their_own_account(make, getkey):
    sizes = {"in_size": 3, "out_size": 2, "width_size": 4}
    net = make(**sizes, scaling=scaling(2 if make is TwoLayerLinear else 3), init=LambdaBalanced(), key=getkey())
    quantities = net.conserved(net, rates(net))
    assert len(quantities) == len(net.weights) - 1
    for quantity in quantities:
        np.testing.assert_allclose(quantity.value, 0, atol=eps(50))
        assert quantity.scale > 0.1


def test_balanced_has_the_singular_values_of_a_gaussian_matrix(getkey):
    keys = jax.random.split(getkey(), 20_000)
    one = lambda key: _start(LambdaBalanced(), (3, 3, 3), key).weights[0]
    # Not in one batch: XLA's thread pool on CPU deadlocks in several QR decompositions of some 10^4 matrices each.
    draws = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=500))(keys), np.float64)
    square = np.mean(np.sum(draws**2, axis=(1, 2)))  # sigma^2 times chi^2 with nine degrees of freedom
    assert square == pytest.approx(9 * SIGMA[0] ** 2, rel=5e-3)
    assert square != pytest.approx(9 * SIGMA[0] ** 2 / ETA[0], rel=5e-3)  # of V_1 = W_1/sqrt(eta_1)
    # uniform singular vectors have no preferred direction
    np.testing.assert_allclose(np.mean(draws, axis=0), 0, atol=4 * SIGMA[0] / np.sqrt(20_000))
    np.testing.assert_allclose(np.mean(draws**2, axis=0), SIGMA[0] ** 2, rtol=0.05)


def test_balanced_with_a_traced_delta(getkey):
    key = getkey()
    make = lambda delta: _start(LambdaBalanced(delta), (3, 2, 4), key).weights
    traced = jax.jit(jax.vmap(make))
    deltas = jnp.asarray([-2.0, -0.5, 0.0, 0.5, 2.0])
    for index, delta in enumerate(deltas):
        for a, b in zip(traced(deltas), make(float(delta)), strict=True):
            np.testing.assert_allclose(a[index], b, atol=eps(30))
    step = 1e-5 if X64 else 1e-2
    middle = jnp.asarray([-2.0, -0.7, -0.3, 0.6, 1.5])
    slopes = jax.jit(jax.vmap(jax.jacfwd(make)))(middle)
    for slope, up, down in zip(slopes, traced(middle + step), traced(middle - step), strict=True):
        np.testing.assert_allclose(slope, (up - down) / (2 * step), atol=1e-9 if X64 else 1e-3)


@pytest.mark.usefixtures("as_users")
def test_balanced_bad_input(getkey):
    cases = [
        (1.0, (3, 4, 2), "delta > 0 needs width <= out_size, got width 4, out_size 2"),
        (-1.0, (3, 4, 6), "delta < 0 needs width <= in_size, got width 4, in_size 3"),
        (1.0, (3, 3, 3, 2), "delta > 0 needs width <= out_size, got width 3, out_size 2"),
    ]
    for delta, sizes, message in cases:
        with pytest.raises(ValueError, match=message):
            _start(LambdaBalanced(delta), sizes, getkey())
    with pytest.raises(ValueError, match="delta > 0 needs width <= out_size"):
        jax.eval_shape(lambda delta: _start(LambdaBalanced(delta), (3, 3, 2), jax.random.key(0)), 1.0)
    with pytest.raises(ValueError, match="delta holds 1 value"):
        LambdaBalanced(np.nan)
    with pytest.raises(ValueError, match=r"LambdaBalanced needs eta > 0 for every weight matrix, got \[1.0, 0.0\]"):
        _start(LambdaBalanced(), (3, 3, 2), getkey(), eta=np.array([1.0, 0.0]))


# --- Given


def test_given_arrays_are_the_start(getkey):
    weights = [np.arange(6.0).reshape(2, 3), [[7, 8]]]
    start = _start(Given(weights, [[0.5, 1.5], [2]]), (3, 2, 1), getkey(), bias=True)
    for a, b in zip(start.weights, weights, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.concatenate(start.biases), [0.5, 1.5, 2])
    assert {leaf.dtype for leaf in jax.tree.leaves(start)} == {jnp.dtype(jnp.result_type(float))}
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(start))


@pytest.mark.usefixtures("as_users")
def test_given_wrong_shapes(getkey):
    make = lambda init, bias=False: MLP(
        in_size=3, out_size=1, width_size=2, depth=1, bias=bias, scaling=scaling(2), init=init, key=getkey()
    )
    good = [np.ones((2, 3)), np.ones((1, 2))]
    wanted = r"Given needs weights and biases of shapes \(\(\(2, 3\), \(1, 2\)\), \(\)\), got "
    for weights in ([np.ones((3, 2)), np.ones((1, 2))], good[:1], [*good, np.ones((1, 1))]):
        with pytest.raises(ValueError, match=wanted):
            make(Given(weights))
    with pytest.raises(ValueError, match=r"Given needs weights and biases of shapes .*\(\(2,\), \(1,\)\)\), got "):
        make(Given(good), bias=True)
    with pytest.raises(ValueError, match=wanted):
        make(Given(good, [np.ones(2), np.ones(1)]))
    with pytest.raises(ValueError, match=r"weights\[1\] holds 1 value.* index \(0, 1\)"):
        Given([np.ones((2, 3)), [[1.0, np.nan]]])
    with pytest.raises(ValueError, match=r"biases\[0\] holds 2 value"):
        Given(good, [[np.inf, np.inf], [0.0]])


# --- all of them


EVERY = {
    "Gaussian": Gaussian(),
    "Sphere": Sphere(),
    "Mirrored": Mirrored(),
    "NearParallel": NearParallel(0.1),
    "LambdaBalanced": LambdaBalanced(),
    "Given": Given([np.ones((4, 3)), np.ones((1, 4))], [np.ones(4), np.ones(1)]),
}


def _every(key, sigma=0.9):
    values = {"sigma": jnp.stack([jnp.asarray(sigma), jnp.asarray(0.7)])}
    return {name: _start(init, (3, 4, 1), key, bias=True, **values) for name, init in EVERY.items()}


def test_keys_under_jit_and_vmap_and_the_slope_in_sigma(getkey):
    """Weights are linear in sigma, so the slope is w/sigma, also where a singular value is zero."""
    keys = jax.random.split(getkey(), 3)
    both = lambda key: jax.jvp(lambda sigma: _every(key, sigma), (0.9,), (1.0,))
    many, slopes = jax.jit(jax.vmap(both))(keys)
    for name, one in _every(keys[1]).items():
        for a, b in zip(jax.tree.leaves(many[name]), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(a[1], b, atol=eps(20), err_msg=name)
        w = np.asarray(many[name].weights[0])
        slope = np.zeros_like(w) if name == "Given" else w / 0.9
        np.testing.assert_allclose(slopes[name].weights[0], slope, atol=eps(20), err_msg=name)
        differ = [bool(np.any(w[0] != w[other])) for other in (1, 2)]
        assert differ == [name != "Given"] * 2, name


def test_an_init_in_a_network_is_the_same_as_alone(getkey):
    key = getkey()
    net = MLP(in_size=3, out_size=2, width_size=5, depth=2, bias=True, scaling=scaling(3), key=key)
    start = _start(Gaussian(), (3, 5, 5, 2), key, bias=True)
    assert eqx.tree_equal((net.weights, net.biases), tuple(start))
