"""Networks that were written elsewhere."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import kernels, nets
from tests.cases import eps


X = np.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.result_type(float))


@pytest.fixture
def usual():
    """Libraries of others rely on JAX's usual rules of promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _check(net, x):
    """Its kernel is that of its Jacobian, and names its parameters."""
    found = kernels.empirical(net, x, by_layer=True)
    params = nets.partition(net)[0]
    outputs = lambda p: jax.vmap(nets.Function(net.f, p.params))(x)
    rows = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jax.jit(jax.jacobian(outputs))(params))]
    expected = sum(jnp.einsum("nap,mbp->namb", row, row) for row in rows)
    np.testing.assert_allclose(found.ntk, expected, rtol=0, atol=eps(100) * np.max(np.abs(expected)))
    assert not found.fallbacks
    return found


def test_a_function_trains_as_a_problem():
    x = jnp.array([[1.0], [2.0]])
    net = nets.Function(lambda w, x: w * x, jnp.zeros(1))
    run = js.solve(js.Problem(net, x, 3 * x), js.GradientFlow(), 1.0)
    # f' = -x (w - 3) x^2 averaged over the samples: w = 3 (1 - exp(-5/2 t))
    np.testing.assert_allclose(run.final.params.params, 3 * (1 - np.exp(-2.5)), rtol=1e-4)


@pytest.mark.usefixtures("usual")
def test_flax_linen():
    from flax import linen

    class Small(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.tanh(linen.Conv(4, (3, 3))(x))
            x = linen.LayerNorm()(jnp.mean(x, (0, 1)))
            return linen.Dense(2)(x)

    x = jax.random.normal(jax.random.key(0), (3, 5, 5, 2))
    module = Small()
    dtype = lambda leaf: leaf.astype(x.dtype)
    variables = jax.tree.map(dtype, module.init(jax.random.key(1), x[0]))
    found = _check(nets.from_linen(module, variables), x)
    assert found.layers is not None
    assert "params['Conv_0']['kernel']" in found.layers


@pytest.mark.usefixtures("usual")
def test_flax_nnx():
    from flax import nnx

    x = jax.random.normal(jax.random.key(0), (3, 4))
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Linear(4, 5, rngs=rngs, param_dtype=x.dtype), jnp.tanh, nnx.Linear(5, 2, rngs=rngs, param_dtype=x.dtype)
    )
    net = nets.from_nnx(model)
    np.testing.assert_allclose(net(x[0]), model(x[0]), rtol=eps(10))
    _check(net, x)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("options", [{"train": True}, {"train": True, "mutable": ["batch_stats"]}])
def test_flax_linen_in_training_mode(options):
    """Flax's own words speak of scopes; ours name the argument. Of google/flax#339 and #2419."""
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            return linen.Dense(1)(jnp.tanh(linen.BatchNorm(use_running_average=not train)(linen.Dense(5)(x))))

    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        x = jax.random.normal(jax.random.key(0), (8, 3))
        net = nets.from_linen(Net(), Net().init(jax.random.key(1), x[0]), **options)
        for verb in (js.Problem, js.diagnose, lambda net, x, y: kernels.empirical(net, x)):
            with pytest.raises(ValueError, match="train=False"):
                verb(net, x, x[:, :1])


def test_flax_nnx_of_which_a_part_trains():
    """LoRA: its two factors train, the weights that they are added to do not."""
    from flax import nnx

    x, rngs = jax.random.normal(jax.random.key(0), (3, 4)), nnx.Rngs(0)
    base = nnx.Linear(4, 5, use_bias=False, rngs=rngs, param_dtype=x.dtype)
    model = nnx.LoRA(4, 2, 5, base_module=base, rngs=rngs, param_dtype=x.dtype)
    model.lora_b[...] = jax.random.normal(jax.random.key(1), (2, 5))
    net = nets.from_nnx(model, wrt=nnx.LoRAParam)
    assert [leaf.shape for leaf in jax.tree.leaves(net.params)] == [(4, 2), (2, 5)]
    a, b, w = (part[...] for part in (model.lora_a, model.lora_b, base.kernel))
    np.testing.assert_allclose(jax.vmap(net)(x), x @ w + x @ a @ b, rtol=eps(100))
    # d f/d a = x b, d f/d b = (x a): K_icjd = x_i x_j (b^T b)_cd + (x_i a)(x_j a) delta_cd.
    expected = jnp.einsum("ik,jk,rc,rd->icjd", x, x, b, b) + jnp.einsum("ir,jr,cd->icjd", x @ a, x @ a, jnp.eye(5))
    np.testing.assert_allclose(kernels.empirical(net, x).ntk, expected, rtol=eps(1e3))


