"""Descent by networks that draw at random, such as by dropout, against a loop by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js

from ..cases import eps


X = jr.normal(jr.key(0), (6, 3))
Y = jnp.sin(X[:, :2])
NET = eqx.nn.inference_mode(
    eqx.nn.Sequential(
        [
            eqx.nn.Linear(3, 8, key=jr.key(1)),
            eqx.nn.Lambda(jnp.tanh),
            eqx.nn.Dropout(0.5),
            eqx.nn.Linear(8, 2, key=jr.key(2)),
        ]
    )
)


def drops(net, x, key):
    return eqx.nn.inference_mode(net, False)(x, key=key)


def by_hand(key, steps, rate, noise):
    """The keys of a step: of its epoch, the fourth part, of its batch, and one for each sample."""
    params, rest = eqx.partition(NET, eqx.is_inexact_array)

    def loss(params, keys):
        f = jax.vmap(lambda x, key: noise(eqx.combine(params, rest), x, key))(X, keys)
        return 0.5 * jnp.mean(jnp.sum((f - Y) ** 2, axis=1))

    for step in range(steps):
        keys = jr.split(jr.fold_in(jr.split(jr.fold_in(key, step), 4)[3], 0), len(X))
        gradient = jax.grad(loss)(params, keys)
        params = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
    return jax.tree.leaves(params)


def test_steps_are_those_of_a_loop_with_dropout():
    problem = js.Problem(NET, X, Y)
    run = js.solve(problem, js.Descent(optax.sgd(0.1), key=jr.key(7), noise=drops), [0.0, 0.5])
    ours = jax.tree.leaves(run.final.params)
    for one, other in zip(ours, by_hand(jr.key(7), 5, 0.1, drops), strict=True):
        np.testing.assert_allclose(one, other, atol=eps(100))
    # The twin trains without.
    still = by_hand(jr.key(7), 5, 0.1, lambda net, x, key: net(x))
    assert max(float(jnp.max(jnp.abs(one - other))) for one, other in zip(ours, still, strict=True)) > 1e-2


def test_losses_are_those_of_the_network_in_inference_mode():
    problem = js.Problem(NET, X, Y)
    descent = js.Descent(optax.sgd(0.1), key=jr.key(7), noise=drops)
    run = js.solve(problem, descent, [0.0, 0.5], observe=[js.observe.loss()])
    np.testing.assert_allclose(run["loss"][-1], problem.objective(run.final.params), rtol=eps(10))


def test_of_many_steps_the_average_step_is_that_of_the_average_loss():
    """One step each, of many keys: dropout with a share that is 0 is no noise at all."""
    problem = js.Problem(NET, X, Y)
    plain = js.solve(problem, js.Descent(optax.sgd(0.1)), [0.0, 0.1]).final.params
    nothing = lambda net, x, key: net(x)
    same = js.solve(problem, js.Descent(optax.sgd(0.1), key=jr.key(0), noise=nothing), [0.0, 0.1]).final.params
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=eps(10))


def test_batches_and_centered_problems_take_it():
    problem = js.Problem(NET, X, Y, centered=True)
    descent = js.Descent(optax.adam(0.01), batch_size=2, key=jr.key(3), noise=drops)
    run = js.solve(problem, descent, [0.0, 0.3], observe=[js.observe.loss()])
    assert run["loss"][-1] < run["loss"][0]


class Normalized(eqx.Module):
    """Dropout and batch normalization."""

    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self):
        self.first, self.last = eqx.nn.Linear(3, 8, key=jr.key(1)), eqx.nn.Linear(8, 2, key=jr.key(2))
        self.norm = eqx.nn.BatchNorm(8, "batch", mode="ema", dtype=X.dtype)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, key=None):
        h, state = self.norm(self.dropout(self.first(x), key=key), state)
        return self.last(jnp.tanh(h)), state


def test_a_network_with_state_takes_it():
    """Against a loop over batches, as users write it; losses are those without dropout."""
    net, state = eqx.nn.make_with_state(Normalized)()
    noise = lambda net, x, state, key: eqx.nn.inference_mode(net, False)(x, state, key=key)
    problem = js.Problem(net, X, Y, state=state)
    descent = js.Descent(optax.sgd(0.1), key=jr.key(7), noise=noise)
    run = js.solve(problem, descent, [0.0, 0.5], observe=js.observe.loss())
    params, rest = eqx.partition(net, eqx.is_inexact_array)

    def loss(params, keys, net=rest):
        net = eqx.combine(params, net)
        f, _ = jax.vmap(net, (0, None, 0), (0, None), axis_name="batch")(X, state, keys)
        return 0.5 * jnp.mean(jnp.sum((f - Y) ** 2, axis=1))

    drawn = [jr.split(jr.fold_in(jr.split(jr.fold_in(jr.key(7), step), 4)[3], 0), len(X)) for step in range(5)]
    for keys in drawn:
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, keys))
    for one, other in zip(jax.tree.leaves(run.final.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=eps(5))
    still = eqx.tree_at(lambda net: net.dropout.inference, rest, True)
    np.testing.assert_allclose(run["loss"][-1], loss(params, drawn[0], still), rtol=eps(8))
    assert abs(loss(params, drawn[0]) / run["loss"][-1] - 1) > 1e-2  # the twin, with dropout
    short = js.Descent(optax.sgd(0.1), key=jr.key(0), noise=lambda net, x, key: x)
    with pytest.raises(ValueError, match=r"noise is called as noise\(net, x, state, key\) and returns \(out, state\)"):
        js.solve(problem, short, [0.0, 0.1])


@pytest.mark.usefixtures("as_users")
def test_bad_noise_is_named():
    problem = js.Problem(NET, X, Y)
    with pytest.raises(ValueError, match="noise draws at random: give key= too"):
        js.Descent(optax.sgd(0.1), noise=drops)
    with pytest.raises(TypeError, match="noise must be a function of a network, one sample and a key, got float 0.5"):
        js.Descent(optax.sgd(0.1), key=jr.key(0), noise=0.5)  # pyright: ignore
    with pytest.raises(ValueError, match=r"noise must return the network's output .*, of shape \(2,\), got"):
        js.solve(problem, js.Descent(optax.sgd(0.1), key=jr.key(0), noise=lambda net, x, key: x), [0.0, 0.1])
    with pytest.raises(ValueError, match=r"noise is called as noise\(net, x, key\) .* it fails"):
        js.solve(problem, js.Descent(optax.sgd(0.1), key=jr.key(0), noise=lambda net, x: x), [0.0, 0.1])
    with pytest.raises(ValueError, match="leave out augmentation and noise"):
        js.FrozenKernel(flow=js.Descent(optax.sgd(0.1), key=jr.key(0), noise=drops))


@pytest.mark.slow
def test_a_diagnosis_trains_with_it():
    report = js.diagnose(NET, X, Y, optimizer=optax.adam(0.01), steps=20, noise=drops)
    assert any("trained with noise" in note for note in report.notes)
    without = js.diagnose(NET, X, Y, optimizer=optax.adam(0.01), steps=20)
    assert report.history["loss"][0] == without.history["loss"][0]
    assert report.history["loss"][-1] != without.history["loss"][-1]
