"""Parameters that training leaves where they are: kernels are as if the network stopped their gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import X64


LOOSE = 1e-6 if X64 else 2e-3
NET = eqx.nn.MLP(3, 1, 8, 1, jnp.tanh, key=jr.key(1))
FROZEN = "These parameters are frozen in this training, and left out of its kernels: layers[0].weight, layers[0].bias."


def _data():
    x = jr.normal(jr.key(0), (12, 3))
    return x, x[:, :1] * x[:, 1:2]


class Probe(eqx.Module):
    """A network of which the read-out alone has a gradient."""

    net: eqx.nn.MLP

    def __call__(self, x):
        hidden, read = self.net.layers
        return read(jax.lax.stop_gradient(jnp.tanh(hidden(x))))


def _read_out_alone(optimizer):
    label = lambda path, _: "train" if "layers[1]" in jax.tree_util.keystr(path) else "freeze"
    labels = lambda params: jax.tree_util.tree_map_with_path(label, params)
    return optax.multi_transform({"train": optimizer, "freeze": optax.set_to_zero()}, labels)


def test_labels_may_be_a_tree_of_the_parameters():
    """The optimizer is asked for the linearized network, too, whose parameters are one level further down."""
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "train" if "layers[1]" in jax.tree_util.keystr(path) else "freeze", js.nets.partition(NET)[0]
    )
    optimizer = optax.multi_transform({"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}, lambda _: labels)
    report = js.diagnose(NET, *_data(), steps=20, optimizer=optimizer)
    twin = js.diagnose(NET, *_data(), steps=20, optimizer=_read_out_alone(optax.adam(1e-2)))
    _assert_same(report, twin, ["kernel_change", "progress"])


def test_labels_may_be_a_tree_where_inputs_are_integers():
    """Such a network is rescaled from the start; the same numbers as floats are the twin."""
    integers = jr.randint(jr.key(0), (12, 3), -3, 4)
    floats = integers.astype(float)
    net = eqx.nn.Sequential([eqx.nn.Lambda(lambda x: x.astype(floats.dtype)), NET])

    def report(x):
        labels = jax.tree.map(lambda _: "freeze", js.nets.partition(net)[0])
        labels = eqx.tree_at(lambda tree: tree.layers[1].layers[1].weight, labels, "train")
        optimizer = optax.multi_transform({"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}, lambda _: labels)
        return js.diagnose(net, x, floats[:, :1] * floats[:, 1:2], optimizer=optimizer, steps=10)

    found, twin = report(integers), report(floats)
    assert found.notes[0] == twin.notes[0]
    assert "layers[0].weight, layers[1].layers[0].bias" in found.notes[0]
    for name in ("progress", "residual_position", "stability"):
        np.testing.assert_allclose(found[name], twin[name], rtol=LOOSE, err_msg=name)


def _assert_same(report, twin, names):
    for name in names:
        np.testing.assert_allclose(report[name], twin[name], rtol=LOOSE, atol=LOOSE, err_msg=name)
    np.testing.assert_allclose(report.by_group["kernel_share"], twin.by_group["kernel_share"], atol=LOOSE)
    assert report.regime is twin.regime is js.observe.Regime.KERNEL
    assert report["kernel_change"] == 0
    assert report["crossover_multiplier"] == 0  # at no multiplier does a linear model learn features


def test_a_linear_probe_by_the_optimizer_is_one_by_the_network():
    report = js.diagnose(NET, *_data(), optimizer=_read_out_alone(optax.adam(1e-2)), steps=30)
    twin = js.diagnose(Probe(NET), *_data(), optimizer=optax.adam(1e-2), steps=30)
    names = ("progress", "kernel_change", "kernel_alignment", "residual_position", "effective_rank", "critical_rate")
    _assert_same(report, twin, names)
    assert FROZEN in report.notes
    assert not any("are frozen" in note for note in twin.notes)  # nor does anything pull there
    (chizat,) = (note for note in report.notes if note.startswith("Chizat's ratio"))
    assert "linear in the parameters that move" in chizat


def test_saved_networks_of_a_linear_probe():
    later = eqx.tree_at(lambda net: net.layers[1].weight, NET, NET.layers[1].weight + 1)
    report = js.diagnose_checkpoints([NET, later], x := _data()[0], jax.vmap(later)(x) + 0.1)
    twin = js.diagnose_checkpoints([Probe(NET), Probe(later)], x, jax.vmap(later)(x) + 0.1)
    # The bias of the read-out is frozen in both.
    assert report.notes[0].startswith(f"{FROZEN[:-1]}, layers[1].bias")
    assert twin.notes[0].endswith("kernels: net.layers[1].bias.")
    _assert_same(report, twin, ("residual_position", "effective_rank", "sharpness"))


def test_saved_changes_that_rounding_hides_are_not_frozen():
    """(a + b) x with a = 1e8: as descent moves b by 1, it moves a by less than the spacing of float32, 8."""
    f = lambda p, x: (p["one"]["a"] + p["two"]["b"]) * x
    saved = [
        jax.tree_util.Partial(
            f, {"one": {"a": jnp.full(1, 1e8, jnp.float32)}, "two": {"b": jnp.full(1, b, jnp.float32)}}
        )
        for b in (0.0, 1.0)
    ]
    x = jnp.arange(1, 5, dtype=jnp.float32)[:, None]
    report = js.diagnose_checkpoints(saved, x, (1e8 + 100) * x)
    assert not any("are frozen" in note for note in report.notes)
    np.testing.assert_allclose(report.by_group["kernel_share"], 0.5, rtol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 1e-30])
def test_all_that_moves_by_less_than_rounding_is_not_frozen(rate):
    """The bias of the read-out starts at 0 here, and so moves by however little."""
    net = eqx.tree_at(lambda net: net.layers[1].bias, NET, jnp.zeros(1))
    report = js.diagnose(net, *_data(), optimizer=optax.sgd(rate), steps=1)
    assert not any("are frozen" in note for note in report.notes)
    assert np.all(report.by_group["kernel_share"] > 0)


def test_saved_networks_of_other_libraries():
    from flax import linen

    x, y = _data()
    module = linen.Dense(1, param_dtype=x.dtype)
    variables = module.init(jr.key(1), x[0])
    later = jax.tree.map(lambda leaf: leaf + 0.1, variables)
    report = js.diagnose_checkpoints([js.nets.from_linen(module, found) for found in (variables, later)], x, y)
    assert report["kernel_change"] == 0
    np.testing.assert_allclose(report.by_group["update"], 0.1 * np.sqrt(4) / np.sqrt(sum(
        float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(variables))), rtol=LOOSE)  # fmt: skip


def test_a_linear_probe_comes_to_its_end_where_it_fits_no_better():
    """What frozen layers would do if they trained does not count."""
    (x, y), net = _data(), eqx.nn.MLP(3, 1, 2, 1, jnp.tanh, key=jr.key(1))
    report = js.diagnose(net, x, y, optimizer=_read_out_alone(optax.sgd(1.0)), steps=500)
    features = jnp.concatenate([jnp.tanh(jax.vmap(net.layers[0])(x)), jnp.ones((12, 1))], axis=1)
    left = y - features @ jnp.linalg.lstsq(features, y)[0]
    assert jnp.sum(left**2) > 0.1 * jnp.sum(y**2)
    np.testing.assert_allclose(report.history["loss"][-1], jnp.mean(left**2) / 2, rtol=0.05)
    assert report["progress"] == 1
