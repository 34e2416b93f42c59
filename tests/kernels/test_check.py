"""The certificate of a kernel: it holds for right programs, and a program that was compiled wrongly is named."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import assert_fails
from tests.inside import use_gram


@pytest.fixture
def wrong_compiler(monkeypatch):
    """Products of cotangents are 3 % too large in every program made while this is in use: XLA's fault, planted."""
    right = use_gram._inner
    jax.clear_caches()
    monkeypatch.setattr(use_gram, "_inner", lambda one, two: 1.03 * right(one, two))
    yield
    monkeypatch.undo()
    jax.clear_caches()


def wide(key, n=48):
    """A network whose kernel takes far more than a gradient, so that `empirical` checks it."""
    ends = jax.random.split(key, 2)
    net = js.nets.MLP(
        in_size=64, out_size=1, width_size=512, depth=2, activation="tanh", scaling=js.nets.Scaling.ntk(), key=ends[0]
    )
    cast = lambda leaf: leaf.astype(jnp.float32) if eqx.is_array(leaf) else leaf
    return jax.tree.map(cast, net), jax.random.normal(ends[1], (n, 64), jnp.float32)


class Normed(eqx.Module):
    """A layer norm between two matrices, and an attention over four tokens of the normed vector."""

    inner: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    outer: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.inner = eqx.nn.Linear(6, 32, key=keys[0])
        self.norm = eqx.nn.LayerNorm(32)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=keys[1])
        self.outer = eqx.nn.Linear(32, 3, key=keys[2])

    def __call__(self, x):
        tokens = self.norm(self.inner(x)).reshape(4, 8)
        return self.outer(self.attention(tokens, tokens, tokens).ravel())


NETWORKS = {
    "mlp": lambda key: (
        js.nets.MLP(
            in_size=6, out_size=3, width_size=32, depth=3, activation="relu", scaling=js.nets.Scaling.ntk(), key=key
        ),
        (6,),
    ),
    "deep": lambda key: (
        js.nets.MLP(
            in_size=6, out_size=3, width_size=16, depth=50, activation="tanh", scaling=js.nets.Scaling.ntk(), key=key
        ),
        (6,),
    ),
    "conv": lambda key: (
        js.nets.ConvNet(
            in_shape=(1, 16, 16), out_size=3, width_size=4, activation="gelu", scaling=js.nets.Scaling.ntk(), key=key
        ),
        (1, 16, 16),
    ),
    "normed": lambda key: (Normed(key), (6,)),
}


@pytest.mark.parametrize("dtype", [jnp.float32, None], ids=["float32", "default"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_it_holds_for_every_layout(make, dtype, getkey):
    """Its error is a small part of its bound; of a kernel that is 20 times as far off it is more."""
    net, shape = make(getkey())
    cast = lambda leaf: leaf.astype(dtype) if dtype is not None and eqx.is_inexact_array(leaf) else leaf
    net = jax.tree.map(cast, net)
    x, x2 = (cast(jax.random.normal(getkey(), (count, *shape))) for count in (5, 4))
    for other in (None, x2):
        for layout in ({}, {"trace": True}):
            kernel = js.kernels.empirical(net, x, other, **layout).ntk
            found = js.kernels.check(net, x, kernel, other, key=getkey())
            assert float(found.error) <= 0.2 * found.bound
            for samples, off in ((None, 20), (2, 1000)):  # of the product of two samples little may be left
                worse = (1 + off * found.bound) * kernel
                assert bool(js.kernels.check(net, x, kernel, other, key=getkey(), samples=samples).holds)
                assert not bool(js.kernels.check(net, x, worse, other, key=getkey(), samples=samples).holds)


def test_rates_are_part_of_it(getkey):
    """With other rates than the kernel's it does not hold."""
    net, _ = NETWORKS["mlp"](getkey())
    x = jax.random.normal(getkey(), (5, 6))
    params = js.nets.partition(net)[0]
    eta = jax.tree.map(lambda leaf: jnp.asarray(0.5 if leaf.ndim == 2 else 2.0, leaf.dtype), params)
    kernel = js.kernels.empirical(net, x, eta=eta).ntk
    assert bool(js.kernels.check(net, x, kernel, eta=eta, key=getkey()).holds)
    assert_fails(lambda: _require(js.kernels.check(net, x, kernel, key=getkey()).holds))


def test_an_error_of_one_layer_is_seen(getkey):
    """3 % of what the first layer adds."""
    net, _ = NETWORKS["mlp"](getkey())
    x = jax.random.normal(getkey(), (8, 6))
    found = js.kernels.empirical(net, x, by_layer=True)
    assert found.layers is not None
    kernel, first = found.ntk, next(iter(found.layers.values()))
    assert bool(js.kernels.check(net, x, kernel, key=getkey()).holds)
    assert not bool(js.kernels.check(net, x, kernel + 0.03 * first, key=getkey()).holds)


def test_a_wrong_compiler_is_named_by_empirical(wrong_compiler, getkey):
    net, x = wide(getkey(), n=400)
    with pytest.warns(UserWarning, match=r"not that of the network's gradients.*jaxsolve doctor"):
        js.kernels.empirical(net, x)


def test_a_wrong_compiler_is_named_by_a_run_of_its_kernel(wrong_compiler, getkey):
    net, x = wide(getkey())
    problem = js.Problem(net, x, jnp.sign(x[:, :1]))
    with pytest.warns(UserWarning, match="not that of the network's gradients"):
        js.solve(problem, js.FrozenKernel(), [0.0, 1.0])


def test_a_wrong_compiler_is_named_by_a_diagnosis(wrong_compiler, getkey):
    net, x = wide(getkey(), n=16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        js.diagnose(net, x, jnp.sign(x[:, 0]), optimizer=optax.sgd(0.05), steps=3)
    assert any("not that of the network's gradients" in str(one.message) for one in caught)


def test_a_right_compiler_is_not_named(getkey):
    """The twin of the three before: warnings are errors in these tests."""
    net, x = wide(getkey(), n=400)
    js.kernels.empirical(net, x)
    x = x[:48]
    js.solve(js.Problem(net, x, jnp.sign(x[:, :1])), js.FrozenKernel(), [0.0, 1.0])
    few = x[:16]
    js.diagnose(net, few, jnp.sign(few[:, 0]), optimizer=optax.sgd(0.05), steps=3)


def test_refused(getkey):
    net, _ = NETWORKS["mlp"](getkey())
    x = jax.random.normal(getkey(), (5, 6))
    with pytest.raises(ValueError, match=r"kernel must have shape .* or .* for these inputs"):
        js.kernels.check(net, x, jnp.eye(7), key=getkey())
    with pytest.raises(TypeError, match="key"):
        js.kernels.check(net, x, jnp.eye(5), key=np.arange(2))
    with pytest.raises(ValueError, match="samples must be an integer >= 1, got 0"):
        js.kernels.check(net, x, jnp.eye(5), key=getkey(), samples=0)


def _require(holds):
    assert bool(holds)
