import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax.flatten_util import ravel_pytree

from jaxsolve.nets import (
    AbstractNetwork,
    DeepLinear,
    Gaussian,
    Given,
    leaky_relu,
    MLP,
    partition,
    rates,
    Scaling,
    SingleNeuron,
    TwoLayerLinear,
)
from tests.cases import ACTIVATIONS, assert_fails, eps, forward, inputs, mlp, problem, scaling
from tests.nets.twins import left_out


NETWORKS = {
    "TwoLayerLinear": lambda key: TwoLayerLinear(in_size=3, out_size=2, width_size=4, scaling=scaling(2), key=key),
    "TwoLayerLinear, one output": lambda key: TwoLayerLinear(in_size=3, width_size=4, scaling=scaling(2), key=key),
    "DeepLinear": lambda key: DeepLinear(in_size=3, out_size=2, width_size=4, depth=3, scaling=scaling(4), key=key),
    "SingleNeuron": lambda key: SingleNeuron(in_size=3, scaling=scaling(2), key=key),
}


def _assert_forward(net, x, phi):
    out = jax.jit(jax.vmap(net))(x)

    def check(net):
        expected = np.stack([forward(net, one, phi) for one in np.asarray(x)])
        np.testing.assert_allclose(out, expected, rtol=0, atol=eps(20) * np.max(np.abs(expected)))

    check(net)
    for twin in left_out(net):
        assert_fails(functools.partial(check, twin))


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_mlp_is_the_formula(name, bias, getkey):
    phi, value, _ = ACTIVATIONS[name]
    _assert_forward(mlp(getkey(), phi, bias=bias), inputs(getkey()), value)


@pytest.mark.parametrize("name", NETWORKS)
def test_linear_networks_are_the_formula(name, getkey):
    _assert_forward(NETWORKS[name](getkey()), inputs(getkey()), lambda z: z)


def test_the_first_matrix_sees_the_data_themselves(getkey):
    """phi(z_1) = x: no activation on the input."""
    net = MLP(
        in_size=2,
        out_size=1,
        width_size=1,
        depth=1,
        activation="relu",
        scaling=Scaling([1, 1], [1, 1], [1, 1]),
        init=Given([[[-1, 0]], [[3]]]),
        key=getkey(),
    )
    assert net(jnp.asarray([-2.0, 5.0]))[0] == 6


def test_shapes_and_sizes(getkey):
    net = MLP(in_size=3, out_size=4, width_size=5, depth=2, bias=True, scaling=scaling(3), key=getkey())
    assert [w.shape for w in net.weights] == [(5, 3), (5, 5), (4, 5)]
    assert [b.shape for b in net.biases] == [(5,), (5,), (4,)]
    assert (net.in_shape, net.out_size, net.widths) == ((3,), 4, (5, 5))
    assert MLP(in_size=3, out_size=4, width_size=5, depth=2, scaling=scaling(3), key=getkey()).biases == ()
    linear = DeepLinear(in_size=3, width_size=4, depth=3, scaling=scaling(4), key=getkey())
    assert (linear.in_shape, linear.out_size, linear.widths) == ((3,), 1, (4, 4, 4))
    assert SingleNeuron(in_size=6, scaling=scaling(2), key=getkey()).widths == (1,)


@pytest.mark.parametrize("dtype", ["float32", np.dtype("float16")])
def test_dtype(dtype, getkey):
    for make in (
        lambda **rest: MLP(in_size=3, out_size=2, width_size=5, depth=2, bias=True, scaling=scaling(3), **rest),
        lambda **rest: TwoLayerLinear(in_size=3, width_size=5, scaling=scaling(2), **rest),
        lambda **rest: DeepLinear(in_size=3, width_size=5, depth=2, scaling=scaling(3), **rest),
        lambda **rest: SingleNeuron(in_size=3, scaling=scaling(2), **rest),
    ):
        net = make(key=getkey(), dtype=dtype)
        assert {leaf.dtype for leaf in jax.tree.leaves(net)} == {jnp.dtype(dtype)}
        assert jax.eval_shape(net, jax.ShapeDtypeStruct((3,), dtype)).dtype == jnp.dtype(dtype)


