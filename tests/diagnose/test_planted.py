"""Mistakes of public threads on muP, planted in small networks that are right without them: `js.coordinate_check`.

- microsoft/mup #4: which of several linear layers are read-outs; here one inside that is made one.
- #13, #71: read-outs, and queries, that start at 0; outputs that grow.
- #22: right at the start, and the best rate of a narrow network is too large for a wide one.
- #23: convolutions, whose read-out needs its multiplier, too.
- #36: the query that starts at 0, behind which logits over the root of the width hide at the start.
- karpathy/nanochat #644: Muon between layers, which needs no rates over the width, and Adam on the rest, with outputs
  over the width.
- NVIDIA/Megatron-LM #3715: Muon whose updates are scaled by the root of the larger side, as those of Adam are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


RATE = 2e-4
EPS = 1e-16  # of Adam, far below gradients, which shrink with the width and where others start at 0


class Attention(eqx.Module):
    """One head whose query starts at 0, in muP: logits and outputs over the width."""

    into: jax.Array
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    logits: float = eqx.field(static=True)
    outputs: float = eqx.field(static=True)

    def __init__(self, width, key, *, logits=1.0, outputs=1.0):
        keys = jr.split(key, 3)
        self.into = jr.normal(keys[0], (width, 4)) / 2
        self.key, self.value = jr.normal(keys[1], (2, width, width)) / width**0.5
        self.query, self.out = jnp.zeros((width, width)), jnp.zeros((1, width))
        self.logits, self.outputs = width**-logits, width**-outputs

    def __call__(self, x):
        h = jnp.tanh(x @ self.into.T)
        scores = (h @ self.query.T) @ (h @ self.key.T).T * self.logits
        return self.out @ jnp.tanh(jax.nn.softmax(scores) @ (h @ self.value.T)).mean(0) * self.outputs


def adam(power=1.0):
    """Adam; the rate of matrices between layers goes like width^-power, which muP has at 1."""
    kinds = lambda params: jax.tree.map(lambda p: "matrix" if p.shape[0] == p.shape[1] else "other", params)
    of = lambda rate: optax.adam(rate, eps=EPS)
    return lambda width: optax.multi_transform({"matrix": of(RATE * (32 / width) ** power), "other": of(RATE)}, kinds)


def muon(scale=None):  # when a test runs, as older versions of optax take other arguments
    """Muon on matrices between layers, with its own scale or this one, and Adam on the rest, at rates of any width."""
    matrices = lambda params: jax.tree.map(
        lambda p: optax.contrib.MuonDimensionNumbers() if p.shape[0] == p.shape[1] else None, params
    )
    return optax.contrib.muon(
        0.05, adam_learning_rate=RATE, muon_weight_dimension_numbers=matrices, consistent_rms=scale
    )


def of_attention(optimizer, **planted):
    x = jr.normal(jr.key(0), (8, 3, 4))
    make = lambda width, key: Attention(width, key, **planted)
    return js.coordinate_check(make, [32, 256], x, x[:, 0, :1] * x[:, 1, 1:2], optimizer=optimizer, seeds=4)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [adam, muon], ids=["microsoft/mup #13, #36, #71", "karpathy/nanochat #644"])
def test_queries_and_outputs_that_start_at_0_are_right(optimizer):
    check = of_attention(optimizer())
    assert check.passed, str(check)
    assert "query: its entries start at 0 at every width" in str(check)
    assert "out: its entries start at 0 at every width" in str(check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "planted", "grown", "power"),
    [
        pytest.param(lambda: adam(0), {}, ("query", "key", "value"), 1, id="microsoft/mup #22"),
        pytest.param(adam, {"logits": 0.5}, ("product of activations",), 0.5, id="microsoft/mup #36"),
        pytest.param(adam, {"outputs": 0.0}, ("out",), 1, id="microsoft/mup #71"),
        pytest.param(muon, {"outputs": 0.0}, ("out",), 1, id="karpathy/nanochat #644"),
        pytest.param(lambda: muon(0.2), {}, ("query", "key", "value"), 0.5, id="NVIDIA/Megatron-LM #3715"),
    ],
)
def test_what_only_training_shows(optimizer, planted, grown, power):
    """At the start all is right; changes grow by the power that was planted."""
    check = of_attention(optimizer(), **planted)
    assert check.passed is False
    for name, of_size, of_change, verdict in zip(
        check.tensors, check.size_slopes, check.change_slopes, check.verdicts, strict=True
    ):
        assert np.isnan(of_size.value) or abs(of_size.value) < 0.25
        if name in grown:
            np.testing.assert_allclose(of_change.value, power, atol=0.2)
            assert "their changes grow" in verdict


class Convolutions(eqx.Module):
    """Two convolutions and a read-out by a third, in muP for Adam: outputs over the width."""

    layers: tuple[eqx.nn.Conv1d, eqx.nn.Conv1d, eqx.nn.Conv1d]
    power: float = eqx.field(static=True)

    def __init__(self, width, key, *, power=1.0):
        sizes, keys = ((2, width), (width, width), (width, 1)), jr.split(key, 3)
        layers = [eqx.nn.Conv1d(*size, 3, use_bias=False, key=key) for size, key in zip(sizes, keys, strict=True)]
        # The read-out's start as that of the input's layer: of one size at any width.
        out = eqx.tree_at(lambda layer: layer.weight, layers[2], layers[2].weight * width**0.5)
        self.layers, self.power = (layers[0], layers[1], out), power

    def __call__(self, x):
        for layer in self.layers[:2]:
            x = jnp.tanh(layer(x))
        return (self.layers[2](x) / x.shape[0] ** self.power).mean(-1)


@pytest.mark.slow
def test_the_read_out_of_convolutions():
    """microsoft/mup #23."""
    x = jr.normal(jr.key(0), (8, 2, 10))
    y = x[:, 0, :1] * x[:, 1, 1:2]

    def check(power):
        make = lambda width, key: Convolutions(width, key, power=power)
        return js.coordinate_check(make, [32, 128], x, y, optimizer=adam(), seeds=3)

    right, planted = check(1.0), check(0.5)
    assert right.passed, str(right)
    assert planted.passed is False
    assert planted.verdicts[-1].startswith("layers[2]: ")
    assert "their changes grow" in planted.verdicts[-1]
    assert "grow" not in "".join(planted.verdicts[:-1])
