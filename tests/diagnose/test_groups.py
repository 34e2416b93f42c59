"""Which matrices follow one another, in the conventions of Equinox, Flax and Haiku."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest
import xarray as xr

import jaxsolve as js
from tests.inside import adjacent, alignments


ONE, TWO = jnp.outer(jnp.eye(3)[0], jnp.eye(3)[1]), jnp.outer(jnp.eye(3)[1], jnp.eye(3)[2])  # ONE TWO is not 0
NAMED = {
    "Equinox": {"layers": [{"weight": TWO}, {"weight": ONE}]},
    "Flax": {"Dense_0": {"kernel": ONE}, "Dense_1": {"kernel": TWO}},
    "Haiku": {"mlp/~/linear_0": {"w": ONE}, "mlp/~/linear_1": {"w": TWO}},
}


@pytest.mark.parametrize("name", NAMED)
def test_what_the_first_writes_the_second_reads(name):
    names, pairs = adjacent(NAMED[name])
    assert len(names) == 1
    assert [float(value) for value in alignments(NAMED[name], pairs)] == [1.0]  # in the other order it is 0
    other = jax.tree.map(lambda leaf: leaf.T, NAMED[name])
    assert [float(value) for value in alignments(other, adjacent(other)[1])] == [0.0]


def test_small_matrices_are_aligned_as_large_ones():
    """The squares of entries, and at 1e-24 the product of two, are no numbers of float32."""
    tiny = jax.tree.map(lambda leaf: jnp.asarray(1e-24 * leaf, jnp.float32), NAMED["Flax"])
    assert [float(value) for value in alignments(tiny, adjacent(tiny)[1])] == [1.0]


def test_shapes_decide_in_the_convention_of_the_names():
    wide = {"Dense_0": {"kernel": jnp.ones((5, 2))}, "Dense_1": {"kernel": jnp.ones((2, 5))}}
    assert len(adjacent(wide)[1]) == 1  # 5 to 2 to 5
    apart = {"Dense_0": {"kernel": jnp.ones((5, 2))}, "Dense_1": {"kernel": jnp.ones((3, 5))}}
    assert adjacent(apart) == ((), [])


@pytest.mark.slow
def test_all_numbers_and_keys_of_both_kinds():
    x = jr.normal(jr.key(0), (12, 3))
    net = eqx.nn.MLP(3, 1, 16, 1, jnp.tanh, key=jr.key(1))
    options = {"optimizer": optax.adam(1e-2), "steps": 20, "verify": True, "batch_size": 6}
    reports = [js.diagnose(net, x, x[:, :1], key=key, **options) for key in (jr.key(3), jr.PRNGKey(3))]
    one, other = (report.to_xarray() for report in reports)
    assert one["verified_kernel_change"].sizes == {"verified_multiplier": 2}
    xr.testing.assert_equal(one, other)


class Tokens(eqx.Module):
    """A look-up and two layers."""

    table: eqx.nn.Embedding
    low: eqx.nn.Linear
    high: eqx.nn.Linear

    def __call__(self, x):
        return self.high(jnp.tanh(self.low(self.table(x[0]))))


def test_pairs_are_named_as_groups_for_integers_too():
    net = Tokens(eqx.nn.Embedding(5, 4, key=jr.key(0)), *(eqx.nn.Linear(4, 4, key=jr.key(k)) for k in (1, 2)))
    report = js.diagnose_checkpoints([net, net], jnp.arange(5)[:, None], jnp.ones((5, 4)))
    assert report.groups == ("table", "low", "high")
    assert report.pairs == ("low to high",)


def test_layers_of_dictionaries_follow_each_other_as_counted():
    """JAX sorts the keys as texts: Dense_10 before Dense_2."""
    names, _ = adjacent({f"Dense_{k}": {"kernel": jnp.ones((4, 4))} for k in range(12)})
    assert [name.count("Dense_") for name in names] == [2] * 11
    assert [f"Dense_{k}" in name and f"Dense_{k + 1}" in name for k, name in enumerate(names)] == [True] * 11
