"""PyTorch modules as they train: batch normalization and dropout, beside PyTorch's own steps.

They need PyTorch, which few tests do: `.ci/run torch` installs it beside.
"""

import copy
import doctest
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import jaxsolve as js
from jaxsolve import nets
from tests.docstrings import FLAGS
from tests.test_readme import FENCE, ROOT


# Warnings are theirs, not ours.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RATE, MOMENTUM = 0.03, 0.1  # of a step, and of running averages


@pytest.fixture
def torch(getkey):
    module = pytest.importorskip("torch")
    module.manual_seed(int(jr.randint(getkey(), (), 0, 2**31 - 1)))
    module.set_num_threads(1)
    return module


def array(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy().copy()


def _dense(torch):
    nn = torch.nn
    layers = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(6, 2)), (5,), 1


def _images(torch):
    nn = torch.nn
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(12, 2)), (1, 6, 6), 16


def _sequences(torch):
    nn = torch.nn
    return nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4, affine=False), nn.Flatten(), nn.Linear(16, 2)), (3, 5), 4


def loop(torch, module, x, y, batches, training=True):
    """Plain SGD in PyTorch, which changes the module; the losses of the batches before each step."""
    optimizer, found = torch.optim.SGD(module.parameters(), lr=RATE), []
    module.train(training)
    for chosen in batches:
        chosen = torch.as_tensor(np.array(chosen))
        loss = 0.5 * ((module(x[chosen]) - y[chosen]) ** 2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def orders(key, epochs, size):
    """The batches of a descent: its samples in a new order in each epoch."""
    for epoch in range(epochs):
        yield from jr.permutation(jr.fold_in(key, epoch), 8).reshape(-1, size)


def far(ours, module):
    """The largest difference of the parameters."""
    theirs = jax.tree.leaves(nets.torch_params(module))
    pairs = zip(jax.tree.leaves(ours), theirs, strict=True)
    return max(float(jnp.max(jnp.abs(one - other))) for one, other in pairs)


def averages_of(module):
    return {name: array(held) for name, held in module.named_buffers() if "running" in name}


def data(torch, shape, dtype="float32"):
    dtype = getattr(torch, dtype)
    return 1 + 2 * torch.randn(8, *shape, dtype=dtype), torch.randn(8, 2, dtype=dtype)


@eqx.filter_jit
def passed(net, leaves, structure, x):
    """Outputs and statistics of a batch; Equinox takes each state once."""
    state = jax.tree.unflatten(structure, leaves)
    out, state = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
    return out, state.get(net.statistics)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), pytest.param("float64", 1e-12, marks=pytest.mark.x64_only)]
)
@pytest.mark.parametrize("size", [8, 4])
@pytest.mark.parametrize("make", [_dense, _images, _sequences])
def test_descent_is_that_of_pytorch(torch, make, size, dtype, tolerance):
    """Losses before each step, parameters after the last, and what PyTorch's running averages become on the way."""
    module, shape, positions = make(torch)
    module = module.to(getattr(torch, dtype))
    tensors = data(torch, shape, dtype)
    x, y = (jnp.asarray(array(tensor)) for tensor in tensors)
    frozen, averages = copy.deepcopy(module), averages_of(module)
    net, state = nets.from_torch_with_state(module, tensors[0][0])
    options = {} if size == 8 else {"batch_size": size, "key": jr.key(5)}
    chosen = [np.arange(8)] * 20 if size == 8 else list(orders(jr.key(5), 10, size))
    problem = js.Problem(net, x, y, state=state)
    ts = jnp.arange(21, dtype=x.dtype) * RATE
    run = js.solve(problem, js.Descent(optax.sgd(RATE), **options), ts, observe=js.observe.parameters())
    expected = loop(torch, module, *tensors, chosen)

    losses, statistics, unbiased = [], {}, size * positions / (size * positions - 1)  # as PyTorch keeps the variance
    _, unravel = ravel_pytree(problem.params)
    for batch, flat in zip(chosen, run["parameters"][:-1], strict=True):
        out, statistics = passed(problem.network(unravel(flat)), *jax.tree.flatten(state), x[batch])
        losses.append(0.5 * jnp.mean(jnp.sum((out - y[batch]) ** 2, 1)))
        for name, value in statistics.items():
            value = value * unbiased if name.endswith("var") else value
            averages[name] = (1 - MOMENTUM) * averages[name] + MOMENTUM * value
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    assert far(run.final.params, module) < tolerance
    assert averages.keys() == statistics.keys()
    for name, theirs in averages_of(module).items():
        np.testing.assert_allclose(averages[name], theirs, rtol=tolerance, atol=tolerance)
    # The twin: by the averages of the start, as `from_torch` has them.
    loop(torch, frozen, *tensors, chosen, training=False)
    assert far(run.final.params, frozen) > 1e-2


