"""PyTorch modules as networks: outputs, derivatives and kernels are those of PyTorch, computed by itself.

They need PyTorch, torchvision and transformers, which few tests do: `.ci/run torch` installs them beside.
"""

import doctest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve import losses, nets, Problem
from tests.cases import eps
from tests.docstrings import FLAGS
from tests.test_readme import FENCE, ROOT


# Warnings are theirs, not ours.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TOKENS, SAMPLES, OUTPUTS = 64, 3, 4
SINGLE = float(np.finfo(np.float32).eps)


@pytest.fixture
def torch(getkey):
    module = pytest.importorskip("torch")
    module.manual_seed(int(jax.random.randint(getkey(), (), 0, 2**31 - 1)))
    module.set_num_threads(1)
    return module


def own(params: Any, name: str) -> np.ndarray:
    """The array at PyTorch's name of a parameter."""
    for key in name.split("."):
        params = params[key]
    return np.asarray(params)


def array(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy()


def far(found: Any, expected: Any) -> float:
    """The largest error, by the largest number."""
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


# --- whole networks


def _mlp(torch):
    nn = torch.nn
    return nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 3))


def _cnn(torch):
    nn = torch.nn
    first = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout())
    second = (nn.Conv2d(4, 8, 3, stride=2, groups=2), nn.GroupNorm(2, 8), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32, 5))


def _resnet(torch):
    return pytest.importorskip("torchvision").models.resnet18(num_classes=5)


def _vit(torch):
    models = pytest.importorskip("torchvision").models
    return models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5)


def _gpt2(torch):
    transformers = pytest.importorskip("transformers")
    options = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(**options, vocab_size=TOKENS, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config)


def _bert(torch):
    transformers = pytest.importorskip("transformers")
    options = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**options, vocab_size=TOKENS))


def _llama(torch):
    transformers = pytest.importorskip("transformers")
    options = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.LlamaConfig(**options, num_key_value_heads=2, vocab_size=TOKENS)
    return transformers.LlamaForCausalLM(config)


def _lstm(torch):
    return torch.nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)


def _gru(torch):
    return torch.nn.GRU(4, 6, batch_first=True)


NETWORKS = {
    _mlp: (5,),
    _cnn: (3, 16, 16),
    _resnet: (3, 32, 32),
    _vit: (3, 32, 32),
    _gpt2: TOKENS,
    _bert: TOKENS,
    _llama: TOKENS,
    _lstm: (5, 4),
    _gru: (5, 4),
}


def _made(torch, make: Any) -> tuple[Any, Any]:
    """A network whose gains, biases and averages are no longer what they begin with, and samples."""
    module, shape = make(torch), NETWORKS[make]
    with torch.no_grad():
        for held in (*module.parameters(), *module.buffers()):
            if held.is_floating_point() and held.ndim == 1:
                held += 0.2 * torch.rand_like(held)
        for parameter in module.parameters():
            if not parameter.any():  # the last layer of a vision transformer
                parameter += 0.1 * torch.randn_like(parameter)
    if shape == TOKENS:
        return module, torch.randint(0, TOKENS, (SAMPLES, 8))
    return module, torch.randn(SAMPLES, *shape)


def _outputs(module: Any, params: dict[str, Any], sample: Any) -> Any:
    """The first outputs for one sample, by PyTorch."""
    from torch.func import functional_call  # pyright: ignore[reportMissingImports]

    out = functional_call(module, params, (sample[None],))
    out = out.logits if hasattr(out, "logits") else out[0] if isinstance(out, tuple) else out
    return out.reshape(-1)[:OUTPUTS]


