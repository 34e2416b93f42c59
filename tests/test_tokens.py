"""Networks of tokens: integers in, outputs at positions, labels and masks, against loops by hand in optax."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js

from .cases import eps
from .inside import equations, problems


VOCABULARY, LENGTH = 7, 4


class Sequence(eqx.Module):
    """One layer of causal attention over embedded tokens: a row of outputs at every position."""

    table: jax.Array
    mix: jax.Array
    read: jax.Array

    def __init__(self, key, width=6):
        keys = jr.split(key, 3)
        self.table = jr.normal(keys[0], (VOCABULARY, width))
        self.mix = jr.normal(keys[1], (width, width)) / width**0.5
        self.read = jr.normal(keys[2], (width, VOCABULARY)) / width**0.5

    def __call__(self, tokens):
        h = self.table[tokens]
        seen = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        weights = jax.nn.softmax(jnp.where(seen, h @ self.mix @ h.T, -jnp.inf))
        return jnp.tanh(weights @ h) @ self.read


def sentences(n=6, seed=1):
    """Tokens, and the next ones as labels: the last position has none, the first sample only one."""
    x = jr.randint(jr.key(seed), (n, LENGTH), 0, VOCABULARY)
    return x, jnp.roll(x, -1, axis=1).at[:, -1].set(-1).at[0, 1:].set(-100)


def loss_by_hand(net, x, y):
    each = optax.softmax_cross_entropy_with_integer_labels(jax.vmap(net)(x), jnp.maximum(y, 0))
    return jnp.sum(jnp.where(y >= 0, each, 0)) / jnp.sum(y >= 0).astype(each.dtype)


def problem(**options):
    x, y = sentences()
    return js.Problem(Sequence(jr.key(0)), x, y, loss=js.losses.CrossEntropy(), test=sentences(3, 2), **options)


def test_tokens_and_labels_stay_integers():
    found = problem()
    x, y = sentences()
    assert found.x.dtype == x.dtype
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.y, y)
    assert found.y.size == y.size  # no row of zeros and a one
    assert found.dtype == found.net.table.dtype
    assert found.out_shape == (LENGTH, VOCABULARY)
    assert found.outputs(found.params).shape == (6, LENGTH * VOCABULARY)


def test_the_loss_is_that_of_all_positions_that_count():
    found, (x, y) = problem(), sentences()
    by_hand = float(loss_by_hand(found.net, x, y))
    np.testing.assert_allclose(found.objective(found.params), by_hand, rtol=eps(10))
    test = js.View(found, jnp.zeros(()), found.params)
    np.testing.assert_allclose(js.observe.test_loss()(test), loss_by_hand(found.net, *sentences(3, 2)), rtol=eps(10))
    # The twin counts every sample alike, however few of its positions count.
    each = jax.vmap(lambda x, y: loss_by_hand(found.net, x[None], y[None]))(x, y)
    assert abs(float(jnp.mean(each)) - by_hand) > 1e-2


def test_gradient_and_hessian_in_the_outputs():
    found = problem()
    f = found.outputs(found.params)
    value = lambda f: found.loss.value(f, found.y)
    np.testing.assert_allclose(found.loss.gradient(f, found.y), jax.grad(value)(f), atol=eps(10))
    whole = jax.hessian(value)(f)
    blocks = jnp.stack([whole[i, :, i] for i in range(len(f))])
    np.testing.assert_allclose(found.loss.hessian(f, found.y), blocks, atol=eps(10))
    masked = found.loss.gradient(f, found.y).reshape(6, LENGTH, VOCABULARY)[0, 1:]
    np.testing.assert_array_equal(masked, 0)


def test_probabilities_at_positions_are_as_labels():
    x, y = sentences()
    y = jnp.maximum(y, 0)
    net, loss = Sequence(jr.key(0)), js.losses.CrossEntropy()
    labels, rows = (js.Problem(net, x, t, loss=loss) for t in (y, jax.nn.one_hot(y, VOCABULARY)))
    np.testing.assert_allclose(labels.objective(net), rows.objective(net), rtol=eps(10))
    np.testing.assert_allclose(labels.target_rows, rows.target_rows)


def test_a_loss_of_ones_own_sees_shapes_as_they_are():
    x, y = sentences()
    seen = []

    def own(f, labels):
        seen.append((f.shape, labels.shape, labels.dtype))
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(f, jnp.maximum(labels, 0)))

    found = js.Problem(Sequence(jr.key(0)), x, y, loss=own)
    value = float(found.objective(found.params))
    assert set(seen) == {((LENGTH, VOCABULARY), (LENGTH,), y.dtype)}
    each = optax.softmax_cross_entropy_with_integer_labels(jax.vmap(found.net)(x), jnp.maximum(y, 0))
    np.testing.assert_allclose(value, jnp.mean(jnp.sum(each, axis=1)), rtol=eps(10))


def test_images_meet_targets_of_their_shape():
    x = jr.normal(jr.key(0), (5, 3))
    net = js.nets.Function(lambda w, x: jnp.outer(x, x) * w, jnp.asarray(2.0))
    y = jr.normal(jr.key(1), (5, 3, 3))
    found = js.Problem(net, x, y)
    by_hand = jnp.mean(jnp.sum((jax.vmap(net)(x) - y) ** 2, axis=(1, 2))) / 2
    np.testing.assert_allclose(found.objective(found.params), by_hand, rtol=eps(10))


def test_descent_takes_the_steps_of_a_loop_by_hand():
    found, (x, y) = problem(), sentences()
    optimizer = optax.adam(0.01)
    run = js.solve(found, js.Descent(optimizer, rate=1.0), [0.0, 10.0], observe=[js.observe.accuracy()])
    with jax.numpy_dtype_promotion("standard"):
        params: Any = found.net
        state = optimizer.init(params)
        for _ in range(10):
            updates, state = optimizer.update(jax.grad(loss_by_hand)(params, x, y), state, params)
            params = optax.apply_updates(params, updates)
    for ours, theirs in zip(jax.tree.leaves(run.final.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=eps(2e3))  # Adam divides by the size of a gradient
    right = (jnp.argmax(jax.vmap(params)(x), axis=-1).astype(y.dtype) == y) & (y >= 0)
    np.testing.assert_allclose(run["accuracy"][-1], float(jnp.sum(right) / jnp.sum(y >= 0)), rtol=eps(10))


def test_minibatches_are_those_of_samples():
    found = problem()
    descent = js.Descent(optax.sgd(0.1), batch_size=2, key=jr.key(3))
    run = js.solve(found, descent, [0.0, 0.6], observe=[js.observe.loss()])
    assert run["loss"][-1] < run["loss"][0]


def test_the_flow_falls_as_its_kernel_says():
    """dL/dt = -|grad L|^2: of tokens, too."""
    found = problem()
    run = js.solve(found, js.GradientFlow(), [0.0, 1e-3], observe=[js.observe.loss()])
    gradient = jax.grad(found.objective)(found.params)
    slope = -sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gradient))
    fall = float(run["loss"][1] - run["loss"][0]) / 1e-3
    np.testing.assert_allclose(fall, slope, rtol=0.02)


def test_the_kernel_is_that_of_the_flat_outputs():
    found = problem()
    f = lambda p: jax.vmap(p)(found.x).reshape(6, -1)
    jacobian = jax.tree.leaves(jax.jacrev(f)(found.net))
    whole = sum(jnp.einsum("iax,jbx->iajb", *(leaf.reshape(6, LENGTH * VOCABULARY, -1),) * 2) for leaf in jacobian)
    np.testing.assert_allclose(found.kernel(found.params, found.x), whole, atol=eps(50) * float(jnp.max(whole)))
    traced = js.kernels.empirical(found.net, found.x, trace=True).ntk
    np.testing.assert_allclose(traced, jnp.einsum("iaja->ij", whole), rtol=eps(100))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (jnp.full((6, LENGTH), -1), "all labels are masked"),
        (jnp.full((6, LENGTH), VOCABULARY), r"labels must lie in 0\.\.6, or be negative where masked, got 7"),
        (jnp.zeros(6, int), r"outputs of shape \(4, 7\) needs integer labels \(n, 4\) or probabilities \(n, 4, 7\)"),
        (jnp.zeros((6, LENGTH)), r"needs integer labels \(n, 4\)"),
        (jnp.zeros((6, LENGTH, VOCABULARY)), "rows of probabilities"),
    ],
)
def test_targets_that_do_not_fit_positions(y, said):
    with pytest.raises(ValueError, match=said):
        js.Problem(Sequence(jr.key(0)), sentences()[0], y, loss=js.losses.CrossEntropy())


def test_test_targets_are_of_the_kind_of_training():
    x, y = sentences()
    rows = jax.nn.one_hot(jnp.maximum(y, 0), VOCABULARY)
    with pytest.raises(ValueError, match="must be of the same kind as those of training"):
        js.Problem(Sequence(jr.key(0)), x, y, loss=js.losses.CrossEntropy(), test=(x, rows))


def test_integers_that_a_network_cannot_take_become_floats():
    x = jnp.arange(12).reshape(3, 2, 2)[:, None]
    net = eqx.nn.Sequential([eqx.nn.Conv2d(1, 1, 2, key=jr.key(0)), eqx.nn.Lambda(jnp.ravel)])
    assert js.Problem(net, x, jnp.zeros((3, 1))).x.dtype == jnp.result_type(float)


@pytest.mark.slow
def test_a_diagnosis_and_a_monitor_of_tokens():
    x, y = sentences()
    loss, net = js.losses.CrossEntropy(), Sequence(jr.key(0))
    report = js.diagnose(net, x, y, loss=loss, optimizer=optax.adam(0.01), steps=20, test=sentences(3, 2))
    found = js.Problem(net, x, y, loss=loss)
    np.testing.assert_allclose(report.history["loss"][0], found.objective(found.params), rtol=eps(10))
    assert np.isfinite(report["kernel_change"])
    seen = js.diagnose(net, x, y, loss=loss, optimizer=optax.adam(0.01), steps=20, test=sentences(3, 2), projections=16)
    np.testing.assert_allclose(seen["kernel_change"], report["kernel_change"], rtol=0.2)
    assert any("16 random projections of the 28 outputs" in note for note in seen.notes)
    monitor = js.Monitor(found, every=1)
    row = monitor(0, net)
    assert row is not None
    np.testing.assert_allclose(row["loss"], report.history["loss"][0], rtol=eps(10))
    np.testing.assert_allclose(row["kernel_centered_alignment"], report.history["kernel_alignment"][0], rtol=eps(1e3))


def test_outputs_that_are_too_large_are_made_a_few_at_a_time(monkeypatch):
    """Loss, gradient, and the steps of a descent are those of all at once."""
    x, y = sentences()
    ways = []
    for held in (2**27, 2 * LENGTH * VOCABULARY):
        monkeypatch.setattr(problems, "HELD", held)
        found = js.Problem(Sequence(jr.key(0)), x, y, loss=js.losses.CrossEntropy(), centered=True)
        moved = jax.tree.map(lambda leaf: 1.3 * leaf, found.params)
        value, gradient = jax.jit(jax.value_and_grad(lambda p, found=found: found.objective(p)))(moved)
        run = js.solve(found, js.Descent(optax.sgd(0.1)), [0.0, 0.3], observe=[js.observe.loss()])
        ways.append([value, found.loss_of_zero, *jax.tree.leaves(gradient), run["loss"]])
        assert found.at_once == (held // (LENGTH * VOCABULARY))
    for whole, parts in zip(*ways, strict=True):
        np.testing.assert_allclose(parts, whole, rtol=eps(100), atol=eps(10))


def test_the_loss_of_zero_makes_no_outputs():
    """Zeros for all samples are a constant, through which the compiler would compute, for seconds with GPT-2."""
    found = problem()
    np.testing.assert_allclose(found.loss_of_zero, np.log(VOCABULARY), rtol=eps(10))
    made = lambda f: max(v.aval.size for e in equations(eqx.filter_make_jaxpr(f)(found)[0]) for v in e.outvars)
    assert made(lambda p: p.loss_of_zero) < found.y.size * VOCABULARY
    assert made(lambda p: p.objective(p.params)) >= found.y.size * VOCABULARY


@pytest.mark.slow
def test_a_vocabulary_of_real_size_fits_into_memory():
    """Rows of zeros and ones, or logits of all samples, would be 13 GB; a step holds those of a few."""
    vocabulary, length, n = 50_257, 512, 128
    net = js.nets.Function(
        lambda p, x: p["table"][x] @ p["read"],
        {
            "table": jr.normal(jr.key(0), (vocabulary, 4), jnp.float32),
            "read": jr.normal(jr.key(1), (4, vocabulary), jnp.float32),
        },
    )
    x = jr.randint(jr.key(2), (n, length), 0, vocabulary)
    found = js.Problem(net, x, jnp.roll(x, -1, 1), loss=js.losses.CrossEntropy())
    shape = jax.eval_shape(jax.grad(found.objective), found.params)
    used = jax.jit(jax.grad(found.objective)).lower(found.params).compile().memory_analysis()
    assert jax.tree.structure(shape) == jax.tree.structure(found.params)
    assert used is not None
    assert used.temp_size_in_bytes < 3e9