def test_other_inputs_and_kernels_are_those_of_inference(torch):
    """By the statistics of the whole training set at the parameters of now, which `from_torch` has with momentum 1."""
    module, shape, _ = _images(torch)
    tensors = data(torch, shape)
    x, y = (jnp.asarray(array(tensor)) for tensor in tensors)
    others = torch.randn(5, *shape)
    net, state = nets.from_torch_with_state(module, tensors[0][0])
    problem = js.Problem(net, x, y, state=state)
    found = problem.predict(problem.params, jnp.asarray(array(others)))
    kernel = js.kernels.empirical(problem.of_sample(problem.params, problem.eta)[0], x).ntk
    norm, start = module[1], nets.from_torch(module, tensors[0][0])
    norm.momentum = 1.0
    module(tensors[0])  # of 128 positions the unbiased variance is 1/127 more
    norm.running_var *= 127 / 128
    expected = nets.from_torch(module, tensors[0][0])
    np.testing.assert_allclose(found, array(module.eval()(others)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kernel, js.kernels.empirical(expected, x).ntk, rtol=1e-5, atol=1e-5)
    assert np.max(np.abs(kernel - js.kernels.empirical(start, x).ntk)) > 0.1


def test_layers_that_keep_their_averages(torch):
    module, shape, _ = _dense(torch)
    x, frozen = data(torch, shape)[0], module[1].eval()
    frozen.running_mean += 1
    net, state = nets.from_torch_with_state(module, x[0])
    assert state.get(net.statistics).keys() == {"4.running_mean", "4.running_var"}
    out, _ = passed(net, *jax.tree.flatten(state), jnp.asarray(array(x)))
    np.testing.assert_allclose(out, array(module(x)), rtol=1e-5, atol=1e-6)
    assert np.max(np.abs(out - array(module.train()(x)))) > 1e-2
    assert module[4].training  # as it was


def test_networks_of_a_module_share_their_programs(torch):
    """Whatever its parameters and averages are, and however many batches it has counted."""
    module, shape, _ = _dense(torch)
    x, y = data(torch, shape)
    structure = lambda: jax.tree.structure(nets.from_torch_with_state(module, x[0])[0])
    before = structure()
    loop(torch, module, x, y, [np.arange(8)])
    assert structure() == before
    module[1].eval()  # its averages stand in the program
    assert structure() != before


def test_a_monitor_in_a_loop_of_pytorch(torch):
    """Its rows are those of a descent with the same steps."""
    module, shape, _ = _dense(torch)
    tensors = data(torch, shape)
    net, state = nets.from_torch_with_state(module, tensors[0][0])
    problem = js.Problem(net, *(jnp.asarray(array(tensor)) for tensor in tensors), state=state)
    monitor, losses = js.Monitor(problem, every=5), []
    for step in range(11):
        monitor(step, nets.torch_params(module))
        losses += loop(torch, module, *tensors, [np.arange(8)])
    np.testing.assert_allclose(monitor.history["loss"], losses[::5], rtol=1e-5)
    run = js.solve(problem, js.Descent(optax.sgd(RATE)), [0.0, 5 * RATE, 10 * RATE], observe=monitor.observe)
    np.testing.assert_allclose(monitor.history["kernel_change"], run["kernel_change"], rtol=1e-4, atol=1e-6)
    assert run["kernel_change"][-1] > 1e-2


# --- dropout


class _Masks:
    """Dropout of PyTorch that takes its masks from JAX: those that a network of dropout alone draws of ones."""

    def __init__(self, torch, size):
        self.net = nets.from_torch(torch.nn.Dropout(0.5), torch.ones(size), dropout=True)
        self.ones, self.keys = jnp.ones(size, jnp.float32), jr.split(jr.key(0), 8)

    def __call__(self, x, p=0.5, training=True, inplace=False):
        masks = jax.vmap(lambda key: self.net(self.ones, key=key))(self.keys)
        return x * type(x)(np.array(masks)) if training else x


@pytest.mark.parametrize("by_batch", [True, False])
def test_steps_with_dropout_are_those_of_pytorch(torch, monkeypatch, by_batch):
    nn, key = torch.nn, jr.key(7)
    norm = nn.BatchNorm1d(6) if by_batch else nn.LayerNorm(6)
    module = nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 2))
    tensors = data(torch, (5,))
    x, y = (jnp.asarray(array(tensor)) for tensor in tensors)
    if by_batch:
        net, state = nets.from_torch_with_state(module, tensors[0][0], dropout=True)
        noise = lambda net, x, state, key: net(x, state, key=key)
    else:
        net, state = nets.from_torch(module, tensors[0][0], dropout=True), None
        noise = lambda net, x, key: net(x, key=key)
    problem = js.Problem(net, x, y, state=state)
    plain = js.solve(problem, js.Descent(optax.sgd(RATE)), [5 * RATE])
    run = js.solve(problem, js.Descent(optax.sgd(RATE), key=key, noise=noise), [5 * RATE])
    masks = _Masks(torch, 6)
    monkeypatch.setattr(nn.functional, "dropout", masks)
    for step in range(5):
        masks.keys = jr.split(jr.fold_in(jr.split(jr.fold_in(key, step), 4)[3], 0), 8)
        loop(torch, module, *tensors, [np.arange(8)])
    assert far(run.final.params, module) < 2e-6
    assert far(plain.final.params, module) > 1e-2


