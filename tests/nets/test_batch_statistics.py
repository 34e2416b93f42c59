"""Batch normalization of Flax NNX trains by the statistics of its batches, as in a loop that users of Flax write."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from flax import nnx

import jaxsolve as js
from tests.cases import eps


# Libraries of others rely on JAX's usual rules of promotion.
@pytest.fixture(autouse=True)
def usual():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


DTYPE = jnp.result_type(float)
X = jr.normal(jr.key(0), (8, 4, 4, 1), DTYPE)
Y = jnp.stack([jnp.sin(X[:, 0, 0, 0]), X[:, 1, 1, 0] * X[:, 2, 2, 0]], 1)
OTHERS = 2 + jr.normal(jr.key(1), (5, 4, 4, 1), DTYPE)


class Images(nnx.Module):
    """As Flax's own example of MNIST: convolution, batch norm and dropout, whose random numbers come with the call."""

    def __init__(self, rate=0.5):
        like = {"rngs": nnx.Rngs(0), "param_dtype": DTYPE}
        self.conv = nnx.Conv(1, 3, (3, 3), **like)
        self.norm = nnx.BatchNorm(3, **like)
        self.dropout = nnx.Dropout(rate)
        self.hidden = nnx.Linear(48, 5, **like)
        self.second = nnx.BatchNorm(5, **like)
        self.read = nnx.Linear(5, 2, **like)

    def __call__(self, x, rngs=None):
        x = nnx.relu(self.norm(self.conv(x)))
        x = self.dropout(x.reshape(x.shape[0], -1), rngs=rngs)
        return self.read(jnp.tanh(self.second(self.hidden(x))))


class Dense(nnx.Module):
    """Dropout before batch norm, with random numbers of its own."""

    def __init__(self):
        like = {"rngs": nnx.Rngs(0), "param_dtype": DTYPE}
        self.first, self.norm, self.read = nnx.Linear(4, 6, **like), nnx.BatchNorm(6, **like), nnx.Linear(6, 2, **like)
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.read(jnp.tanh(self.norm(self.dropout(self.first(x)))))


def of_flax(model):
    """The model without dropout, for loops by hand; Flax makes its statistics float32 beside any parameters."""
    model.set_attributes(deterministic=True, raise_if_not_found=False)
    for norm in (part for _, part in nnx.iter_graph(model) if isinstance(part, nnx.BatchNorm)):
        norm.mean, norm.var = (nnx.BatchStat(one[...].astype(DTYPE)) for one in (norm.mean, norm.var))
    return model


def loss(f, y):
    return 0.5 * jnp.mean(jnp.sum((f - y) ** 2, axis=1))


def loop(model, batches, rate=0.1, normalized_by=None):
    """The parameters after a step for each batch, in training mode; twins have other statistics."""
    trainer = nnx.Optimizer(model, optax.sgd(rate), wrt=nnx.Param)

    @nnx.jit
    def step(model, trainer, x, y):
        def of_batch(model):
            f = model(x if normalized_by is None else jnp.concatenate([x, normalized_by]))
            return loss(f[: len(x)], y)

        trainer.update(model, nnx.grad(of_batch)(model))

    for chosen in batches:
        step(model, trainer, X[chosen], Y[chosen])
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def in_inference(model, x=X):
    """The model in inference mode, with the statistics of x."""
    model = nnx.clone(model)
    model.set_attributes(nnx.BatchNorm, momentum=0.0)
    model(x)
    model.eval()
    return model


