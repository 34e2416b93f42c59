"""`js.coordinate_check` and `js.transfer_check`: muP passes, planted errors are found, and slopes that are known."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import eps


WIDTHS = [32, 128, 512]
SGD = optax.sgd(0.05)


def _data():
    x = jr.normal(jr.key(0), (16, 4))
    return x, x[:, :1] * x[:, 1:2]


def _check(change=lambda scaling, width: scaling, rule=None):
    def make(width, key):
        given = js.nets.Scaling.mup() if rule is None else rule
        scaling = change(given([(4, width), (width, width), (width, 1)]), width)
        return js.nets.MLP(
            in_size=4, out_size=1, width_size=width, depth=2, activation="tanh", scaling=scaling, key=key
        )

    return js.coordinate_check(make, WIDTHS, *_data(), optimizer=SGD)


def test_mup_passes():
    check = _check()
    assert check.passed, str(check)
    assert check.size_slopes[-1].value < -0.25  # the read-out starts smaller, and may
    assert check.to_xarray().sizes["tensor"] == 3
    assert len(check.plot().axes) == 2
    assert "unless the error hides" not in str(check)


def test_a_wrong_multiplier_in_one_layer_is_found():
    grow = lambda width: (width / 32) ** 0.5
    planted = lambda s, width: eqx.tree_at(lambda t: t.multiplier, s, s.multiplier.at[1].multiply(grow(width)))
    check = _check(planted)
    assert not check.passed
    assert "weights[0]: its entries keep their size" in check.verdicts[0]
    assert check.verdicts[1].startswith("weights[1]: its entries grow like N^")
    np.testing.assert_allclose(check.size_slopes[1].value, 0.5, atol=0.05)
    assert "unless the error hides" not in check.verdicts[1]


def test_a_slope_without_an_error_is_said_to_be_open():
    make = lambda width, key: js.nets.MLP(
        in_size=4, out_size=1, width_size=width, depth=2, activation="tanh", scaling=js.nets.Scaling.standard(), key=key
    )
    check = js.coordinate_check(make, WIDTHS[:2], *_data(), optimizer=SGD, seeds=1)
    assert check.change_slopes[-1].error == np.inf
    assert "give more seeds or widths" in check.verdicts[-1]
    assert "its entries keep their size" in check.verdicts[0]
    assert ", error unknown), unless the error hides that they do not: give more seeds or widths" in check.verdicts[0]


def test_the_standard_scaling_fails_at_the_read_out():
    check = _check(rule=js.nets.Scaling.standard())
    assert not check.passed
    assert "it has the standard scaling" in check.verdicts[-1]
    assert check.change_slopes[-1].value > 0.5


def test_an_inner_layer_is_no_read_out():
    """microsoft/mup #4: of several linear layers one inside is divided by the width, as only read-outs are."""
    planted = lambda s, width: eqx.tree_at(lambda t: t.multiplier, s, s.multiplier.at[1].divide(width))
    check = _check(planted)
    assert check.passed is False
    assert check.verdicts[1].startswith("weights[1]: its entries shrink like N^-1.")
    np.testing.assert_allclose(check.size_slopes[1].value, -1, atol=0.05)


def test_a_read_out_that_starts_at_zero_hides_the_standard_scaling_at_the_start_alone():
    """microsoft/mup #13."""
    zero = lambda s, width: eqx.tree_at(lambda t: t.sigma, s, s.sigma.at[2].set(0.0))
    check = _check(zero, rule=js.nets.Scaling.standard())
    assert check.passed is False
    assert check.verdicts[2].startswith("weights[2]: its entries start at 0 at every width; their changes grow like N^")


@pytest.mark.parametrize("layer", [0, 2])  # 2: microsoft/mup #13
def test_tensors_may_start_at_zero(layer):
    check = _check(lambda s, width: eqx.tree_at(lambda t: t.sigma, s, s.sigma.at[layer].set(0.0)))
    assert "its entries start at 0 at every width" in check.verdicts[layer]
    assert check.passed, str(check)