def test_default_dtype_is_that_of_jax(getkey):
    assert mlp(getkey())(jnp.ones(3)).dtype == jnp.result_type(float)


def test_maps_over_keys_and_samples_and_differentiates(getkey):
    keys, x = jax.random.split(getkey(), 3), inputs(getkey())
    ensemble = eqx.filter_vmap(mlp)(keys)
    out = eqx.filter_jit(eqx.filter_vmap(lambda net: jax.vmap(net)(x)))(ensemble)
    for index, key in enumerate(keys):
        np.testing.assert_allclose(out[index], jax.vmap(mlp(key))(x), rtol=eps(50), atol=eps(10))


# --- bad input


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("bad", [0, -3])
def test_sizes_must_be_positive(bad, getkey):
    key, rule = getkey(), Scaling.ntk()
    for name, make in {
        "in_size": lambda: MLP(in_size=bad, out_size=1, width_size=4, depth=1, scaling=rule, key=key),
        "width_size": lambda: MLP(in_size=2, out_size=1, width_size=bad, depth=1, scaling=rule, key=key),
        "depth": lambda: MLP(in_size=2, out_size=1, width_size=4, depth=bad, scaling=rule, key=key),
        "out_size": lambda: MLP(in_size=2, out_size=bad, width_size=4, depth=1, scaling=rule, key=key),
        "(width_size)": lambda: TwoLayerLinear(in_size=2, width_size=bad, scaling=rule, key=key),
        "(depth)": lambda: DeepLinear(in_size=2, width_size=4, depth=bad, scaling=rule, key=key),
        "(in_size)": lambda: SingleNeuron(in_size=bad, scaling=rule, key=key),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be an integer >= 1, got {bad}"):
            make()


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("bad", [2.0, True, "2", None, np.ones(1)])
def test_sizes_must_be_integers(bad, getkey):
    key, rule = getkey(), Scaling.ntk()
    for name, make in {
        "in_size": lambda: MLP(in_size=bad, out_size=1, width_size=4, depth=1, scaling=rule, key=key),
        "width_size": lambda: MLP(in_size=2, out_size=1, width_size=bad, depth=1, scaling=rule, key=key),
        "depth": lambda: MLP(in_size=2, out_size=1, width_size=4, depth=bad, scaling=rule, key=key),
        "out_size": lambda: TwoLayerLinear(in_size=2, out_size=bad, width_size=4, scaling=rule, key=key),
    }.items():
        with pytest.raises(TypeError, match=f"{name} must be an integer >= 1, got (an array|{type(bad).__name__})"):
            make()


@pytest.mark.usefixtures("as_users")
def test_numpy_integers_are_sizes_and_its_truth_values_flags(getkey):
    sizes: Any = {"in_size": np.int64(2), "out_size": np.uint8(1), "width_size": np.int32(4), "depth": np.int64(1)}
    net = MLP(**sizes, bias=np.bool_(True), scaling=Scaling.ntk(), key=getkey())  # pyright: ignore
    assert net.widths == (4,)
    assert len(net.biases) == 2


@pytest.mark.usefixtures("as_users")
def test_other_bad_arguments(getkey):
    key, rule = getkey(), Scaling.ntk()
    with pytest.raises(ValueError, match="unknown activation 'sine'; known names are"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, activation="sine", scaling=rule, key=key)
    with pytest.raises(TypeError, match="bias must be True or False, got int 1"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, bias=1, scaling=rule, key=key)  # pyright: ignore
    with pytest.raises(TypeError, match="init must be an initialization such as nets.Gaussian"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling=rule, init="gaussian", key=key)  # pyright: ignore
    with pytest.raises(TypeError, match="init must be an initialization such as nets.Gaussian"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling=rule, init=Gaussian, key=key)  # pyright: ignore
    with pytest.raises(
        TypeError, match="scaling must be a Scaling or one of the rules Scaling.ntk.*lazy.*; got str 'ntk'"
    ):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling="ntk", key=key)  # pyright: ignore
    with pytest.raises(TypeError, match="scaling must be a Scaling or one of the rules"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling=Scaling.ntk, key=key)  # pyright: ignore
    with pytest.raises(ValueError, match="this network has 2 weight matrices, the Scaling is for 3"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling=scaling(3), key=key)
    with pytest.raises(ValueError, match="sigma must be one number or one per weight matrix: this network has 2"):
        MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling=Scaling.ntk(sigma=[1, 1, 1]), key=key)


