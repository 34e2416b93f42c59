"""`js.diagnose`: every number against dense Jacobians and formulas, and verdicts on networks of known regime."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import jaxsolve as js
from tests import cases
from tests.cases import assert_fails, Linear, X64
from tests.inside import shown


N, OUT = 12, 2
LOOSE = 1e-6 if X64 else 2e-3


def _net(key):
    return eqx.nn.MLP(3, OUT, 8, 1, jnp.tanh, key=key)


def _data(out=OUT):
    x = jr.normal(jr.key(0), (N, 3))
    return x, jnp.concatenate([x[:, :1] * x[:, 1:2], x[:, 2:]], axis=1)[:, :out]


class Scaled(js.losses.AbstractLoss):
    """MSE of gamma f: one program for every gamma."""

    gamma: jax.Array

    def pointwise(self, f, y):
        return jnp.sum((self.gamma * f - y) ** 2) / 2

    def targets(self, y, out_size):
        return jnp.reshape(y, (-1, out_size))


@pytest.fixture(scope="module")
def moved():
    """Two checkpoints, their report, and what dense matrices say: (report, numbers)."""
    start = _net(jr.key(1))
    end = jax.tree.map(lambda a: a + 0.3 * jnp.cos(7 * a + 1) if eqx.is_array(a) else a, start)
    x, y = _data()
    return js.diagnose_checkpoints([start, end], x, y), _dense(start, end, x, y)


def _dense(start, end, x, y, *, leave_out=None):
    """All numbers from the whole Jacobian; a twin may leave out one of the four arrays."""
    (p0, rest), (p1, _) = (eqx.partition(net, eqx.is_array) for net in (start, end))
    f = lambda p: jax.vmap(eqx.combine(p, rest))(x)
    rows = lambda p: [leaf.reshape(N, OUT, -1) for leaf in jax.tree.leaves(jax.jacrev(f)(p))]
    kept = [k for k in range(4) if k != leave_out]
    jac0, jac1 = ([np.asarray(rows(p)[k]) for k in kept] for p in (p0, p1))
    step = [np.asarray(b - a).ravel() for a, b in zip(jax.tree.leaves(p0), jax.tree.leaves(p1), strict=True)]
    linear = sum(j @ step[k] for j, k in zip(jac0, kept, strict=True))
    traced = lambda jac: np.array([np.einsum("nap,map->nm", j, j) for j in jac])
    k0, k1 = traced(jac0), traced(jac1)
    full = np.sum([np.einsum("nap,mbp->namb", j, j) for j in jac1], axis=0).reshape(N * OUT, -1)
    residual = np.asarray((f(p1) - y) / N).ravel()
    before = np.asarray((f(p0) - y) / N)
    change = np.asarray(f(p1) - f(p0))
    size = np.linalg.norm
    flat, unravel = ravel_pytree(p1)
    center = np.eye(N) - 1 / N
    kernel, target = center @ k1.sum(0) @ center, center @ np.asarray(y)
    hessian = jax.hessian(lambda w: js.losses.MSE().value(f(unravel(w)), y))(flat)
    spectrum = np.linalg.eigvalsh(k1.sum(0))
    shares = spectrum[spectrum > 0] / spectrum.sum()
    return {
        "nonlinearity": size(change - linear) / size(change),
        "kernel_change": size(k1.sum(0) - k0.sum(0)) / size(k0.sum(0)),
        "progress": 1 - size(residual) / size(before),
        "residual_position": residual @ full @ residual / (residual @ residual * np.linalg.eigvalsh(full)[-1]),
        "effective_rank": np.exp(-np.sum(shares * np.log(shares))),
        "sharpness": np.linalg.eigvalsh(np.asarray(hessian))[-1],
        "kernel_alignment": np.sum(kernel * (target @ target.T)) / (size(kernel) * size(target @ target.T)),
        "kernels": (k0, k1),
    }


def _assert_close(report, numbers):
    for name in numbers.keys() - {"kernels"}:
        np.testing.assert_allclose(report[name], numbers[name], rtol=10 * LOOSE, err_msg=name)


def test_numbers_against_dense_matrices(moved):
    report, numbers = moved
    _assert_close(report, numbers)
    start, end = (kernel.reshape(2, 2, N, N).sum(1) for kernel in numbers["kernels"])  # weight and bias
    for name, kernel in (("kernel_share_start", start), ("kernel_share", end)):
        traces = np.trace(kernel, axis1=1, axis2=2)
        np.testing.assert_allclose(report.by_group[name], traces / traces.sum(), rtol=10 * LOOSE)
    change = np.linalg.norm(end - start, axis=(1, 2)) / np.linalg.norm(start, axis=(1, 2))
    np.testing.assert_allclose(report.by_group["kernel_change"], change, rtol=10 * LOOSE)
    assert report.groups == ("layers[0]", "layers[1]")


@pytest.mark.parametrize("leave_out", [0, 2])
def test_dense_numbers_need_every_array(moved, leave_out):
    start = _net(jr.key(1))
    end = jax.tree.map(lambda a: a + 0.3 * jnp.cos(7 * a + 1) if eqx.is_array(a) else a, start)
    twin = _dense(start, end, *_data(), leave_out=leave_out)
    assert_fails(lambda: _assert_close(moved[0], twin))


def test_updates_and_alignment_of_layers(moved):
    report, _ = moved
    start = _net(jr.key(1)).layers
    flat = [ravel_pytree((layer.weight, layer.bias))[0] for layer in start]
    step, size = [0.3 * jnp.cos(7 * a + 1) for a in flat], [jnp.linalg.norm(a) for a in flat]
    expected = [float(jnp.linalg.norm(a) / b) for a, b in zip(step, size, strict=True)]
    np.testing.assert_allclose(report.by_group["update"], expected, rtol=LOOSE)
    assert report.pairs == ("layers[0] to layers[1]",)
    norm, weights = jnp.linalg.norm, [layer.weight for layer in start]
    for name, (low, high) in (
        ("alignment_start", weights),
        ("alignment", [w + 0.3 * jnp.cos(7 * w + 1) for w in weights]),
    ):
        np.testing.assert_allclose(report.by_pair[name], [norm(high @ low) / (norm(high) * norm(low))], rtol=LOOSE)


# --- the optimizer


RATE, BETA = 0.1, 0.9
OPTIMIZERS = {
    "sgd": optax.sgd(RATE),
    "momentum": optax.sgd(RATE, momentum=BETA),
    "nesterov": optax.sgd(RATE, momentum=BETA, nesterov=True),
    "adam": optax.adam(RATE, b1=BETA, b2=0.99),
}


@pytest.fixture(scope="module")
def linear_runs():
    """A linear model after one step of each optimizer: reports by name."""
    return {name: _one_step(optimizer) for name, optimizer in OPTIMIZERS.items()}


def _linear():
    return Linear(jnp.array([[0.3, -0.2, 0.5]])), *_data(1)


def _one_step(optimizer):
    net, x, y = _linear()
    return js.diagnose(net, x, y, optimizer=optimizer, steps=1)


def _slopes(w):
    _, x, y = _linear()
    hessian = np.asarray(x.T @ x) / N
    return hessian, np.asarray((w @ x.T - y[:, 0]) @ x) / N


@pytest.mark.slow
def test_critical_rate_of_a_quadratic_loss(linear_runs):
    w = np.asarray(_linear()[0].w[0])
    hessian, gradient = _slopes(w)
    hessian, gradient = _slopes(w - RATE * gradient)
    expected = 2 * gradient @ gradient / (RATE * gradient @ hessian @ gradient)
    np.testing.assert_allclose(linear_runs["sgd"]["critical_rate"], expected, rtol=0.1)  # bisection ends there


@pytest.mark.parametrize(
    ("name", "limit"),
    [("sgd", 2.0), ("momentum", 2 * (1 + BETA)), ("nesterov", 2 * (1 + BETA) / (1 + 2 * BETA))],
)
def test_stability_of_gradient_descent(linear_runs, name, limit):
    hessian, _ = _slopes(np.zeros(3))
    sharpness = np.linalg.eigvalsh(hessian)[-1]
    check = lambda value: np.testing.assert_allclose(
        linear_runs[name]["stability"], RATE * sharpness / value, rtol=LOOSE
    )
    check(limit)
    assert_fails(lambda: check(2 * limit))


def test_stability_of_adam_is_preconditioned(linear_runs):
    """The Hessian with the preconditioner of the next step, and the limit 2 (1 + b1)/(1 - b1) (Cohen et al. 2022)."""
    w = np.asarray(_linear()[0].w[0])
    hessian, gradient = _slopes(w)
    _, after = _slopes(w - RATE * np.sign(gradient))  # Adam's first step
    square = (0.99 * 0.01 * gradient**2 + 0.01 * after**2) / (1 - 0.99**2)  # the moment of the second one
    scale = 1 / np.sqrt(np.sqrt(square) + 1e-8)
    largest = np.linalg.eigvalsh(scale[:, None] * hessian * scale)[-1]
    expected = RATE * largest / (2 * (1 + BETA) / (1 - BETA))
    np.testing.assert_allclose(linear_runs["adam"]["stability"], expected, rtol=20 * LOOSE)
    assert "preconditioned" in linear_runs["adam"].text


@pytest.mark.parametrize(
    ("share", "words"), [(0.97, "trains at the edge"), (0.5, "is off the edge"), (2.2, "is beyond")]
)
def test_whether_it_trains_at_the_edge(share, words):
    largest = np.linalg.eigvalsh(_slopes(np.zeros(3))[0])[-1]
    report = _one_step(optax.sgd(jnp.asarray(share * 2 / largest)))  # one program for both
    np.testing.assert_allclose(report["stability"], share, rtol=LOOSE)
    assert words in report.text


def test_an_optimizer_without_a_linear_response_says_so():
    net, x, y = _linear()
    report = js.diagnose(net, x, y, optimizer=optax.lion(1e-2), steps=1)
    assert np.isnan(report["stability"])
    assert "not known" in report.findings["stability"].words
    assert any(
        "No limit of the sharpness is known" in note and "its state (arrays) is" in note for note in report.notes
    )
    assert report["critical_rate"] > 0


# --- verdicts


@pytest.fixture(scope="module")
def sides():
    """One network at two output scales: its reports."""
    net = eqx.nn.MLP(3, 1, 24, 2, jnp.tanh, key=jr.key(1))

    def at(gamma):
        optimizer = optax.adam(jnp.asarray(5e-3 / max(1.0, gamma)))
        loss = Scaled(jnp.asarray(gamma))
        return js.diagnose(net, *_data(1), loss=loss, optimizer=optimizer, steps=60, test=_data(1), centered=True)

    return at(0.3), at(300.0)


def test_verdicts_of_known_regimes(sides):
    rich, lazy = sides
    assert rich.regime is js.observe.Regime.FEATURE_LEARNING
    assert lazy.regime is js.observe.Regime.KERNEL
    assert str(rich).startswith("This network learns features.")
    assert "kernel regime: it fits with features that it hardly changes" in str(lazy)
    assert lazy["nonlinearity"] < 0.08 < rich["nonlinearity"]
    assert lazy["chizat_ratio"] < 0.008 < rich["chizat_ratio"]


def test_the_crossover_is_the_same_network(sides):
    """Times its gamma, the multiplier of the crossover is that of one network: gamma = 1 is reached from both sides."""
    rich, lazy = sides
    assert lazy["crossover_multiplier"] < 1 < rich["crossover_multiplier"]
    from_rich, from_lazy = 0.3 * rich["crossover_multiplier"], 300 * lazy["crossover_multiplier"]
    assert 1 / 3 < from_rich / from_lazy < 3


def test_the_report_in_every_form(sides, tmp_path):
    rich, _ = sides
    page = rich.save(tmp_path / "diagnosis.html").read_text()
    assert "Feature learning" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<img") == 1
    assert rich._repr_html_() in page
    data = rich.to_xarray()
    assert dict(data.sizes) == {
        "step": len(rich.history["step"]),
        "group": 3,
        "pair": 2,
        "multiplier": len(rich.by_scale["multiplier"]),
    }
    assert data.attrs["regime"] == "feature learning"
    assert data.expected_kernel_change.attrs["limit"] == js.observe.KERNEL_REGIME_LIMIT
    assert len(rich.plot().axes) == 6
    assert "kernel_change =" in repr(rich)
    with pytest.raises(KeyError, match="not among the findings"):
        rich["speed"]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        rich.save(tmp_path / "nowhere" / "page.html")


def test_the_picture_has_numbers_at_a_loss_that_hardly_falls_and_tells_layers_apart(moved):
    """A logarithmic axis has none within a decade, and the names of a module's dicts may end alike."""
    report, _ = moved
    names = tuple(f"params['transformer']['h']['{k}']['attn']['c_attn']" for k in range(len(report.groups)))
    of = lambda loss: dataclasses.replace(report, groups=names, history=report.history | {"loss": np.array(loss)})
    axes = of([4.2, 2.9]).plot().axes
    assert [axes[0].get_yscale(), of([1.0, 0.01]).plot().axes[0].get_yscale()] == ["linear", "log"]
    labels = [label.get_text() for label in axes[4].get_yticklabels()]
    assert labels == [f"...rmer.h.{k}.attn.c_attn" for k in range(len(names))]


