"""A monitor in loops of others, against diagnoses and observables of the same parameters."""

import functools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import jaxsolve as js
from tests import cases


OPTIMIZER = optax.adam(1e-2)
X = jr.normal(jr.key(0), (32, 3))
Y = X[:, :1] * X[:, 1:2]
PROBES = 12


def _every():
    o = js.observe
    of_kernel = [o.kernel_change(), o.kernel_centered_alignment(), o.kernel_effective_rank()]
    return [
        o.loss(),
        *map(o.traced, of_kernel),
        o.nonlinearity(),
        o.residual_position(),
        o.update_size(),
        o.critical_rate(OPTIMIZER),
        o.stability(OPTIMIZER),
    ]


def _net():
    return eqx.nn.MLP(3, 1, 8, 2, jnp.tanh, dtype=jnp.result_type(float), key=jr.key(1))


@functools.cache
def _problem():
    return js.Problem(_net(), X[:PROBES], Y[:PROBES])


def _parts():
    return eqx.partition(_net(), eqx.is_inexact_array)


def _step(params, state):
    static = _parts()[1]
    loss = lambda p: jnp.mean((jax.vmap(eqx.combine(p, static))(X) - Y) ** 2)
    with jax.numpy_dtype_promotion("standard"):
        updates, state = OPTIMIZER.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


@functools.cache
def _loop():
    """A monitor of a loop in Python, its rows, and the checkpoints."""
    monitor = js.Monitor(_problem(), observe=_every(), every=10)
    params, static = _parts()
    state, rows, checkpoints = OPTIMIZER.init(params), {}, {}
    step_of = jax.jit(_step)
    for step in range(31):
        row = monitor(step, eqx.combine(params, static), state)
        if row is not None:
            rows[step], checkpoints[step] = row, eqx.combine(params, static)
        params, state = step_of(params, state)
    return monitor, rows, checkpoints


def test_rows_come_at_multiples():
    monitor, rows, _ = _loop()
    assert list(rows) == [0, 10, 20, 30]
    assert rows[0]["kernel_change"] == 0
    assert list(rows[0])[-5:] == [
        "update_size/layers[0]", "update_size/layers[1]", "update_size/layers[2]", "critical_rate", "stability",
    ]  # fmt: skip
    assert all(isinstance(value, float) for row in rows.values() for value in row.values())
    history = monitor.history
    assert list(history.step.values) == [0, 10, 20, 30]
    assert list(history.group.values) == ["layers[0]", "layers[1]", "layers[2]"]
    assert float(history.update_size.sel(step=20, group="layers[1]")) == rows[20]["update_size/layers[1]"]
    assert "4 rows" in repr(monitor)


def test_numbers_are_those_of_a_diagnosis():
    """Of the same checkpoints on the same samples, to rounding."""
    monitor, rows, checkpoints = _loop()
    report = js.diagnose_checkpoints(
        list(checkpoints.values()), X[:PROBES], Y[:PROBES], steps=list(checkpoints), loss=js.losses.MSE()
    )
    same = {
        "loss": "loss",
        "kernel_change": "kernel_change",
        "kernel_centered_alignment": "kernel_alignment",
        "kernel_effective_rank": "effective_rank",
        "nonlinearity": "nonlinearity",
        "residual_position": "residual_position",
    }
    for name, other in same.items():
        ours = [row[name] for row in rows.values()]
        np.testing.assert_allclose(ours, report.history[other], rtol=cases.eps(1e3), atol=cases.eps(20), err_msg=name)
    sizes = [rows[30][f"update_size/{group}"] for group in report.groups]
    np.testing.assert_allclose(sizes, report.by_group["update"], rtol=cases.eps(50))
    own = monitor.diagnosis()
    assert re.search(r"the rate by [\d.]+ for gradient descent or [\d.]+ for Adam: that is the crossover", own.text)
    assert own.regime is report.regime
    np.testing.assert_allclose(own["kernel_change"], report["kernel_change"], rtol=cases.eps(1e3))
    np.testing.assert_allclose(own["sharpness"], report["sharpness"], rtol=cases.eps(1e3))


def _close(one, two):
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=cases.eps(1e4), atol=cases.eps(50), err_msg=name)