def far(ours, theirs):
    """The largest difference of two trees of parameters."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(jnp.max(jnp.abs(one - other))) for one, other in pairs)


def orders(key, epochs, size):
    """The batches of a descent: its samples in a new order in each epoch."""
    for epoch in range(epochs):
        yield from jr.permutation(jr.fold_in(key, epoch), len(X)).reshape(-1, size)


def test_outputs_and_gradients_are_those_of_the_model():
    net, state = js.nets.from_nnx_with_state(Images())
    problem = js.Problem(net, X, Y, test=(OTHERS, Y[:5]), state=state)
    model = of_flax(Images())
    inference = in_inference(model)
    np.testing.assert_allclose(problem.outputs(problem.params), model(X), rtol=0, atol=eps(15))
    for f in (problem.predict(problem.params, OTHERS), problem.test_outputs(problem.params)):
        np.testing.assert_allclose(f, inference(OTHERS), rtol=0, atol=eps(30))
        assert np.max(np.abs(f - model(OTHERS))) > 0.1  # of these inputs' own statistics
    gradient = nnx.grad(lambda model: loss(model(X), Y))(model)
    assert far(jax.grad(problem.objective)(problem.params), nnx.to_pure_dict(gradient)) < eps(30)


@pytest.mark.parametrize("size", [8, 4])
def test_descent_is_that_of_a_loop(size):
    net, state = js.nets.from_nnx_with_state(Images())
    batches = {} if size == 8 else {"batch_size": size, "key": jr.key(5)}
    descent = js.Descent(optax.sgd(0.1), **batches)
    run = js.solve(js.Problem(net, X, Y, state=state), descent, [0.0, 2.0])
    chosen = [np.arange(8)] * 20 if size == 8 else list(orders(jr.key(5), 10, size))
    assert len(chosen) == 20
    assert far(run.final.params, loop(of_flax(Images()), chosen)) < eps(100)  # measured: 31 and 1
    # Twins: other inputs join the statistics of the batch; and those of the start stay.
    assert far(run.final.params, loop(of_flax(Images()), chosen, normalized_by=OTHERS)) > 1e-2


def test_a_kernel_is_that_of_inference():
    """With the statistics of the data at the parameters of now, which `from_nnx` takes from the model."""
    net, state = js.nets.from_nnx_with_state(Images())
    problem = js.Problem(net, X, Y, state=state)
    item = js.observe.traced(js.observe.kernel_change())
    run = js.solve(problem, js.Descent(optax.sgd(0.1)), [1.0], observe=item)
    kernel = lambda model: js.kernels.empirical(js.nets.from_nnx(model), X, trace=True).ntk
    model, one = of_flax(Images()), lambda model: OfOneSample(in_inference(model))
    start = kernel(one(model))
    loop(model, [np.arange(8)] * 10)
    moved = js.kernels.relative_change(kernel(one(model)), start)
    np.testing.assert_allclose(run[item.name][-1], moved, rtol=eps(20))
    old = OfOneSample(nnx.clone(model))  # by the averages of Flax, which lag behind
    old.eval()
    assert abs(float(js.kernels.relative_change(kernel(old), start) / moved) - 1) > 1e-2


def written_out(p, x, masks: Any = 1, normalized_by: Any = None, held=False):
    """`Dense` by its formula, of which the statistics are those of x or of other inputs."""
    dense = lambda layer, h: h @ layer["kernel"] + layer["bias"]
    h = masks * dense(p["first"], x)
    by = h if normalized_by is None else dense(p["first"], normalized_by)
    mean, var = (jax.lax.stop_gradient(one) if held else one for one in (by.mean(0), by.var(0)))
    h = (h - mean) / jnp.sqrt(var + 1e-5) * p["norm"]["scale"] + p["norm"]["bias"]
    return dense(p["read"], jnp.tanh(h))


def test_statistics_have_a_derivative():
    """For other inputs, too, which are normalized by the statistics of the training set."""
    x, others = (data.reshape(len(data), 16)[:, :4] for data in (X, OTHERS))
    net, state = js.nets.from_nnx_with_state(Dense())
    problem = js.Problem(net, x, Y, state=state)
    params = nnx.to_pure_dict(nnx.state(Dense(), nnx.Param))
    jacobian = lambda f: jax.tree.leaves(jax.jacobian(f)(params))
    flat = lambda f: jnp.concatenate([row.reshape(*row.shape[:2], -1) for row in jacobian(f)], 2)
    rows, columns = flat(lambda p: written_out(p, others, normalized_by=x)), flat(lambda p: written_out(p, x))
    expected = jnp.einsum("nap,mbp->namb", rows, columns)
    found = problem.kernel(problem.params, others, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=eps(10) * float(jnp.max(jnp.abs(expected))))
    held = flat(lambda p: written_out(p, others, normalized_by=x, held=True))
    assert np.max(np.abs(jnp.einsum("nap,mbp->namb", held, columns) - expected)) > 1e-2


class OfOneSample(nnx.Module):
    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return self.model(x[None])[0]


def test_a_monitor_in_a_loop():
    """Its rows are those of a descent with the same steps."""
    x, model = X.reshape(8, 16)[:, :4], of_flax(Dense())
    net, state = js.nets.from_nnx_with_state(Dense())
    problem = js.Problem(net, x, Y, state=state)
    monitor = js.Monitor(problem, every=5)
    trainer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    for step in range(11):
        row = monitor(step, nnx.state(model, nnx.Param))
        if row is not None:
            np.testing.assert_allclose(row["loss"], loss(model(x), Y), rtol=eps(10))
        trainer.update(model, nnx.grad(lambda model: loss(model(x), Y))(model))
    run = js.solve(problem, js.Descent(optax.sgd(0.1)), [0.0, 0.5, 1.0], observe=monitor.observe)
    for item in monitor.observe:
        np.testing.assert_allclose(monitor.history[item.name], run[item.name], rtol=eps(70), atol=eps(5))


# --- dropout


def drops(net, x, state, key):
    return net(x, state, key=key)


def test_steps_with_dropout_are_those_of_a_loop():
    """Of the masks that Flax draws by the same keys, the network is written out."""
    x, key, model = X.reshape(8, 16)[:, :4], jr.key(7), Dense()
    net, state = js.nets.from_nnx_with_state(model)
    descent = js.Descent(optax.sgd(0.1), key=key, noise=drops)
    run = js.solve(js.Problem(net, x, Y, state=state), descent, [0.0, 0.5])

    def mask(key):
        dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))
        nnx.reseed(dropout, default=jr.split(key)[1])
        return dropout(jnp.ones((1, 6), DTYPE))[0]

    of_batch = lambda p, masks: loss(written_out(p, x, masks), Y)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    for step in range(5):
        keys = jr.split(jr.fold_in(jr.split(jr.fold_in(key, step), 4)[3], 0), 8)
        gradient = jax.grad(of_batch)(params, jax.vmap(mask)(keys))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    assert far(run.final.params, params) < eps(5)
    plain = js.solve(js.Problem(net, x, Y, state=state), js.Descent(optax.sgd(0.1)), [0.0, 0.5])
    assert far(plain.final.params, params) > 1e-2


def test_random_numbers_of_a_call():
    net, state = js.nets.from_nnx_with_state(Images())
    leaves, structure = jax.tree.flatten(state)  # Equinox takes each state once
    out = lambda key: eqx.nn.inference_mode(net)(X[0], jax.tree.unflatten(structure, leaves), key=key)[0]
    model = of_flax(Images())
    model.set_attributes(use_running_average=True, deterministic=False, raise_if_not_found=False)
    (of_call,) = jr.split(jr.key(3), 1)
    np.testing.assert_allclose(out(jr.key(3)), model(X[:1], rngs=nnx.Rngs(of_call))[0], rtol=0, atol=eps(2))
    assert np.max(np.abs(out(jr.key(3)) - out(jr.key(4)))) > 1e-3
    model.eval()
    np.testing.assert_allclose(out(None), model(X[:1])[0], rtol=0, atol=eps(2))


@pytest.mark.parametrize("second", [nnx.Rngs(0), nnx.Rngs(dropout=0)], ids=["one name", "two names"])
def test_dropout_without_batch_norm(second):
    """`net(x, key=key)` of `from_nnx`: each layer draws a mask of its own."""
    scale = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0), param_dtype=DTYPE)
    model = nnx.Sequential(scale, nnx.Dropout(0.25, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=second))
    model.eval()
    net, ones = js.nets.from_nnx(model), jnp.ones((4000, 1), DTYPE)
    weight = net(ones[0])[0]
    found = np.asarray(net(ones, key=jr.key(2))[:, 0] / weight)
    np.testing.assert_allclose(np.unique(found), [0, 1 / (0.75 * 0.5)], rtol=eps(5))
    np.testing.assert_allclose(np.mean(found > 0), 0.75 * 0.5, rtol=0, atol=0.03)  # 0.5 of one mask for both
    np.testing.assert_array_equal(found, net(ones, key=jr.key(2))[:, 0] / weight)
    problem = js.Problem(net, ones[:4], ones[:4])
    noise = lambda net, x, key: net(x, key=key)
    run = js.solve(problem, js.Descent(optax.sgd(0.1), key=jr.key(1), noise=noise), [0.0, 0.3])
    assert far(run.final.params, problem.params) > 1e-3


@pytest.mark.slow
def test_a_diagnosis_trains_with_both():
    net, state = js.nets.from_nnx_with_state(Images())
    report = js.diagnose(net, X, Y, optimizer=optax.adam(0.01), steps=5, state=state, noise=drops)
    without = js.diagnose(net, X, Y, optimizer=optax.adam(0.01), steps=5, state=state)
    assert report.history["loss"][0] == without.history["loss"][0]
    assert report.history["loss"][-1] != without.history["loss"][-1]


# --- what is given


def test_averages_that_were_to_stay():
    model = Images()
    model.norm.use_running_average = True
    net, state = js.nets.from_nnx_with_state(model)
    problem = js.Problem(net, X, Y, state=state)
    np.testing.assert_allclose(problem.outputs(problem.params), of_flax(model)(X), rtol=0, atol=eps(10))


def test_the_model_stays_as_it_is():
    model = Images()
    one, _ = js.nets.from_nnx_with_state(model)
    assert type(model.norm) is nnx.BatchNorm
    assert model.dropout.deterministic is False
    # Networks of one model are of one structure, and share their programs.
    other, _ = js.nets.from_nnx_with_state(Images())
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.structure(one) != jax.tree.structure(js.nets.from_nnx_with_state(Images(0.25))[0])


def test_what_has_no_statistics_of_batches():
    model = Images()
    with pytest.raises(ValueError, match=r"in training mode .* batch normalization to js.nets.from_nnx_with_state\("):
        js.nets.from_nnx(model)
    model.eval()
    for given in (model, nnx.Linear(2, 2, rngs=nnx.Rngs(0))):
        with pytest.raises(
            ValueError, match=r"has no nnx.BatchNorm in training mode: .* give js.nets.from_nnx\(model\)"
        ):
            js.nets.from_nnx_with_state(given)
    net, _ = js.nets.from_nnx_with_state(Images())
    with pytest.raises(ValueError, match="this network has state"):
        js.Problem(net, X, Y)
