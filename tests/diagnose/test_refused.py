"""What `js.diagnose` refuses, and what it says to do instead."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


pytestmark = pytest.mark.usefixtures("as_users")  # what jaxsolve itself says
X, Y = jnp.ones((4, 3)), jnp.ones((4, 1))
NET = eqx.nn.MLP(3, 1, 4, 1, jnp.tanh, key=jr.key(0))


def _cast(net, dtype):
    return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, net)


def _with(net, value):
    return eqx.tree_at(lambda n: n.layers[0].weight, net, jnp.full_like(net.layers[0].weight, value))


class Batched(eqx.Module):
    """A network of batches."""

    net: eqx.nn.MLP

    def __call__(self, x):
        return jax.vmap(self.net)(x)


class Floats(eqx.Module):
    """A network that takes floats alone."""

    net: eqx.nn.MLP

    def __call__(self, x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError("no integers")
        return self.net(x)


def test_integers_that_a_network_of_floats_is_given():
    message = r"no integers\. It does take floats: convert the inputs, as in x\.astype"
    with jax.numpy_dtype_promotion("standard"), pytest.raises(ValueError, match=message):
        js.diagnose(Floats(NET), jnp.ones((4, 3), int), Y, optimizer=optax.sgd(0.1), steps=1)


BATCH_NORM, _ = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
DROPOUT = eqx.nn.Sequential([NET, eqx.nn.Dropout(0.5)])
LOG = eqx.nn.Sequential([NET, eqx.nn.Lambda(lambda f: jnp.log(-jnp.abs(f)))])
EMBEDDING = eqx.nn.Sequential([eqx.nn.Embedding(4, 3, key=jr.key(0)), NET])


@pytest.mark.parametrize(
    ("net", "x", "options", "kind", "said"),
    [
        (3, X, {}, TypeError, r"jax.tree_util.Partial\(f, params\)"),
        (jnp.tanh, X, {}, ValueError, "no trainable arrays"),
        (Batched(NET), X, {}, ValueError, r"does take a batch.*net\(x\[None\]\)\[0\]"),
        (NET, jnp.ones((4, 5)), {}, ValueError, r"one sample, here of shape \(5,\)"),
        (DROPOUT, X, {}, ValueError, "eqx.nn.inference_mode"),
        (BATCH_NORM, X, {}, ValueError, "has state.*eqx.nn.inference_mode"),
        (EMBEDDING, X[:, 0], {}, ValueError, "one sample"),
        (_cast(NET, jnp.bfloat16), X, {}, ValueError, r"bfloat16.*astype\(jnp.float32\)"),
        (_with(NET, jnp.nan), X, {}, ValueError, r"layers\[0\].weight holds 12 value.*earlier checkpoint"),
        (LOG, X, {}, ValueError, "outputs of the network at the start are NaN or infinite for 4 of 4"),
        (NET, X.at[0, 0].set(jnp.nan), {}, ValueError, "NaN or infinite"),
        (NET, X, {"optimizer": 0.1}, TypeError, "optax transformation.*float 0.1"),
        (NET, X, {"optimizer": optax.adam}, TypeError, "call it with a rate"),
        (NET, X, {"steps": 0}, ValueError, "steps must be an integer >= 1"),
        (NET, X, {"key": 0}, TypeError, "random key"),
        (NET, X, {"test": X}, ValueError, "test must be a pair"),
        (NET, X[:0], {}, ValueError, "one or more samples"),
        (NET, X, {"verify": 1}, TypeError, "verify must be True or False"),
    ],
)
def test_bad_input_is_named(net, x, options, kind, said):
    with pytest.raises(kind, match=f"(?s){said}"):
        js.diagnose(net, x, Y, **options)


@pytest.mark.parametrize(
    ("x", "test"), [(np.arange(4), np.arange(4) + 0.5), (np.arange(4, dtype=np.int8), np.array([0, 1, 2, 300]))]
)
def test_test_inputs_that_integers_would_round(x, test):
    with pytest.raises(ValueError, match="but those of training are int"):
        js.diagnose(EMBEDDING, x, Y, test=(test, Y), steps=1)


@pytest.mark.parametrize("check", [js.diagnose, lambda net, *data, **options: js.coordinate_check(
    lambda width, key: net, [2, 4], *data, **options)], ids=["diagnose", "coordinate_check"])  # fmt: skip
def test_labels_that_are_no_tree_of_the_parameters(check):
    net = jax.tree_util.Partial(lambda p, x: p["w"] @ x, {"w": jnp.ones((1, 3))})
    optimizer = optax.multi_transform({"freeze": optax.set_to_zero()}, {"w": "freeze"})
    with pytest.raises(ValueError, match=r"lambda params: jax.tree_util.Partial\(f, labels\)"):
        check(net, X, Y, optimizer=optimizer, steps=1)


WIDER = eqx.nn.MLP(3, 1, 5, 1, jnp.tanh, key=jr.key(0))
DEEPER = eqx.nn.MLP(3, 1, 4, 2, jnp.tanh, key=jr.key(0))


@pytest.mark.parametrize(
    ("checkpoints", "options", "kind", "said"),
    [
        (NET, {}, TypeError, "a list of networks"),
        ([NET], {}, ValueError, "two or more checkpoints"),
        ([NET, WIDER], {}, ValueError, r"checkpoint 1 does not fit.*layers\[0\].weight.*\(5, 3\).*\(4, 3\)"),
        ([NET, DEEPER], {}, ValueError, r"another network.*layers\[2\]"),
        ([NET, _with(NET, jnp.inf)], {}, ValueError, "earlier checkpoint"),
        ([NET, NET], {"steps": [3, 3]}, ValueError, "steps must ascend"),
    ],
)
def test_bad_checkpoints_are_named(checkpoints, options, kind, said):
    with pytest.raises(kind, match=f"(?s){said}"):
        js.diagnose_checkpoints(checkpoints, X, Y, **options)


def _make(width, key):
    return eqx.nn.MLP(3, 1, width, 1, jnp.tanh, key=key)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ((NET.layers[0].weight, [2, 4]), TypeError, "make_net must be a function"),
        ((_make, [4]), ValueError, "two or more, ascending"),
        ((_make, [8, 4]), ValueError, "two or more, ascending"),
        ((_make, 64), TypeError, r"widths must be a sequence of integers, such as \[32, 64, 128\]; got int 64"),
    ],
)
def test_bad_widths_are_named(arguments, kind, said):
    with pytest.raises(kind, match=said):
        js.coordinate_check(arguments[0], arguments[1], X, Y)


def test_bad_rates_are_named():
    with pytest.raises(ValueError, match="three or more finite numbers > 0, ascending"):
        js.transfer_check(_make, [2, 4], [0.1, 0.01], X, Y)
    for bad in ([0.1, float("nan"), 0.4], [0.1, 0.2, float("inf")]):
        with pytest.raises(ValueError, match="three or more finite numbers > 0, ascending"):
            js.transfer_check(_make, [2, 4], bad, X, Y, steps=1, seeds=1)
    with pytest.raises(TypeError, match=r"function of \(rate, width\)"):
        js.transfer_check(_make, [2, 4], [0.1, 0.2, 0.4], X, Y, optimizer=0.1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("loss", [lambda f, y: np.sum(np.sin(f)), lambda f: f, lambda f, y: f[3, 3]])
def test_losses_that_cannot_be_called(loss):
    with pytest.raises(ValueError, match=r"the loss cannot be called on one sample's output of shape \(1,\)"):
        js.diagnose(NET, X, Y, loss=loss, optimizer=optax.sgd(0.1), steps=1)


def test_a_checkpoint_that_has_diverged_is_named():
    net = eqx.nn.MLP(2, 1, 4, 1, jnp.tanh, key=jr.key(0))
    x, y = jnp.eye(2), jnp.ones((2, 1))
    far = jax.tree.map(lambda leaf: leaf * 1e38 if eqx.is_array(leaf) else leaf, net)
    far = eqx.tree_at(lambda net: net.layers[1].weight, far, jnp.full((1, 4), jnp.finfo(x.dtype).max))
    with pytest.raises(ValueError, match="outputs of the network in checkpoint 1 are NaN or infinite"):
        js.diagnose_checkpoints([net, far], x, y)
    lost = eqx.tree_at(lambda net: net.layers[0].bias, net, jnp.full((4,), jnp.nan))
    with pytest.raises(ValueError, match=r"holds 4 value\(s\) that are NaN or infinite in checkpoint 1"):
        js.diagnose_checkpoints([net, lost], x, y)


def test_targets_that_are_all_the_same_have_no_alignment():
    net = eqx.nn.MLP(2, 1, 4, 1, jnp.tanh, key=jr.key(0))
    report = js.diagnose(net, jnp.eye(2), jnp.ones((2, 1)), optimizer=optax.sgd(0.1), steps=3)
    assert np.isnan(report["kernel_alignment"])
    assert "alignment with the target is not known: the targets are the same for all samples." in report.text
