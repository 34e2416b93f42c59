"""What `js.diagnose` says before training, where the start or the optimizer has something that is 0 or below."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import X64


N = 12
LOOSE = 1e-6 if X64 else 2e-3


def _data():
    x = jr.normal(jr.key(0), (N, 3))
    return x, x[:, :1] * x[:, 1:2]


def _warmed_up(optimizer, steps=20):
    net = eqx.nn.MLP(3, 1, 8, 1, jnp.tanh, key=jr.key(1))
    return js.diagnose(net, *_data(), optimizer=optimizer, steps=steps)


@pytest.mark.slow
def test_a_schedule_that_warms_up_from_zero_is_seen_later():
    """Its first update is 0, which says nothing of the optimizer."""
    plain, warm = _warmed_up(optax.sgd(0.3)), _warmed_up(optax.sgd(optax.linear_schedule(0.0, 0.3, 10)))
    np.testing.assert_allclose(warm["chizat_ratio"], plain["chizat_ratio"], rtol=LOOSE)
    assert not any("kinks" in note for note in warm.notes)
    factor = warm["crossover_multiplier"] ** 2  # multiplier^(1 + p) with p = 1
    assert f"the rate by {factor if factor >= 1 else 1 / factor:.2g}:" in warm.text
    injected = _warmed_up(optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.0, 0.3, 10)), steps=1)
    np.testing.assert_allclose(injected["chizat_ratio"], plain["chizat_ratio"], rtol=LOOSE)


def test_an_optimizer_that_does_not_step_says_so():
    report = _warmed_up(optax.sgd(0.0), steps=1)
    assert np.isnan(report["chizat_ratio"])
    assert any("the optimizer's first steps are zero" in note for note in report.notes)
    assert not any("kinks" in note for note in report.notes)


class Square(eqx.Module):
    """f(x) = w^2 x/2, with the kernel w^2 x x'."""

    w: jax.Array

    def __call__(self, x):
        return self.w**2 / 2 * x


@pytest.mark.parametrize("multiplier", [5000.0, 200.0, 0.005, 0.0002])
def test_a_crossover_near_the_ends_of_what_is_tried(multiplier):
    """(1 + s)^2 - 1 is the limit of the kernel's change at s, which is the displacement over the multiplier."""
    x = jr.normal(jr.key(0), (N, 1))
    s = np.sqrt(1 + js.observe.KERNEL_REGIME_LIMIT) - 1
    start, end = Square(jnp.ones(1)), Square(jnp.ones(1) + multiplier * s)
    report = js.diagnose_checkpoints([start, end], x, jax.vmap(end)(x))
    np.testing.assert_allclose(report["crossover_multiplier"], multiplier, rtol=0.1)  # bisection ends there


@pytest.mark.parametrize(("step", "expected"), [(1e3, np.inf), (1e-6, 0.0)])
def test_no_crossover_within_what_is_tried(step, expected):
    x = jr.normal(jr.key(0), (N, 1))
    start, end = Square(jnp.ones(1)), Square(jnp.ones(1) + step)
    report = js.diagnose_checkpoints([start, end], x, jax.vmap(end)(x))
    assert report["crossover_multiplier"] == expected


class Lowered(js.losses.AbstractLoss):
    """MSE less a number."""

    by: jax.Array

    def pointwise(self, f, y):
        return jnp.sum((f - y) ** 2) / 2 - self.by

    def targets(self, y, out_size):
        return jnp.reshape(y, (-1, out_size))


@pytest.mark.slow
def test_chizats_ratio_of_a_loss_below_zero():
    """By the size of the loss: less twice itself it has the same."""
    net, (x, y) = eqx.nn.MLP(3, 1, 8, 1, jnp.tanh, key=jr.key(1)), _data()
    start = js.losses.MSE().value(jax.vmap(net)(x), y)
    run = lambda by: js.diagnose(net, x, y, loss=Lowered(by), optimizer=optax.adam(0.01), steps=1)["chizat_ratio"]
    np.testing.assert_allclose(run(2 * start), run(0 * start), rtol=LOOSE)
    assert run(2 * start) > 0


