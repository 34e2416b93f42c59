"""Groups of parameters, pairs of layers, and the switches of units in a diagnosis."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import xarray as xr

import jaxsolve as js
from tests import cases


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


class Folded(eqx.Module):
    """A convolution, a residual one, and a read-out."""

    stem: eqx.nn.Conv2d
    branch: eqx.nn.Conv2d
    out: eqx.nn.Linear

    def __call__(self, x):
        z = self.stem(x)
        z = z + self.branch(jax.nn.relu(z))
        return self.out(jnp.mean(jax.nn.leaky_relu(z), axis=(1, 2)))


def _folded(key):
    k = jr.split(key, 3)
    stem, branch = eqx.nn.Conv2d(1, 4, 3, padding=1, key=k[0]), eqx.nn.Conv2d(4, 4, 1, key=k[1])
    return Folded(stem, branch, eqx.nn.Linear(4, 1, key=k[2]))


def test_layers_of_convolutions_and_switched_units():
    """By the observables of a run, whose own tests have them by hand; the share is of all units and samples."""
    x, y = jr.normal(jr.key(0), (12, 1, 4, 4)), jnp.ones((12, 1))
    start, end = _folded(jr.key(1)), _folded(jr.key(2))
    report = js.diagnose_checkpoints([start, end], x, y)
    assert report.pairs == ("stem to branch", "stem to out", "branch to out")
    problem = js.Problem(start, x, y)
    view = js.View(problem, jnp.zeros(()), js.Problem(end, x, y).params)
    zeta = np.asarray(js.observe.layer_alignment()(view))
    np.testing.assert_allclose(report.by_pair["alignment"], zeta, rtol=cases.eps(20))
    np.testing.assert_allclose(report["layer_alignment"], np.mean(zeta), rtol=cases.eps(20))
    switched = float(js.observe.hamming_distance()(view))
    np.testing.assert_allclose(report["switched_units"], switched / 128, rtol=cases.eps(20))
    cases.assert_fails(lambda: np.testing.assert_allclose(report["switched_units"], switched / 64, rtol=1e-3))
    assert "on average of 3 pairs" in report.findings["layer_alignment"].words


def test_of_smooth_networks_without_layers_neither_is_known():
    smooth = eqx.nn.MLP(2, 1, 4, 1, jnp.tanh, key=jr.key(0))
    report = js.diagnose_checkpoints([smooth, jax.tree.map(_halved, smooth)], jnp.eye(2), jnp.ones((2, 1)))
    assert np.isnan(report["switched_units"])
    assert report.findings["switched_units"].words == "not known: no relu or other unit with a kink was found"
    scale = js.nets.Function(lambda w, x: w * x, jnp.ones(2))
    report = js.diagnose_checkpoints([scale, jax.tree.map(_halved, scale)], jnp.eye(2), jnp.ones((2, 2)))
    assert report.pairs == ()
    assert report.findings["layer_alignment"].words.startswith("not known: no two successive layers")


def _halved(leaf):
    return leaf / 2 if eqx.is_array(leaf) else leaf