def test_dropout_draws_as_often_as_it_should(torch):
    """Each layer a mask of its own, none without a key, all at rate 1; attention and functions draw, too."""
    nn, ones = torch.nn, torch.ones(4000)
    net = nets.from_torch(nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.5)), ones, dropout=True)
    x = jnp.asarray(array(ones))
    found = np.asarray(net(x, key=jr.key(2)))
    np.testing.assert_allclose(np.unique(found), [0, 1 / (0.75 * 0.5)], rtol=1e-6)
    np.testing.assert_allclose(np.mean(found > 0), 0.75 * 0.5, rtol=0, atol=0.03)  # 0.5 of one mask for both
    np.testing.assert_array_equal(found, net(x, key=jr.key(2)))
    assert np.any(found != net(x, key=jr.key(3)))
    np.testing.assert_array_equal(net(x), x)
    nothing = nets.from_torch(nn.Dropout(1.0), ones, dropout=True)
    assert not np.any(jax.grad(lambda x: jnp.sum(nothing(x, key=jr.key(0))))(x))

    class Attention(nn.Module):
        def forward(self, x):
            rate = 0.5 if self.training else 0.0
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=rate)

    x = torch.randn(7, 3)
    net = nets.from_torch(Attention(), x, dropout=True)
    np.testing.assert_allclose(net(jnp.asarray(array(x))), array(Attention().eval()(x[None])[0]), rtol=1e-5, atol=1e-6)
    assert np.max(np.abs(net(jnp.asarray(array(x)), key=jr.key(0)) - net(jnp.asarray(array(x))))) > 0.1


# --- pages


def test_the_page_on_modules(torch):
    """The block of docs/coming-from.md runs, and dropout makes a difference."""
    text = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    (block,) = (f["body"] for f in FENCE.finditer(text) if "from_torch_with_state" in f["body"])
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    hidden, readout = torch.nn.Linear(3, 64), torch.nn.Linear(64, 1)
    names: dict[str, Any] = {"js": js, "torch": torch, "optax": optax, "hidden": hidden, "readout": readout}
    names |= {"x": jnp.asarray(x), "y": jnp.asarray(x[:, :1])}
    exec(block, names)
    history, state = names["report"].history["loss"], names["state"]
    assert history[-1] < 0.5 * history[0]
    without = js.diagnose(names["net"], x, x[:, :1], optimizer=optax.sgd(0.1), steps=100, state=state)
    assert without.history["loss"][0] == history[0]
    assert without.history["loss"][-1] < history[-1]


def test_the_example(torch):
    """The fast tests pass over it."""
    text = (nets.from_torch_with_state.__doc__ or "").replace("  # doctest: +SKIP", "")
    names = {"jax": jax, "jnp": jnp, "js": js}
    test = doctest.DocTestParser().get_doctest(text, names, "from_torch_with_state", None, None)
    assert not doctest.DocTestRunner(optionflags=FLAGS).run(test).failed


# --- what is given


def test_what_is_refused(torch):
    nn, x = torch.nn, torch.randn(3)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for given in (nn.Linear(3, 2), copy.deepcopy(module).eval()):
        with pytest.raises(ValueError, match=r"no batch normalization in training mode: .* give js.nets.from_torch\("):
            nets.from_torch_with_state(given, x)
    with pytest.raises(ValueError, match="this network has state"):
        js.Problem(nets.from_torch_with_state(module, x)[0], jnp.ones((2, 3), "float32"), jnp.ones((2, 4), "float32"))
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False))
    for convert in (nets.from_torch, nets.from_torch_with_state):
        with pytest.raises(ValueError, match="BatchNorm2d 1 has no running averages, .* track_running_stats=True"):
            convert(images, torch.randn(1, 5, 5))
    images[1] = nn.Sequential(nn.BatchNorm2d(2), nn.InstanceNorm2d(2, track_running_stats=True))
    with pytest.raises(ValueError, match=r"InstanceNorm2d 1.1 has running averages that change .* call eval\(\)"):
        nets.from_torch_with_state(images, torch.randn(1, 5, 5))
    with pytest.raises(NotImplementedError, match=r"the dropout of LSTM  cannot be drawn: give layers one by one"):
        nets.from_torch(nn.LSTM(3, 3, 2, dropout=0.1, batch_first=True), torch.ones(2, 3), dropout=True)
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))
    with pytest.raises(NotImplementedError, match=r"changes its buffers parametrizations.weight.0._u, .* without"):
        nets.from_torch(normed, x, dropout=True)
    with pytest.raises(NotImplementedError, match="aten.bernoulli"):
        nets.from_torch(nn.Dropout2d(), torch.ones(1, 3, 3), dropout=True)
    for net in (nets.from_torch(nn.Dropout(), x), nets.from_torch(nn.Tanh(), x, dropout=True)):
        with pytest.raises(ValueError, match=r"no dropout to draw with the key: give js.nets.from_torch dropout=True"):
            net(jnp.ones(3, "float32"), key=jr.key(0))