def test_nothing_to_learn_is_no_progress():
    net, x = Square(jnp.ones(1)), jnp.arange(1.0, 5.0)[:, None]
    report = js.diagnose(net, x, x / 2, optimizer=optax.sgd(0.1), steps=2)
    assert report["progress"] == 0
    assert report.regime is js.observe.Regime.FROZEN
    assert "100%" not in report.text
    assert any("has made no progress" in note for note in report.notes)
    assert any("the loss has no gradient at the start" in note for note in report.notes)
    saved = js.diagnose_checkpoints([net, net], x, x / 2)
    assert saved.regime is js.observe.Regime.FROZEN


def test_rounding_is_nothing_to_learn():
    """Adam makes steps of it all the same, and the loss grows; a tenth of a percent is something."""
    net, x = eqx.nn.MLP(3, 1, 8, 1, jnp.tanh, key=jr.key(1)), jr.normal(jr.key(0), (12, 3))
    f = jax.jit(jax.vmap(net))(x)
    run = lambda y: js.diagnose(net, x, y, optimizer=optax.adam(1e-3), steps=20)
    found = run(f * (1 + 2 * jnp.finfo(f.dtype).eps))
    assert found.regime is js.observe.Regime.FROZEN
    assert "nothing to learn" in found.text
    assert "loss grows" not in found.text
    assert "nothing to learn" not in run(1.001 * f).text


def test_linearized_training_is_measured_on_the_same_samples():
    """A linear network is its own linearization: both losses are one, on the samples that are looked at."""
    x = jr.normal(jr.key(0), (400, 4))
    y = x[:, :1] + jr.normal(jr.key(1), (400, 1))
    net = eqx.nn.Linear(4, 1, use_bias=False, key=jr.key(2))
    history = js.diagnose(net, x, y, optimizer=optax.sgd(0.05), steps=20, probes=20).history
    np.testing.assert_allclose(history["linear_loss"][-1], history["loss"][-1], rtol=1e-9 if X64 else 1e-4)


def test_a_network_of_mup():
    """Its scaling asks what kind of steps the optimizer makes: with arrays of its own, which are no parameters."""
    net = js.nets.MLP(
        in_size=3, out_size=1, width_size=8, depth=1, activation="tanh", scaling=js.nets.Scaling.mup(), key=jr.key(1)
    )
    assert np.isfinite(js.diagnose(net, *_data(), optimizer=optax.sgd(0.05), steps=5)["crossover_multiplier"])
    with pytest.raises(ValueError, match="scaling is mup for"):
        js.diagnose(net, *_data(), optimizer=optax.adam(1e-2), steps=5)


@pytest.mark.parametrize(("noise", "regime"), [(0.0, "KERNEL"), (0.05, "KERNEL"), (0.5, "KERNEL")])
def test_noise_that_no_network_fits_is_no_training_to_come(noise, regime):
    """The second network is at the minimum: the kernel has moved by 0.04, and will not move on."""
    nets, target = [Square(jnp.ones(1)), Square(jnp.sqrt(1.04) * jnp.ones(1))], 0.52
    y = jnp.array([[target + noise], [target - noise]])
    report = js.diagnose_checkpoints(nets, jnp.ones((2, 1)), y)
    assert report.regime.name == regime
    np.testing.assert_allclose(report["expected_kernel_change"], 0.04, rtol=1e-4)
    assert ("all of the loss's gradient that the parameters see" in report.text) == (report["progress"] == 1)
    early = js.diagnose_checkpoints([nets[0], Square(jnp.sqrt(1.02) * jnp.ones(1))], jnp.ones((2, 1)), y)
    assert early["progress"] < 1  # it has still half of the way to go
