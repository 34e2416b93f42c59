"""`js.diagnose` of tokens, truth values, growing losses and schedules that have ended."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


class Embedded(eqx.Module):
    """Tokens, looked up, averaged and read out."""

    table: eqx.nn.Embedding
    read: eqx.nn.Linear

    def __init__(self, key):
        self.table, self.read = eqx.nn.Embedding(5, 4, key=key), eqx.nn.Linear(4, 1, key=jr.fold_in(key, 1))

    def __call__(self, x):
        return self.read(jnp.tanh(jnp.mean(jax.vmap(self.table)(x), axis=0)))


@pytest.mark.slow
def test_tokens_batches_probes_and_both_sides():
    x = jr.randint(jr.key(0), (20, 3), 0, 5)
    y = (x[:, :1] == 2).astype(float)
    report = js.diagnose(
        Embedded(jr.key(1)), x, y, optimizer=optax.adam(0.02), steps=40, batch_size=10, probes=15, verify=True
    )
    assert report.groups == ("table", "read")
    assert any("15 samples, drawn from 20" in note for note in report.notes)
    assert any("batches of 10" in note for note in report.notes)
    below, above = report.by_scale["verified_change"]
    assert below > above
    assert "Trained on both sides" in report.text


def test_a_loss_that_grows_is_unstable():
    """It has not diverged, by a factor of 1e9, when the training ends."""
    x = jr.normal(jr.key(0), (32, 3))
    net = eqx.nn.Linear(3, 1, use_bias=False, key=jr.key(1))
    largest = float(np.linalg.eigvalsh(np.asarray(x.T @ x) / 32)[-1])
    report = js.diagnose(net, x, x[:, :1], optimizer=optax.sgd(2.1 / largest), steps=60)
    assert report.history["loss"][-1] > 10 * report.history["loss"][0]
    assert report.regime.label == "unstable"
    assert report.text.startswith("The loss grows: take a smaller rate.")


@pytest.mark.slow
def test_a_schedule_that_has_come_to_zero_has_no_next_step():
    x = jr.normal(jr.key(0), (12, 3))
    net = eqx.nn.MLP(3, 1, 8, 1, jnp.tanh, key=jr.key(1))
    report = js.diagnose(net, x, x[:, :1], optimizer=optax.sgd(optax.cosine_decay_schedule(0.3, 40)), steps=40)
    assert np.isnan(report["critical_rate"])
    assert np.isnan(report["stability"])
    assert report.findings["stability"].words == "not known: the optimizer's next step is 0"
    assert "The critical rate is not known: the optimizer's next step is 0." in report.text
    assert np.all(np.isfinite(report.history["critical_rate"][:-1]))


def test_truth_values_stay_what_they_are():
    """As integers `~x` would be -1 or -2, which both count as true."""

    class Chooses(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return jnp.sum(jnp.where(~x, self.weight, 0), keepdims=True)

    x, net = jnp.array([[True, False], [False, True], [False, False]]), Chooses(jnp.array([1.0, 3.0]))
    report = js.diagnose(net, x, jnp.zeros((3, 1)), optimizer=optax.sgd(0.01), steps=4)
    np.testing.assert_allclose(report.history["loss"][0], (9 + 1 + 16) / 6, rtol=1e-6)