def _kernel(torch, module: Any, x: Any) -> np.ndarray:
    """The NTK of the first outputs by `torch.func`."""
    params = {name: parameter.detach() for name, parameter in module.named_parameters()}
    jacobian = torch.func.jacrev(lambda params, sample: _outputs(module, params, sample))
    rows = [jacobian(params, sample) for sample in x]
    flat = [torch.stack([row[name] for row in rows]).flatten(2) for name in params]
    return array(sum(torch.einsum("nak,mbk->namb", one, one) for one in flat))


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__.strip("_"))
def test_outputs_and_kernels_are_those_of_pytorch(torch, make):
    module, x = _made(torch, make)
    module.train()
    net = nets.from_torch(module, x[0])
    assert all(part.training for part in module.modules())
    module.eval()
    samples = jnp.asarray(x.numpy())
    few = nets.Function(lambda params, x: net.f(params, x).reshape(-1)[:OUTPUTS], net.params)
    found = jax.jit(jax.vmap(few))(samples)
    expected = np.stack([array(_outputs(module, {}, sample)) for sample in x])
    assert found.dtype == np.float32
    assert far(found, expected) < 30 * SINGLE  # measured: 14 of ResNet-18, up to 7 of the others
    kernel = js.kernels.empirical(few, samples).ntk
    assert far(kernel, _kernel(torch, module, x)) < 60 * SINGLE  # measured: up to 7


@pytest.mark.parametrize("operation", ["aten.gelu", "aten.native_layer_norm"])
def test_small_mistakes_would_be_seen(torch, operation):
    """Twins: the other gelu, and another eps."""
    module, x = _made(torch, _mlp)
    wrong = {
        "aten.gelu": lambda x: jax.nn.gelu(x, approximate=True),
        "aten.native_layer_norm": lambda x, shape, weight, bias, eps: (
            (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 10 * eps) * weight + bias,
        ),
    }
    net = nets.from_torch(module, x[0], operations={operation: wrong[operation]})
    found = jax.vmap(net)(jnp.asarray(x.numpy()))
    assert far(found, array(module.eval()(x))) > 100 * SINGLE


# --- layers


def _layers(torch):
    nn = torch.nn
    line, image, block = (4, 8), (4, 9, 9), (2, 5, 5, 5)
    activations = (
        "ELU SELU CELU GELU SiLU Mish Softplus Hardswish Hardtanh ReLU6 LogSigmoid Tanhshrink Softsign "
        "PReLU Hardshrink Softshrink GLU Sigmoid Tanh"
    )
    yield from ((getattr(nn, name)(), line) for name in activations.split())
    yield nn.Softmax(-1), line
    yield nn.LogSoftmax(-1), line
    yield nn.RMSNorm(8), line
    yield nn.InstanceNorm1d(4, affine=True), line
    yield nn.LocalResponseNorm(2), image
    yield nn.Conv1d(4, 3, 3, dilation=2), line
    yield nn.Conv2d(4, 3, 4, padding="same", padding_mode="zeros"), image
    yield nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), image
    yield nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), image
    yield nn.Conv3d(2, 3, 3, padding=1), block
    yield nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2), image
    yield nn.MaxPool1d(2), line
    yield nn.MaxPool2d(3, padding=1, ceil_mode=True), image
    yield nn.MaxPool3d(2), block
    yield nn.AvgPool2d(3, stride=4, padding=1, ceil_mode=True), image
    yield nn.AvgPool2d(2, padding=1, count_include_pad=False), image
    yield nn.AvgPool3d(2), block
    yield nn.AdaptiveAvgPool1d(3), line
    yield nn.AdaptiveAvgPool2d((4, 12)), image
    yield nn.PixelShuffle(2), image
    yield nn.ReplicationPad2d(1), image
    yield nn.Unfold(3), image
    yield nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), line
    yield nn.RNN(8, 3, batch_first=True), line
    yield nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), line
    for function in (
        lambda x: x.max(-1).values,
        lambda x: x.amax(-1),
        lambda x: x.std(-1),
        lambda x: x.logsumexp(-1),
        lambda x: x.cumsum(-1),
        lambda x: x.topk(2).values,
        lambda x: x.prod(-1),
        lambda x: x.repeat(1, 2, 1).roll(1, -1).flip(1),
        lambda x: x % 0.3 + torch.fmod(x, 0.7),
        lambda x: torch.nn.functional.cosine_similarity(x, x + 1),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: torch.zeros(1, 4, 8, dtype=x.dtype).index_add(1, torch.tensor([0, 1, 1, 2]), x),
        lambda x: torch.zeros_like(x).scatter_add(1, torch.tensor([0, 2, 2, 1]).reshape(1, 4, 1).expand(1, 4, 8), x**2),
        lambda x: x.gather(2, torch.tensor([[[0, 3], [1, 1]]])) * x[:, [0, 1], 2:4],
        lambda x: torch.diagonal(x, dim1=1, dim2=2).clamp(min=0.1),
        lambda x: x[..., :4].masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf")).softmax(-1),
        lambda x: torch.cat([x[:, :2] * 2, x.split(3, 1)[0]], 1)[:, ::2],
    ):
        yield _module(torch, function), line