def test_flax_nnx_that_draws_where_it_begins():
    """A recurrent network counts the random numbers of its start at every call."""
    from flax import nnx

    x, rngs = jax.random.normal(jax.random.key(0), (3, 5, 4)), nnx.Rngs(0)
    recurrent = nnx.RNN(nnx.GRUCell(4, 2, rngs=rngs, param_dtype=x.dtype))
    model = nnx.Sequential(recurrent, lambda h: h[-1])
    net = nets.from_nnx(model)
    np.testing.assert_allclose(net(x[0]), model(x[0]), rtol=eps(10))
    _check(net, x)


@pytest.mark.usefixtures("usual")
def test_flax_nnx_in_training_mode():
    from flax import nnx

    rngs = nnx.Rngs(0)
    for layer in (nnx.Dropout(0.5, rngs=rngs), nnx.BatchNorm(5, rngs=rngs)):
        model = nnx.Sequential(nnx.Linear(4, 5, rngs=rngs), layer)
        with pytest.raises(ValueError, match=rf"{type(layer).__name__} in training mode .* model.eval\(\)"):
            nets.from_nnx(model)
        model.eval()
        nets.from_nnx(model)
    nets.from_nnx(nnx.Dropout(0.0, rngs=rngs))
    attention = lambda rate: nnx.MultiHeadAttention(
        2, 4, rngs=rngs, decode=False, dropout_rate=rate, deterministic=False
    )
    nets.from_nnx(attention(0.0))
    with pytest.raises(ValueError, match="MultiHeadAttention in training mode"):
        nets.from_nnx(attention(0.1))


def test_flax_nnx_itself_is_refused():
    """Its running averages would train, and a random counter that is not a parameter changes at every call."""
    from flax import nnx

    x, rngs = jnp.ones((3, 4)), nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(4, 5, rngs=rngs, param_dtype=x.dtype))
    for use in (lambda: js.Problem(model, x, x), lambda: js.diagnose(model, x, x), lambda: kernels.empirical(model, x)):
        with pytest.raises(TypeError, match=r"Flax NNX model, Sequential: give js.nets.from_nnx\(model\)"):
            use()


@pytest.mark.usefixtures("usual")
def test_haiku():
    import haiku

    x = jax.random.normal(jax.random.key(0), (3, 4))
    made = haiku.transform(lambda x: haiku.nets.MLP([5, 2], activation=jnp.tanh)(x))
    net = nets.from_haiku(made, made.init(jax.random.key(1), x[0]))
    assert _check(net, x).ntk.shape == (3, 2, 3, 2)
    without = nets.from_haiku(haiku.without_apply_rng(made), net.params)
    np.testing.assert_array_equal(without(x[0]), net(x[0]))
    with pytest.raises(TypeError, match="transform_with_state.*a state: fix the state"):
        nets.from_haiku(haiku.transform_with_state(lambda x: x), net.params)


def _nnx():
    from flax import nnx

    like = {"rngs": nnx.Rngs(0), "param_dtype": X.dtype}
    return nets.from_nnx(nnx.Sequential(nnx.Linear(4, 5, **like), jnp.tanh, nnx.Linear(5, 2, **like)))


def _haiku():
    import haiku

    made = haiku.transform(lambda x: haiku.nets.MLP([5, 2], activation=jnp.tanh)(x))
    return nets.from_haiku(made, made.init(jax.random.key(1), X[0]))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("make", [_nnx, _haiku])
def test_networks_of_others_train_through_their_kernel(make):
    problem = js.Problem(make(), X, X[:, :2])
    flows = (js.GradientFlow(js.integrators.FunctionSpace()), js.GradientFlow(rtol=1e-9, atol=1e-11))
    found, expected = (js.solve(problem, flow, 1.0, observe=js.observe.outputs())["outputs"] for flow in flows)
    moved = np.abs(expected - problem.outputs(problem.params)).max()
    assert np.abs(found - expected).max() < 5e-5 * moved  # measured: 2e-6 and 9e-6
    assert moved > 0.5