def test_test_losses_of_the_network_and_its_linearization(sides):
    rich, lazy = sides
    for report in sides:
        np.testing.assert_allclose(report.history["test_loss"], report.history["loss"], rtol=LOOSE)
        linear = report.history["linear_test_loss"][-1]
        np.testing.assert_allclose(linear, report.history["linear_loss"][-1], rtol=LOOSE)
    np.testing.assert_allclose(lazy.history["linear_loss"][-1], lazy.history["loss"][-1], rtol=0.05)
    assert not np.isclose(rich.history["linear_loss"][-1], rich.history["loss"][-1], rtol=0.05)


def test_a_divergence_is_a_verdict():
    net, x, y = _linear()
    report = js.diagnose(net, x, y, optimizer=optax.sgd(50.0), steps=60)
    assert report.regime is js.observe.Regime.UNSTABLE
    assert "diverged" in report.text
    assert any("linearized network diverges" in note for note in report.notes)


def test_a_long_diagnosis_says_where_it_is(monkeypatch, capsys):
    """Of short ones nothing is said; here all are long."""
    x, y = jr.normal(jr.key(0), (8, 3)), jr.normal(jr.key(1), (8, 2))
    run = lambda: js.diagnose(cases.mlp(jr.key(2)), x, y, steps=4)
    monkeypatch.setattr(shown, "SILENT", 1e9)
    run()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(shown, "SILENT", 0.0)
    run()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "diagnose: training from step 0 of 4, 0 s so far"
    assert all(line.startswith("diagnose: ") and line.endswith(" s so far") for line in lines)