def _module(torch, function: Any) -> Any:
    class Module(torch.nn.Module):
        def forward(self, *parts):
            return function(*parts)

    return Module()


@pytest.mark.x64_only
def test_layers_and_their_derivatives(torch):
    worst = {}
    for number, (module, shape) in enumerate(_layers(torch)):
        module.double().eval()
        x = torch.randn(1, *shape, dtype=torch.float64, requires_grad=True)
        net = nets.from_torch(module, x[0])
        out = module(x)
        out = out[0] if isinstance(out, tuple) else out
        weight = torch.randn_like(out)
        (out * weight).sum().backward()
        found, back = jax.vjp(lambda params, x, net=net: net.f(params, x), net.params, jnp.asarray(array(x[0])))
        params, inputs = back(jnp.asarray(array(weight[0])))
        pairs = [(found, array(out[0])), (inputs, array(x.grad[0]))]
        pairs += [(own(params, name), array(held.grad)) for name, held in module.named_parameters()]
        worst[number, type(module).__name__] = max(
            float(np.max(np.abs(a - b))) / (1 + np.max(np.abs(b))) for a, b in pairs
        )
    assert len(worst) > 50
    assert max(worst.values()) < eps(100), {name: error for name, error in worst.items() if error > eps(10)}


def test_kinks_have_the_derivatives_of_pytorch(torch):
    nn, x = torch.nn, torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0])
    for module in (nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.LeakyReLU(), nn.Hardshrink(), nn.ELU(), nn.Softplus()):
        for scale in (1.0, 40.0):  # exp(240) is no float32
            at = (scale * x).requires_grad_()
            module(at[None]).sum().backward()
            net = nets.from_torch(module, x)
            found = jax.grad(lambda x, net=net: jnp.sum(net(x)))(jnp.asarray(array(at)))
            np.testing.assert_allclose(found, array(at.grad), rtol=1e-6, err_msg=repr(module))


# --- what trains


def _partly_stopped(torch, stops: bool) -> Any:
    class Stopped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.table = torch.nn.Embedding(4, 3, padding_idx=0 if stops else None)
            self.register_buffer("tokens", torch.tensor([[0, 1, 1]]))

        def forward(self, x):
            with torch.set_grad_enabled(not stops):
                fixed = self.a(x)
            rows = self.table(self.tokens)
            part = self.b(x).detach() if stops else self.b(x)
            return self.a(x) * fixed + self.b(x) * part + (rows * x).sum(1) ** 2

    return Stopped()


def test_gradients_stop_where_those_of_pytorch_do(torch):
    module, free = _partly_stopped(torch, True), _partly_stopped(torch, False)
    with torch.no_grad():
        module.table.weight[0] = 1.0  # PyTorch begins it at 0
    free.load_state_dict(module.state_dict())
    x = torch.randn(1, 3)
    gradient = {}
    for one in (module, free):
        one(x).sum().backward()
        net = nets.from_torch(one, x[0])
        gradient[one] = jax.grad(lambda params, net=net: jnp.sum(net.f(params, jnp.asarray(x[0].numpy()))))(net.params)
        for name, parameter in one.named_parameters():
            np.testing.assert_allclose(own(gradient[one], name), array(parameter.grad), rtol=1e-5, atol=1e-6)
    for name in ("a.weight", "b.weight", "table.weight"):
        assert far(own(gradient[module], name), own(gradient[free], name)) > 0.1