def test_zero_at_one_width_does_not_pass():
    check = _check(lambda s, width: eqx.tree_at(lambda t: t.sigma, s, s.sigma.at[2].multiply(float(width < 512))))
    assert "its entries are 0 at some widths only" in check.verdicts[2]
    assert check.passed is False


class Stacked(eqx.Module):
    """Blocks in one array, run by a scan; two read-outs, one by the table that looks up; attention by one query."""

    table: jax.Array
    blocks: jax.Array
    head: jax.Array
    query: jax.Array
    width: int = eqx.field(static=True)
    planted: float = eqx.field(static=True)

    def __init__(self, width, key, *, depth=3, planted=0.0, query=0.0):
        keys = jr.split(key, 4)
        self.table = jr.normal(keys[0], (7, width))
        self.blocks = jr.normal(keys[1], (depth, width, width)) / width**0.5
        self.head = jr.normal(keys[2], (width,))
        self.query = query * jr.normal(keys[3], (width, width)) / width**0.5
        self.width, self.planted = width, planted

    def __call__(self, tokens):
        h = self.table[tokens]
        scores = (h @ self.query.T) @ h.T / self.width
        h = h + jax.nn.softmax(scores) @ h
        grown = (self.width / 32) ** self.planted
        h, _ = jax.lax.scan(lambda h, w: (h + grown * jnp.tanh(h @ w.T), None), h, self.blocks)
        # muP: read-outs over the width.
        return jnp.concatenate([h[-1] @ self.table.T / self.width, (h[0] @ self.head)[None] / self.width])


def stacked(**options):
    x = jr.randint(jr.key(0), (16, 4), 0, 7)
    y = jnp.concatenate([jax.nn.one_hot(x.sum(1) % 7, 7), jnp.where(x[:, :1] > 3, 1.0, -1.0)], axis=1)
    make = lambda width, key: Stacked(width, key, **options)
    # Adam in muP: the rate of matrices between layers of that width goes like 1/width.
    label = lambda p: eqx.tree_at(
        lambda n: (n.table, n.blocks, n.head, n.query), p, ("vector", "matrix", "vector", "matrix")
    )
    optimizer = lambda width: optax.multi_transform(
        {"matrix": optax.adam(0.3 / width), "vector": optax.adam(0.05)}, label
    )
    return js.coordinate_check(make, [32, 128, 512], x, y, optimizer=optimizer, seeds=3)


def test_stacked_layers_tied_tables_two_heads_and_a_zero_query():
    """All that a transformer of today has, right in muP; blocks that grow with the width are found in the scan."""
    check = stacked()
    blocks = ("blocks", "blocks (2)", "blocks (3)")
    assert set(check.tensors) >= {"table", "query", *blocks, "table (2)", "head"}
    assert [name for name, out in zip(check.tensors, check.read_outs, strict=True) if out] == ["table (2)", "head"]
    assert "query: its entries start at 0 at every width" in str(check)
    assert check.passed, str(check)
    planted = stacked(planted=0.5)
    assert planted.passed is False
    assert all(abs(planted.size_slopes[check.tensors.index(name)].value) > 0.25 for name in blocks[1:])


def test_factors_of_a_product_by_entries_are_no_read_outs():
    """Two towers whose outputs multiply: one that shrinks with the width learns nothing, and does not pass."""

    def make(width, key):
        a, c = jr.normal(key, (2, width, 4))
        f = lambda p, x: jnp.sum((p["a"] @ x) * jnp.tanh(p["c"] @ x))[None] / width
        return js.nets.Function(f, {"a": a / width, "c": c})

    check = js.coordinate_check(make, [32, 128, 512], *_data(), optimizer=SGD, seeds=2)
    assert not any(check.read_outs)
    assert check.passed is False


class Gained(eqx.Module):
    """A network right in muP, and gains on its output in a scan of more steps than are written out."""

    net: js.nets.MLP
    gains: jax.Array

    def __call__(self, x):
        return jax.lax.scan(lambda out, gain: (gain * out, None), self.net(x), self.gains)[0]