# --- rates and parameters


@pytest.mark.parametrize("bias", [True, False])
def test_params_are_the_weights_and_rates_are_eta(bias, getkey):
    net = mlp(getkey(), bias=bias)
    params, rest = partition(net)
    eta = rates(net)
    assert eqx.tree_equal(eqx.combine(params, rest), net)
    assert eqx.tree_equal(jax.tree.leaves(params), [*net.weights, *net.biases])
    assert jax.tree.structure(params) == jax.tree.structure(eta)
    assert eqx.tree_equal(jax.tree.leaves(rest), jax.tree.leaves(net.scaling))
    np.testing.assert_allclose(jnp.stack(eta.weights), [1.7, 0.4, 2.3], rtol=eps(2))
    np.testing.assert_allclose(np.stack(eta.biases) if bias else [0.65] * 3, [0.65] * 3, rtol=eps(2))
    assert all(rate.shape == () for rate in jax.tree.leaves(eta))


def test_foreign_modules_train_all_floating_arrays_at_rate_one(getkey):
    class Foreign(eqx.Module):
        weight: jax.Array
        count: jax.Array
        name: str

        def __call__(self, x):
            return self.weight * x

    net = Foreign(jnp.ones(2), jnp.arange(3), "foreign")
    params, rest = partition(net)
    assert eqx.tree_equal(jax.tree.leaves(params), [net.weight])
    assert eqx.tree_equal(jax.tree.leaves(rest), [net.count, "foreign"])
    assert jax.tree.leaves(rates(net)) == [1.0]
    assert not isinstance(net, AbstractNetwork)


# --- conserved quantities


CONSERVING = {"linear": "linear", "relu": "relu", "leaky_relu": leaky_relu(0.3)}


def _conserved(net, params, eta):
    return [np.asarray(quantity.value) for quantity in net.conserved(params, eta)]


@pytest.mark.parametrize("name", CONSERVING)
@pytest.mark.parametrize("bias", [True, False])
def test_conserved_quantities_by_hand(name, bias, getkey):
    net = mlp(getkey(), CONSERVING[name], bias=bias)
    found = _conserved(net, partition(net)[0], rates(net))
    w, b = [np.asarray(a) for a in net.weights], [np.asarray(a) for a in net.biases]
    eta = [1.7, 0.4, 2.3]
    for layer in range(2):
        matrix = w[layer + 1].T @ w[layer + 1] / eta[layer + 1] - w[layer] @ w[layer].T / eta[layer]
        matrix -= np.outer(b[layer], b[layer]) / 0.65 if bias else 0
        expected = matrix if name == "linear" else np.diag(matrix)
        np.testing.assert_allclose(found[layer], expected, atol=eps(50))


@pytest.mark.parametrize("name", CONSERVING)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_conserved_quantities_have_no_slope_along_the_flow(name, depth, bias, getkey):
    """d lambda/dt = (d lambda/d theta) theta' vanishes at every point, for unequal rates and multipliers."""
    start = problem(mlp(getkey(), CONSERVING[name], depth=depth, bias=bias), getkey())

    @jax.jit
    def slopes(eta):
        velocity = jax.tree.map(lambda rate, g: -rate * g, start.eta, jax.grad(start.objective)(start.params))
        return jax.jvp(lambda p: start.net.conserved(p, eta), (start.params,), (velocity,))[1]

    def drift(eta):
        """Per hidden layer, relative to how fast its two terms change."""
        return [float(jnp.max(jnp.abs(s.value)) / jnp.max(jnp.abs(s.outgoing))) for s in slopes(eta)]

    assert len(drift(start.eta)) == depth
    assert min(float(jnp.max(jnp.abs(s.outgoing))) for s in slopes(start.eta)) > 1e-3
    assert max(drift(start.eta)) < eps(50)
    leaves, structure = jax.tree.flatten(start.eta)
    last_bias = len(leaves) - 1 if bias else None  # no conserved quantity contains the last bias
    for index in sorted(set(range(len(leaves))) - {last_bias}):
        without = [jnp.ones_like(rate) if i == index else rate for i, rate in enumerate(leaves)]
        assert max(drift(jax.tree.unflatten(structure, without))) > 1e-3