def test_what_is_frozen_stands_still_and_what_is_tied_is_one(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.second.bias.requires_grad_(False)

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    module, x = Tied(), torch.randn(2, 3)
    net = nets.from_torch(module, x[0])
    assert jax.tree.map(jnp.shape, net.params) == {"first": {"weight": (3, 3), "bias": (3,)}}
    np.testing.assert_allclose(jax.vmap(net)(jnp.asarray(x.numpy())), array(module(x)), rtol=1e-5, atol=1e-6)
    module(x[:1]).sum().backward()
    slope = jax.grad(lambda params: jnp.sum(net.f(params, jnp.asarray(x[0].numpy()))))(net.params)
    np.testing.assert_allclose(slope["first"]["weight"], array(module.first.weight.grad), rtol=1e-5, atol=1e-6)
    # A copy: the loop goes on, and the network stays.
    before = np.array(net.params["first"]["weight"])
    with torch.no_grad():
        module.first.weight += 1
    np.testing.assert_array_equal(net.params["first"]["weight"], before)
    np.testing.assert_array_equal(nets.torch_params(module)["first"]["weight"], before + 1)


def test_one_program_serves_a_module_at_all_its_parameters(torch):
    module, x = _made(torch, _cnn)
    one = nets.from_torch(module, x[0])
    with torch.no_grad():
        module[0].weight += 1
    two = nets.from_torch(module, x[0])
    assert one.f == two.f
    assert hash(one.f) == hash(two.f)
    with torch.no_grad():
        module[1].running_mean += 1  # which stands in the program
    assert one.f != nets.from_torch(module, x[0]).f
    assert one.f != nets.from_torch(module, x[0], operations={"aten.relu": jnp.tanh}).f


# --- a loop of PyTorch


def _page(page: str, words: str) -> str:
    text = (ROOT / "docs" / page).read_text("utf-8")
    (block,) = (f["body"] for f in FENCE.finditer(text) if f["language"] == "text" and words in f["body"])
    return block


def _rows(net: Any, x: Any, y: Any, rate: float) -> Any:
    """The same loop by JAX."""
    monitor = js.Monitor(js.Problem(net, x[:32], y[:32]), every=100)
    slope = jax.jit(jax.grad(lambda params: jnp.mean((jax.vmap(lambda x: net.f(params, x))(x) - y) ** 2)))
    params = net.params
    for step in range(501):
        monitor(step, params)
        params = jax.tree.map(lambda leaf, change: leaf - np.float32(rate) * change, params, slope(params))
    return monitor.history


def test_a_monitor_in_a_loop_of_pytorch(torch):
    """The rows of the loop in docs/monitor.md are those of the same steps by JAX."""
    x = np.random.default_rng(0).normal(size=(256, 6)).astype(np.float32)
    names: dict[str, Any] = {"js": js, "x": jnp.asarray(x), "y": jnp.asarray(x[:, :1] * x[:, 1:2])}
    exec(_page("monitor.md", "from_torch"), names)
    found = names["monitor"].history
    expected, other = (_rows(names["net"], names["x"], names["y"], rate) for rate in (0.05, 0.06))
    for name in ("loss", "kernel_change"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
        assert far(other[name], expected[name]) > 1e-2
    assert found.group.values.tolist() == ["params['0']", "params['2']"]


def test_the_page_on_modules(torch):
    """The block of docs/coming-from.md runs."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    names: dict[str, Any] = {"js": js, "x": jnp.asarray(x), "y": jnp.asarray(x[:, :1])}
    exec(_page("coming-from.md", "from_torch(module"), names)
    assert names["kernel"].shape == (20, 1, 20, 1)
    assert float(names["run"]["loss"][0]) < 0.5 * float(np.mean(x[:, 0] ** 2))


# --- what else is given, and what is refused


@pytest.mark.parametrize("public", [nets.from_torch, nets.torch_params])
def test_examples(torch, public):
    """The fast tests pass over them."""
    text = (public.__doc__ or "").replace("  # doctest: +SKIP", "")
    names = {"jax": jax, "jnp": jnp, "js": js}
    test = doctest.DocTestParser().get_doctest(text, names, public.__name__, None, None)
    assert not doctest.DocTestRunner(optionflags=FLAGS).run(test).failed


def test_several_inputs_and_outputs(torch):
    parts = torch.randn(3), torch.randn(2)
    together = lambda one, two: {"other": one, "logits": torch.cat([one, two], 1).reshape(1, 5, 1) ** 2}
    pair = tuple(jnp.asarray(part.numpy()) for part in parts)
    expected = np.concatenate(pair)[:, None] ** 2
    found = nets.from_torch(_module(torch, together), parts)(pair)
    np.testing.assert_allclose(found, expected, rtol=1e-6)

    class Named(torch.nn.Module):
        def forward(self, two, one):
            return together(one, two)["logits"], one

    found = nets.from_torch(Named(), {"one": parts[0], "two": parts[1]})({"two": pair[1], "one": pair[0]})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_outputs_keep_their_shape(torch):
    """So that a loss over positions finds them."""
    module, x = _made(torch, _gpt2)
    module.eval()
    net, tokens = nets.from_torch(module, x[0]), jnp.asarray(x.numpy())
    labels = torch.roll(x, -1, 1)
    labels[:, -1] = -100
    with torch.no_grad():
        theirs = torch.nn.functional.cross_entropy(module(x).logits.flatten(0, 1), labels.flatten())
    problem = Problem(net, tokens, jnp.asarray(labels.numpy()), loss=losses.CrossEntropy())
    assert problem.out_shape == tuple(module(x).logits.shape[1:])
    np.testing.assert_allclose(problem.objective(net), float(theirs), rtol=1e-5)


def test_operations_that_are_not_known(torch):
    module, x = torch.nn.AdaptiveMaxPool2d(1), torch.randn(1, 2, 3, 3)
    with pytest.raises(NotImplementedError, match=r"this Adaptive.* aten.adaptive_max_pool2d.*operations=\{'aten"):
        nets.from_torch(module, x[0])
    largest = lambda x, size: (jnp.max(x, (-2, -1), keepdims=True), None)
    net = nets.from_torch(module, x[0], operations={"aten.adaptive_max_pool2d": largest})
    np.testing.assert_array_equal(net(jnp.asarray(x[0].numpy())), array(module(x)[0]))


def test_what_is_refused(torch):
    module, x = torch.nn.Linear(3, 2), torch.randn(3)
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, got"):
        nets.from_torch(jnp.tanh, x)
    with pytest.raises(TypeError, match="example must be one sample: a tensor"):
        nets.from_torch(module, jnp.ones(3))
    with pytest.raises(TypeError, match=r"an output for each sample, and gave one of shape \(\)"):
        nets.from_torch(_module(torch, torch.sum), x)
    with pytest.raises(TypeError, match="module must return a tensor, or several"):
        nets.from_torch(_module(torch, lambda x: "text"), x)
    with pytest.raises(ValueError, match=r"the shape of the example, \(3,\), got an array of shape \(4,\)"):
        nets.from_torch(module, x)(jnp.ones(4))
    with pytest.raises(TypeError, match=r"parameter weight is of bfloat16: call module.float\(\)"):
        nets.from_torch(module.bfloat16(), x.bfloat16())


def test_coordinate_check(torch):
    """Of the layers of PyTorch, by its names: right with outputs over the width, and the standard scaling is found."""
    import optax

    def module_of(width: int, key: Any):
        torch.manual_seed(int(jax.random.randint(key, (), 0, 2**31 - 1)))
        layers = torch.nn.Linear(4, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 1)
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])

    def check(read_out: Any):
        def make(width: int, key: Any) -> Any:
            module = module_of(width, key)
            with torch.no_grad():
                module[4].weight *= width**0.5
            return nets.from_torch(torch.nn.Sequential(module, read_out(width)), torch.zeros(4))

        kinds = lambda params: jax.tree.map(lambda p: "hidden" if p.shape[:1] == p.shape[1:] else "other", params)
        mup = lambda width: optax.multi_transform(
            {"hidden": optax.adam(0.032 / width), "other": optax.adam(1e-3)}, kinds
        )
        return js.coordinate_check(make, [32, 128], x, x[:, :1], optimizer=mup, seeds=2)

    class Over(torch.nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.width = width

        def forward(self, x: Any) -> Any:
            return x / self.width

    x = jax.random.normal(jax.random.key(0), (16, 4), dtype=np.float32)
    right, standard = check(Over), check(lambda width: torch.nn.Identity())
    assert right.passed, str(right)
    assert right.tensors == tuple(f"params['0']['{layer}']['weight']" for layer in (0, 2, 4))
    assert standard.passed is False
    assert "it has the standard scaling" in standard.verdicts[-1]
    hidden = module_of(128, jax.random.fold_in(jax.random.key(0), 1))[:3](torch.tensor(np.array(x)))
    np.testing.assert_allclose(right.sizes[1, 1, 1], hidden.detach().square().mean().sqrt(), rtol=1e-5)