def test_what_is_not_followed_is_not_passed():
    options = {"in_size": 4, "out_size": 1, "depth": 2, "activation": "tanh", "scaling": js.nets.Scaling.mup()}
    make = lambda width, key: Gained(js.nets.MLP(width_size=width, key=key, **options), jnp.ones(65))
    check = js.coordinate_check(make, WIDTHS, *_data(), optimizer=SGD)
    assert check.passed is None
    assert "not known: all that was measured scales in the same way" in str(check)
    assert any("Parameters inside scan were not followed" in note for note in check.notes)
    assert np.isnan(check.to_xarray().attrs["passed"])


class Attention(eqx.Module):
    """One head over three tokens: a product of activations, an embedding, and two uses of one matrix."""

    table: eqx.nn.Embedding
    mix: eqx.nn.Linear
    read: eqx.nn.Linear

    def __init__(self, width, key):
        keys = jr.split(key, 3)
        self.table, self.mix = eqx.nn.Embedding(6, width, key=keys[0]), eqx.nn.Linear(width, width, key=keys[1])
        self.read = eqx.nn.Linear(width, 1, key=keys[2])

    def __call__(self, x):
        h = jax.vmap(self.table)(x)
        q = jax.vmap(self.mix)(h)
        h = jax.nn.softmax(q @ h.T) @ h
        return self.read(jax.nn.gelu(jax.vmap(self.mix)(h)).mean(0))


def test_tensors_are_those_of_the_network():
    """Sizes against the network written out: multipliers and biases belong to a tensor, activations do not."""
    x = jr.randint(jr.key(0), (8, 3), 0, 6)
    y = jnp.ones((8, 1))
    key = jr.key(3)
    check = js.coordinate_check(Attention, [4, 8], x, y, optimizer=SGD, seeds=1, key=key)
    assert set(check.tensors) == {
        "table", "mix", "product of activations", "product of activations (2)", "mix (2)", "read"
    }  # fmt: skip
    net = Attention(8, jr.fold_in(key, 0))
    h = jax.vmap(jax.vmap(net.table))(x)
    q = jax.vmap(jax.vmap(net.mix))(h)
    scores = jnp.einsum("nsd,ntd->nst", q, h)
    mixed = jax.nn.softmax(scores) @ h
    second = jax.vmap(jax.vmap(net.mix))(mixed)
    out = jax.vmap(net)(x)
    size = lambda values: float(jnp.sqrt(jnp.mean(values**2)))
    expected = {
        "table": h, "mix": q, "product of activations": scores, "product of activations (2)": mixed,
        "mix (2)": second, "read": out,
    }  # fmt: skip
    for name, values in expected.items():
        found = check.sizes[check.tensors.index(name), 1, 0]
        np.testing.assert_allclose(found, size(values), rtol=eps(1e3), err_msg=name)


class Multiplied(eqx.Module):
    """f(x) = m w x with one weight: the best rate of gradient descent goes like 1/m^2."""

    w: jax.Array
    m: float = eqx.field(static=True)

    def __call__(self, x):
        return self.m * self.w * x


@pytest.mark.parametrize(("power", "octaves"), [(0.0, 0.0), (0.5, -1.0)])
def test_octaves_of_the_best_rate(power, octaves):
    x = jr.normal(jr.key(0), (16, 1))
    make = lambda width, key: Multiplied(0.01 * jr.normal(key, (1,)), (width / 4) ** power)
    sgd = lambda rate, width: optax.sgd(rate)
    rates = [2.0**k for k in range(-7, 2)]
    check = js.transfer_check(make, [4, 8, 16], rates, x, 2 * x, optimizer=sgd, steps=3)
    np.testing.assert_allclose(check.octaves.value, octaves, atol=0.1)
    assert check.passed == (octaves == 0), check.text
    assert len(check.plot().axes) == 1
    assert dict(check.to_xarray().sizes) == {"width": 3, "rate": 9, "seed": 2}


