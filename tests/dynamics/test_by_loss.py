"""Optimizers whose steps depend on the loss, which optax calls `value`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


def problem():
    x = jr.normal(jr.key(1), (12, 3), float)
    net = eqx.nn.MLP(3, 1, 8, 1, activation=jnp.tanh, key=jr.key(0), dtype=float)
    return js.Problem(net, x, jnp.sin(x[:, :1]))


CHAINS = {
    "polyak_sgd": optax.polyak_sgd(0.5),
    "momo": optax.contrib.momo(0.1),
    "momo_adam": optax.contrib.momo_adam(0.05),
    # After two losses that are no better than the best by half it takes a third of the step.
    "reduce_on_plateau": optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(1 / 3, 2, rtol=0.5)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_steps_are_those_of_a_loop(name):
    optimizer, p = CHAINS[name], problem()
    run = js.solve(p, js.Descent(optimizer, rate=1.0), [7.0], observe=js.observe.loss())
    params, state = p.params, optimizer.init(p.params)
    step = jax.jit(jax.value_and_grad(p.objective))
    for _ in range(7):
        value, slope = step(params)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(slope, state, params, value=value)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(run["loss"][-1], p.objective(params), rtol=1e-9)
    if name == "reduce_on_plateau":
        plain = js.solve(p, js.Descent(optax.sgd(0.1), rate=1.0), [7.0], observe=js.observe.loss())
        assert abs(float(plain["loss"][-1] / run["loss"][-1]) - 1) > 1e-3


def test_it_is_seen_behind_a_mask_that_is_a_tree():
    p = problem()
    mask = jax.tree.map(lambda leaf: leaf.ndim > 1, p.params)
    optimizer = optax.chain(optax.adamw(1e-2, mask=mask), optax.contrib.reduce_on_plateau(0.5, 2))
    assert np.isfinite(js.solve(p, js.Descent(optimizer, rate=1.0), [3.0])["loss"][-1])


@pytest.mark.parametrize("name", CHAINS)
def test_its_rate_is_asked_for(name):
    with pytest.raises(ValueError, match="whose steps depend on the loss: give rate="):
        js.solve(problem(), js.Descent(CHAINS[name]), [1.0])


def test_it_is_diagnosed():
    p = problem()
    report = js.diagnose(p.net, p.x, p.y, optimizer=optax.polyak_sgd(1e6), steps=3)
    assert np.isfinite([report.findings[name].value for name in ("kernel_change", "critical_rate")]).all()
    assert report.history["loss"][-1] < report.history["loss"][0]


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (optax.lbfgs(0.1), "call the loss function \\(line searches"),
        (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05), opaque_mode=True), "SAM in its opaque mode"),
    ],
    ids=["lbfgs", "sam"],
)
def test_what_calls_the_loss_is_refused(optimizer, said):
    for verb in (js.Descent, lambda o: js.diagnose(problem().net, problem().x, problem().y, optimizer=o, steps=2)):
        with pytest.raises(TypeError, match=said):
            verb(optimizer)


def test_sam_by_two_gradients_is_one_of_gradients():
    run = js.solve(problem(), js.Descent(optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05)), rate=0.1), [1.0])
    assert np.isfinite(run["loss"][-1])
