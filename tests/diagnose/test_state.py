"""Batch normalization in training, diagnosed: it trains by its batches' statistics, kernels are those of inference."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


class Normalized(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, width=16, key=jr.key(0)):
        one, two = jr.split(key)
        self.first = eqx.nn.Linear(3, width, key=one, dtype=float)
        self.norm = eqx.nn.BatchNorm(width, "batch", mode="ema", dtype=float)
        self.last = eqx.nn.Linear(width, 1, key=two, dtype=float)

    def __call__(self, x, state):
        h, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(h)), state


def made():
    return eqx.nn.make_with_state(Normalized)()


def data(n=24):
    x = jr.normal(jr.key(1), (n, 3), float)
    return x, jnp.sin(x[:, :1] - x[:, 1:2])


def by_hand(net, x):
    """The network with the statistics of x written out, as a function of parameters and one sample."""
    h = jax.vmap(net.first)(x)
    mean, scale = h.mean(0), jnp.sqrt(h.var(0) + net.norm.eps)

    def f(p, sample):
        h = (p.first(sample) - mean) / scale
        return p.last(jnp.tanh(p.norm.weight * h + p.norm.bias))

    return f


def kernel_by_hand(net, x):
    params, static = eqx.partition(net, eqx.is_inexact_array)
    f = by_hand(net, x)
    jacobian = jax.vmap(jax.jacrev(lambda p, s: f(eqx.combine(p, static), s)), (None, 0))(params, x)
    rows = jnp.concatenate([leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(jacobian)], axis=1)
    return rows @ rows.T


def test_the_training_and_its_kernels_are_those_of_a_loop():
    """Ten steps of Adam on batch statistics by hand, and the kernel of the network with its statistics held."""
    (net, state), (x, y), adam = made(), data(), optax.adam(0.01)
    report = js.diagnose(net, x, y, state=state, optimizer=adam, steps=10)
    params, static = eqx.partition(net, eqx.is_inexact_array)

    @jax.jit
    def loss(p):
        f, _ = jax.vmap(eqx.combine(p, static), (0, None), (0, None), axis_name="batch")(x, state)
        return jnp.mean(jnp.sum((f - y) ** 2, 1)) / 2

    now, memory = params, adam.init(params)
    for _ in range(10):
        with jax.numpy_dtype_promotion("standard"):
            updates, memory = adam.update(jax.grad(loss)(now), memory, now)
        now = optax.apply_updates(now, updates)
    np.testing.assert_allclose(report.history["loss"][[0, -1]], [loss(params), loss(now)], rtol=1e-9)
    kernels = [kernel_by_hand(eqx.combine(p, static), x) for p in (params, now)]
    change = js.kernels.relative_change(*kernels[::-1])
    np.testing.assert_allclose(report.findings["kernel_change"].value, change, rtol=1e-8)
    assert any("Kernels are of the network in inference mode" in note for note in report.notes)
    # With the statistics of the start, which training has left, it would be another number.
    held = js.kernels.empirical(js.nets.Function(by_hand(net, x), eqx.combine(now, static)), x).ntk[:, 0, :, 0]
    assert abs(float(js.kernels.relative_change(held, kernels[0])) / float(change) - 1) > 1e-3


def test_saved_networks():
    """Those of a training are diagnosed as the training is, and observed."""
    (net, state), (x, y) = made(), data()
    problem = js.Problem(net, x, y, state=state)
    watched = js.observe.traced(js.observe.kernel_change())
    run = js.solve(problem, js.Descent(optax.sgd(0.1)), [0.5, 1.0], observe=watched)
    report = js.diagnose_checkpoints([net, run.final.net], x, y, state=state)
    wanted = js.kernels.relative_change(kernel_by_hand(run.final.net, x), kernel_by_hand(net, x))
    np.testing.assert_allclose(report.findings["kernel_change"].value, wanted, rtol=1e-8)
    np.testing.assert_allclose(run[watched.name][-1], wanted, rtol=1e-8)


def test_without_its_state_it_is_said():
    (net, state), (x, y) = made(), data()
    with pytest.raises(ValueError, match="give it as state="):
        js.diagnose(net, x, y, steps=2)
    with pytest.raises(ValueError, match="has no state, so Problem needs state=None"):
        js.diagnose(eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0), dtype=float), x, y, state=state, steps=2)


@pytest.mark.parametrize("probes", [8, None])
def test_what_is_centered_starts_at_zero(probes):
    """Outputs depend on the batch that they are made in, and so does what is subtracted from them."""
    (net, state), (x, y) = made(), data()
    options = {"state": state, "centered": True, "optimizer": optax.sgd(0.05), "steps": 3, "verify": True}
    report = js.diagnose(net, x, 1 + 0 * y, test=(x[:5], 2 + 0 * y[:5]), probes=probes, batch_size=12, **options)
    assert report.history["loss"][0] == pytest.approx(0.5, rel=1e-12)
    assert report.history["test_loss"][0] == pytest.approx(2.0, rel=1e-12)
    assert "linear_test_loss" not in report.history


def test_the_residual_lies_where_the_kernel_says():
    """r^T K r/(|r|^2 lambda_1) with the kernel in inference mode, written out."""
    (net, state), (x, y) = made(), data()
    problem = js.Problem(net, x, y + 3, state=state)
    run = js.solve(problem, js.Descent(optax.sgd(0.1)), [0.5], observe=js.observe.residual_position())
    r, kernel = problem.outputs(run.final.params) - y - 3, kernel_by_hand(run.final.net, x)
    wanted = (r.T @ kernel @ r)[0, 0] / jnp.sum(r**2) / jnp.linalg.eigvalsh(kernel)[-1]
    np.testing.assert_allclose(run["residual_position"][-1], wanted, rtol=1e-6)


def test_tokens_with_a_state():
    class Looked(eqx.Module):
        table: eqx.nn.Embedding
        norm: eqx.nn.BatchNorm
        last: eqx.nn.Linear

        def __init__(self):
            self.table = eqx.nn.Embedding(5, 4, key=jr.key(0), dtype=float)
            self.norm = eqx.nn.BatchNorm(4, "batch", mode="ema", dtype=float)
            self.last = eqx.nn.Linear(4, 1, key=jr.key(1), dtype=float)

        def __call__(self, ids, state):
            h, state = self.norm(jax.vmap(self.table)(ids).mean(0), state)
            return self.last(h), state

    net, state = eqx.nn.make_with_state(Looked)()
    ids = jr.randint(jr.key(2), (8, 3), 0, 5)
    problem = js.Problem(net, ids, ids[:, :1].astype(float), state=state)
    assert problem.x.dtype == ids.dtype
    (net, state), (x, y) = made(), data()
    with pytest.raises(ValueError, match="net is called as net"):
        js.Problem(net, x[:, :2], y, state=state)