@pytest.mark.parametrize(
    ("rates", "seeds", "widths", "said"),
    [
        ([2.0**k for k in range(-7, 2)], 1, [4, 8], "two runs give no error estimate"),
        ([2.0**k for k in range(-12, -8)], 2, [4, 8, 16], "a best rate is the first or last one tried"),
        ([2.0**k for k in range(12, 15)], 2, [4, 8, 16], "training diverged at every rate at width 4, 8, 16"),
    ],
)
def test_what_is_not_measured_is_neither_passed_nor_failed(rates, seeds, widths, said):
    x = jr.normal(jr.key(0), (16, 1))
    make = lambda width, key: Multiplied(0.01 * jr.normal(key, (1,)), 1.0)
    sgd = lambda rate, width: optax.sgd(rate)
    check = js.transfer_check(make, widths, rates, x, 2 * x, optimizer=sgd, steps=100, seeds=seeds)
    assert check.passed is None
    assert check.text.startswith("not known: ")
    assert said in check.text
    assert np.isnan(check.to_xarray().attrs["passed"])


def test_seeds_that_scatter_decide_nothing_unless_the_best_rate_surely_moves():
    """f = m w x with the factors m 2, 1/2 and 1 at every width, times what grows with the width or not."""
    x = jr.normal(jr.key(0), (16, 1))
    f = lambda p, x: jax.lax.stop_gradient(p["m"]) * p["w"] * x

    def check(power):
        factors = itertools.cycle([2.0, 0.5, 1.0])  # of the seeds

        def make(width, key):
            m = jnp.array(next(factors) * (width / 4) ** power)
            return js.nets.Function(f, {"w": 0.01 * jr.normal(key, (1,)), "m": m})

        rates = [2.0**k for k in range(-16, 6)]
        sgd = lambda rate, width: optax.sgd(rate)
        return js.transfer_check(make, [4, 8, 16], rates, x, 2 * x, optimizer=sgd, steps=3, seeds=3)

    still, moving = check(0.0), check(1.5)
    assert still.octaves.error > 0.5
    assert still.passed is None
    assert "not known: the seeds scatter too much" in still.text
    assert moving.octaves.error > 0.5
    assert moving.passed is False
    assert "failed: the best rate depends on the width" in moving.text


class Lowered(js.losses.AbstractLoss):
    """MSE less 5: the same training."""

    def pointwise(self, f, y):
        return jnp.sum((f - y) ** 2) / 2 - 5

    def targets(self, y, out_size):
        return jnp.reshape(y, (-1, out_size))


def test_losses_below_zero_have_a_best_rate():
    """They have no logarithms; one of them must not decide alone."""
    x = jr.normal(jr.key(0), (16, 1))
    make = lambda width, key: Multiplied(0.01 * jr.normal(key, (1,)), 1.0)
    sgd = lambda rate, width: optax.sgd(rate)
    rates = [2.0**k for k in range(-4, 4)]
    plain, lowered = (
        js.transfer_check(make, [4, 8, 16], rates, x, 2 * x, optimizer=sgd, steps=3, loss=loss)
        for loss in (js.losses.MSE(), Lowered())
    )
    assert np.any(lowered.losses < 0)
    assert not np.any(lowered.at_edge)
    np.testing.assert_allclose(np.log2(lowered.best), np.log2(plain.best), atol=1)
    assert lowered.passed, lowered.text
    assert [check.plot().axes[0].get_yscale() for check in (plain, lowered)] == ["log", "linear"]
    shown = lowered.plot().axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(np.asarray(shown), np.where(np.isfinite(m := lowered.losses[0].mean(1)), m, np.nan))


def test_a_width_that_diverged_does_not_pass():
    """microsoft/mup #22: its changes are unknown; the other widths alone would agree."""

    def make(width, key):
        net = js.nets.MLP(
            in_size=4, out_size=1, width_size=width, depth=2, activation="tanh", scaling=js.nets.Scaling.mup(), key=key
        )
        return net if width < 512 else eqx.tree_at(lambda n: n.scaling.gamma, net, jnp.asarray(1e30))

    check = js.coordinate_check(make, WIDTHS, *_data(), optimizer=SGD)
    assert not check.passed
    assert check.notes == ("Training diverged at width 512: changes there are unknown. Take a smaller rate.",)