def test_what_is_no_function():
    with pytest.raises(TypeError, match="f must be a function f\\(params, x\\) of one sample"):
        nets.Function(3, jnp.ones(2))


NUMBERS = {
    "a float": 1.0,
    "NumPy's float64": np.float64(1),
    "NumPy's float32": np.float32(1),
    "NumPy's array without axes": np.array(1.0),
    "NumPy's array": np.ones(1),
    "an array": np.asarray(1.0, jnp.result_type(float)),
}
LEARN = jnp.asarray(X)
TARGETS = 3 * jnp.sin(LEARN[:, :1])


def _by_hand(f, params, steps=10):
    """What optax and jax.grad make of them, in plain loops."""
    optimizer = optax.sgd(0.1)
    values: Any = jax.tree.map(lambda leaf: jnp.asarray(leaf, LEARN.dtype), params)
    state = optimizer.init(values)
    for _ in range(steps):
        loss = lambda p: jnp.mean((jax.vmap(lambda x: f(p, x))(LEARN) - TARGETS) ** 2) / 2
        updates, state = optimizer.update(jax.grad(loss)(values), state)
        values = optax.apply_updates(values, updates)
    return values


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("weight", [jnp.ones((1, 4)), np.ones((1, 4))], ids=["of JAX", "of NumPy"])
def test_numbers_train_as_jax_grad_trains_them(number, weight):
    f = lambda p, x: p["scale"] * (p["w"] @ jnp.tanh(x))
    params = {"w": weight, "scale": number}
    net = nets.Function(f, params)
    run = js.solve(js.Problem(net, LEARN, TARGETS), js.Descent(optax.sgd(0.1)), 1.0)
    expected, found = _by_hand(f, params), run.final.net.params
    assert abs(float(jnp.ravel(found["scale"])[0]) - 1) > 0.05
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=eps(100))
    layers = kernels.empirical(net, LEARN, by_layer=True).layers
    assert layers is not None
    assert layers.keys() == {"params['scale']", "params['w']"}


@pytest.mark.parametrize("number", [1, True, np.int64(1), np.ones((), bool), jnp.ones(2, int)])
def test_integers_are_no_parameters(number):
    with pytest.raises(TypeError, match=r"params\['n'\] is .*jax.grad cannot train: give floats"):
        nets.Function(lambda p, x: p["n"] * p["w"] * x, {"w": jnp.ones(()), "n": number})


def test_complex_numbers_are_seen_and_refused():
    net = nets.Function(lambda p, x: jnp.real(p["c"] * p["w"] * x), {"w": jnp.ones(()), "c": 1 + 1j})
    with pytest.raises(ValueError, match="parameters are complex"):
        js.Problem(net, LEARN, LEARN)


def test_numbers_of_a_partial_are_named():
    net = jax.tree_util.Partial(lambda p, x: p["a"] * p["w"] * x, {"a": 2.0, "w": jnp.ones(())})
    for verb in (lambda: js.Problem(net, LEARN, LEARN), lambda: kernels.empirical(net, LEARN)):
        with pytest.raises(TypeError, match=r"holds the number 2.0 at .*'a'.*would not train: give jnp.asarray"):
            verb()


class Scaled(eqx.Module):
    """A scale in a field."""

    w: jax.Array
    scale: Any

    def __call__(self, x):
        return self.scale * (self.w @ jnp.tanh(x))


@pytest.mark.parametrize("scale", [1.0, NUMBERS["an array"], jnp.ones(())], ids=["a float", "of NumPy", "of JAX"])
@pytest.mark.parametrize("inside", [False, True])
def test_fields_of_modules_train_as_under_filter_grad(scale, inside):
    own = net = Scaled(jnp.ones((1, 4)), scale)
    for _ in range(10):
        loss = lambda n: jnp.mean((jax.vmap(n)(LEARN) - TARGETS) ** 2) / 2
        slope = eqx.filter_grad(loss)(own)
        own = eqx.apply_updates(own, jax.tree.map(lambda g: -0.1 * g, slope))
    given = nets.Function(lambda n, x: n(x), net) if inside else net
    run = js.solve(js.Problem(given, LEARN, TARGETS), js.Descent(optax.sgd(0.1)), 1.0)
    found = run.final.net.params if inside else run.final.net
    np.testing.assert_allclose(found.w, own.w, rtol=eps(100))
    np.testing.assert_allclose(found.scale, own.scale, rtol=eps(100))