def test_inside_of_a_program_rows_come_by_callback():
    seen: list[tuple[int, dict[str, float]]] = []
    monitor = js.Monitor(_problem(), observe=_every(), every=10, log=lambda row, step: seen.append((step, row)))
    params, _ = _parts()

    @jax.jit
    def run(params):
        def body(carry, step):
            assert monitor(step, *carry) is None
            return _step(*carry), None

        return jax.lax.scan(body, (params, OPTIMIZER.init(params)), jnp.arange(31))[0]

    run(params)
    other, rows, _ = _loop()
    _close(other.history, monitor.history)
    assert sorted(step for step, _ in seen) == [0, 10, 20, 30]
    assert dict(seen)[20].keys() == rows[20].keys()
    ours, by_hand = monitor.diagnosis(), other.diagnosis()  # of the parameters of the last row
    assert ours.regime is by_hand.regime
    for name in ("kernel_change", "nonlinearity"):
        np.testing.assert_allclose(ours[name], by_hand[name], rtol=cases.eps(1e4))


def test_as_a_measurement_of_optax():
    watched = js.Monitor(_problem(), observe=_every()[:6], every=10)
    measured = optax.chain(optax.monitor({"dynamics": watched.measure()}), OPTIMIZER)
    params, static = _parts()
    loss = lambda p: jnp.mean((jax.vmap(eqx.combine(p, static))(X) - Y) ** 2)

    @jax.jit
    def step(params, state):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = measured.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = measured.init(params)
    for _ in range(25):
        params, state = step(params, state)
    other, rows, _ = _loop()
    _close({name: rows[20][name] for name in ("loss", "kernel_change")}, optax.tree.get(state, "dynamics"))
    _close(other.history[[item.name for item in watched.observe]].sel(step=[0, 10, 20]), watched.history)
    with pytest.raises(ValueError, match=r"call optimizer\.update\(gradient, state, params\)"):
        measured.update(params, state)


def test_it_goes_on_from_what_was_saved(tmp_path):
    monitor, rows, checkpoints = _loop()
    again = lambda: js.Monitor(_problem(), observe=_every(), every=10)
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "orbax", monitor.state)
        saver.wait_until_finished()
        one = again()
        one.restore(saver.restore(tmp_path / "orbax"))
    eqx.tree_serialise_leaves(tmp_path / "monitor.eqx", monitor.state)
    two = again()
    like = two.like(len(rows), OPTIMIZER.init(_parts()[0]))
    two.restore(eqx.tree_deserialise_leaves(tmp_path / "monitor.eqx", like))
    for new in (one, two):
        assert new.history.equals(monitor.history)
        assert str(new.diagnosis()) == str(monitor.diagnosis())
        new(40, checkpoints[30], OPTIMIZER.init(_parts()[0]))
        assert list(new.history.step.values) == [0, 10, 20, 30, 40]
    empty = again()
    empty.restore(again().state)
    with pytest.raises(ValueError, match="has recorded no step yet"):
        empty.history  # noqa: B018
    for broken in ({}, {"step": [0], "rows": {}, "params": {}}):
        with pytest.raises(ValueError, match="this is not the state of a monitor of"):
            again().restore(broken)
    other = js.Monitor(js.Problem(eqx.nn.MLP(3, 1, 4, 1, dtype=X.dtype, key=jr.key(0)), X, Y), observe=_every())
    with pytest.raises(ValueError, match="another network"):
        other.restore(monitor.state)


def test_parameters_may_be_given_away():
    """A loop that donates its arrays to the next step deletes them."""
    monitor = js.Monitor(_problem(), observe=js.observe.loss(), every=1)
    params, _ = _parts()
    params = jax.tree.map(jnp.array, params)
    monitor(1, params)
    jax.tree.map(lambda leaf: leaf.delete(), params)
    assert np.isfinite(monitor.diagnosis()["kernel_change"])


def test_networks_of_flax_and_haiku():
    import flax.linen as linen
    import haiku
    from flax import nnx

    dtype = jnp.result_type(float)
    watched = [js.observe.update_size(), js.observe.stability(OPTIMIZER)]
    made = nnx.Linear(3, 1, param_dtype=dtype, rngs=nnx.Rngs(0))
    module = linen.Dense(1, param_dtype=dtype)
    variables = module.init(jr.key(0), X[0])
    dense = haiku.without_apply_rng(haiku.transform(lambda x: haiku.Linear(1)(x)))
    params = dense.init(jr.key(0), X[0])
    loops = [
        (js.nets.from_nnx(made), [made, nnx.state(made, nnx.Param)], nnx.state(made, nnx.Param)),
        (js.nets.from_linen(module, variables), [variables, variables["params"]], variables["params"]),
        (js.nets.from_haiku(dense, params), [params], params),
    ]
    for net, given, trained in loops:
        monitor = js.Monitor(js.Problem(net, X, Y), observe=watched, every=1)
        state = OPTIMIZER.init(trained)
        with jax.numpy_dtype_promotion("standard"):
            _, state = OPTIMIZER.update(trained, state, trained)
        for one in given:
            row = monitor(1, one, state)
            assert row is not None
            assert list(row.values())[0] == 0
            assert row["stability"] > 0