@pytest.mark.x64_only
@pytest.mark.parametrize("name", CONSERVING)
def test_conserved_quantities_stay_along_a_flow(name):
    """Integrated by SciPy at rtol 1e-10, and twins with one eta left out drift."""
    # Fixed keys: from most starts some neuron soon slides along its kink, where no adaptive step is short enough.
    start = problem(mlp(jax.random.key(4), CONSERVING[name]), jax.random.key(104), n=2)
    flat, unravel = ravel_pytree(start.params)
    spread = jax.tree.map(lambda rate, p: jnp.full(p.shape, rate), start.eta, start.params)
    eta, slope = np.asarray(ravel_pytree(spread)[0]), jax.jit(jax.grad(lambda v: start.objective(unravel(v))))
    field = lambda t, vector: -eta * np.asarray(slope(vector))
    end = scipy.integrate.solve_ivp(field, (0, 2), np.asarray(flat), "DOP853", rtol=1e-10, atol=1e-12).y[:, -1]
    assert start.objective(unravel(end)) < 0.5 * start.objective(start.params)

    def drift(eta):
        ends = [_conserved(start.net, params, eta) for params in (start.params, unravel(jnp.asarray(end)))]
        return max(np.max(np.abs(b - a)) for a, b in zip(*ends, strict=True))

    assert drift(start.eta) < 2e-11
    for index in range(3):
        twin = eqx.tree_at(lambda e, i=index: e.weights[i], start.eta, replace_fn=jnp.ones_like)
        assert drift(twin) > 1e-3
    assert drift(eqx.tree_at(lambda e: e.biases[0], start.eta, replace_fn=jnp.ones_like)) > 1e-3


@pytest.mark.parametrize("activation", ["tanh", "erf", "sigmoid", "swish", "gelu", "softplus"])
def test_other_activations_conserve_nothing(activation, getkey):
    net = mlp(getkey(), activation)
    assert net.conserved(partition(net)[0], rates(net)) == ()


def test_tanh_would_not_conserve_what_relu_does(getkey):
    start = problem(mlp(getkey(), "tanh"), getkey())
    velocity = jax.tree.map(lambda rate, g: -rate * g, start.eta, jax.grad(start.objective)(start.params))
    values = lambda p: [jnp.sum(p.weights[i + 1] ** 2, 0) / start.eta.weights[i + 1]
                        - jnp.sum(p.weights[i] ** 2, 1) / start.eta.weights[i]
                        - p.biases[i] ** 2 / start.eta.biases[i] for i in range(2)]  # fmt: skip
    drifts = jax.jvp(values, (start.params,), (velocity,))[1]
    assert max(float(jnp.max(jnp.abs(drift))) for drift in drifts) > 1e-2


def test_conserved_scale_is_the_size_of_the_terms(getkey):
    net = mlp(getkey(), "linear", bias=False)
    quantity = net.conserved(partition(net)[0], rates(net))[0]
    w, eta = [np.asarray(a) for a in net.weights], [1.7, 0.4]
    expected = np.linalg.norm(w[1].T @ w[1]) / eta[1] + np.linalg.norm(w[0] @ w[0].T) / eta[0]
    np.testing.assert_allclose(quantity.scale, expected, rtol=eps(20))


def test_kunins_delta(getkey):
    """delta = eta_1 eta_2 lambda = eta_1 |a|^2 - eta_2 |w|^2 of a single neuron."""
    net = SingleNeuron(in_size=3, scaling=scaling(2), key=getkey())
    (quantity,) = net.conserved(partition(net)[0], rates(net))
    w, a = np.asarray(net.weights[0]), float(net.weights[1][0, 0])
    np.testing.assert_allclose(1.7 * 0.4 * quantity.value[0, 0], 1.7 * a**2 - 0.4 * np.sum(w**2), rtol=eps(20))