def test_advice_beyond_a_smaller_rate_is_kept():
    """The first step leads below the root's domain."""

    def make(width, key):
        f = lambda p, x: jnp.sqrt(1e3 + p["v"] @ jnp.tanh(p["w"] @ x))[None]
        v = jr.normal(jr.fold_in(key, 1), (width,)) / width
        return jax.tree_util.Partial(f, {"w": jr.normal(key, (width, 4)) / 2, "v": v})

    check = js.coordinate_check(make, [16, 64], *_data(), optimizer=optax.sgd(1e4), seeds=1)
    assert any("if that does not help, look for a root" in note for note in check.notes)


@pytest.mark.parametrize("optimizer", [optax.adam, optax.sgd])
def test_optimizers_that_would_take_the_width_for_a_rate(optimizer):
    make = lambda width, key: eqx.nn.MLP(4, 1, width, 1, key=key)
    with pytest.raises(TypeError, match="would take the width for one of its own arguments"):
        js.coordinate_check(make, [4, 8], *_data(), optimizer=optimizer)
    with pytest.raises(TypeError, match="would take the width for one of its own arguments"):
        js.transfer_check(make, [4, 8], [0.1, 1.0, 10.0], *_data(), optimizer=optimizer)


@pytest.mark.slow
def test_a_product_written_as_a_sum_is_followed():
    """The standard read-out, by `dot` and by entries: the same tensors, and the same verdict."""
    x = jr.normal(jr.key(0), (16, 4))

    def check(read):
        f = lambda p, x: read(p["v"], jnp.tanh(p["w"] @ x))[None]
        params = lambda n, key: {"w": jr.normal(key, (n, 4)) / 2, "v": jr.normal(jr.fold_in(key, 1), (n,)) / n**0.5}
        make = lambda n, key: jax.tree_util.Partial(f, params(n, key))
        return js.coordinate_check(make, [32, 128, 512], x, x[:, :1], optimizer=optax.adam(1e-3))

    one, other = check(jnp.dot), check(lambda v, h: jnp.sum(v * h))
    assert sorted(one.tensors) == sorted(other.tensors)
    assert not one.passed
    assert not other.passed
    np.testing.assert_allclose(one.sizes[-1], other.sizes[-1], rtol=eps(1e4))


def test_the_mean_of_a_norm_behind_a_gain_is_no_product():
    """A gain makes products of entries, and a sum of these a read-out, unless it is a mean that is subtracted."""
    norm = lambda n: eqx.nn.LayerNorm(n, use_bias=False)

    def make(n, key):
        layers = eqx.nn.Linear(4, n, use_bias=False, key=key), eqx.nn.Linear(n, 1, use_bias=False, key=key)
        return eqx.nn.Sequential([layers[0], norm(n), norm(n), layers[1]])

    check = js.coordinate_check(make, [4, 8], *_data(), optimizer=SGD, seeds=1, steps=1)
    assert check.tensors == ("layers[0]", "layers[3]")


def test_widths_at_which_nothing_moves_do_not_pass():
    """Relu whose entries are all off at one width: the slope is that of the others."""
    x = jnp.ones((8, 2))

    def make(n, key):
        layer = eqx.nn.Linear(2, n, use_bias=False, key=key)
        weight = jnp.full((n, 2), -1.0 if n == 64 else 1.0) + 0 * layer.weight
        read = eqx.nn.Linear(n, 1, use_bias=False, key=key)
        return eqx.nn.Sequential([eqx.tree_at(lambda one: one.weight, layer, weight), eqx.nn.Lambda(jax.nn.relu), read])

    check = js.coordinate_check(make, [32, 64, 128], x, jnp.ones((8, 1)), optimizer=optax.sgd(0.01))
    assert not check.passed
    assert any("Nothing moved at width 64" in note for note in check.notes)