def test_networks_of_our_own_are_given_as_they_are():
    """Their hyperparameters are no parameters."""
    net = cases.mlp(jr.key(0))
    monitor = js.Monitor(js.Problem(net, X, jnp.ones((32, 2))), observe=js.observe.update_size(), every=1)
    assert monitor(0, net) == monitor(1, monitor.problem.params) != None  # noqa: E711


def test_the_same_leaves_in_another_order_are_refused():
    """Two matrices of one shape: by shapes alone they would be taken for each other in silence."""
    net = js.nets.Function(
        lambda params, x: params["b"] @ jnp.tanh(params["a"] @ x), {"a": jnp.eye(3), "b": 2 * jnp.eye(3)}
    )
    monitor = js.Monitor(js.Problem(net, X, X), observe=js.observe.loss(), every=1)
    row = monitor(0, {"a": jnp.eye(3), "b": 2 * jnp.eye(3)})
    assert row is not None
    with pytest.raises(
        ValueError, match=r"params holds .* at \['c'\], where the problem's network has \.params\['a'\]"
    ):
        monitor(0, {"c": jnp.eye(3), "d": jnp.eye(3)})


@pytest.mark.usefixtures("as_users")
def test_bad_input():
    monitor, params = js.Monitor(_problem(), observe=_every(), every=10), _parts()[0]
    bad: Any
    for bad in (1.5, "1", None):
        with pytest.raises(TypeError, match="step must be an integer, got"):
            monitor(bad, params)
    with pytest.raises(ValueError, match="step must be >= 0, got -10"):
        monitor(-10, params)
    with pytest.raises(ValueError, match="1 arrays of floats where the problem's network has 6 parameters"):
        monitor(0, jnp.ones(3))
    with pytest.raises(ValueError, match="the steps of adam depend on earlier steps"):
        monitor(0, params)
    with pytest.raises(ValueError, match="is not one of adam for this network"):
        monitor(0, params, optax.sgd(0.1).init(params))
    with pytest.raises(ValueError, match="every must be an integer >= 1"):
        js.Monitor(_problem(), every=0)
    bad = "print"
    with pytest.raises(TypeError, match=r"log must be a function log\(row, step\)"):
        js.Monitor(_problem(), log=bad)
    with pytest.raises(ValueError, match="each observable needs a name of its own"):
        js.Monitor(_problem(), observe=[js.observe.loss(), js.observe.loss()])
    for empty in (lambda: monitor.history, monitor.plot, monitor.diagnosis):
        with pytest.raises(ValueError, match="this monitor has recorded no step yet"):
            empty()
    begun = js.Monitor(_problem(), every=10)
    begun(0, params)
    with pytest.raises(ValueError, match="only step 0 was recorded"):
        begun.diagnosis()


def test_a_network_with_batch_statistics():
    class Net(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __call__(self, x, state):
            x, state = self.norm(self.linear(x), state)
            return x, state

    dtype = jnp.result_type(float)
    norm = eqx.nn.BatchNorm(1, "batch", mode="ema", dtype=dtype)
    made = lambda: Net(eqx.nn.Linear(3, 1, dtype=dtype, key=jr.key(0)), norm)
    net, state = eqx.nn.make_with_state(made)()
    monitor = js.Monitor(js.Problem(net, X, Y, state=state), every=1)
    row = monitor(3, net)
    assert row is not None
    assert row["nonlinearity"] == 0
    monitor(4, jax.tree.map(lambda leaf: leaf + 0.3 * jnp.cos(leaf) if eqx.is_inexact_array(leaf) else leaf, net))
    (name,) = (item.name for item in monitor.observe if item.name.endswith("kernel_change"))
    found = monitor.diagnosis().findings["kernel_change"].value
    assert found > 0.1
    np.testing.assert_allclose(monitor.history[name][-1], found, rtol=cases.eps(1e4))


def test_the_picture_has_a_panel_for_each_observable():
    monitor, _, _ = _loop()
    axes = [ax for ax in monitor.plot().axes if ax.get_visible()]
    assert [ax.get_ylabel() for ax in axes][:2] == ["loss", "kernel change"]
    assert len(axes) == len(_every())
    legend = axes[6].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["layers[0]", "layers[1]", "layers[2]"]
