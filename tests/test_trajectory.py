import functools
import json

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import xarray

from jaxsolve import Certificate, Descent, GradientFlow, observe, result_names, solve, until
from tests import cases


@functools.cache
def _run():
    wanted = [observe.loss(), observe.outputs(), observe.weight_norms(), observe.kernel_change()]
    problem = cases.problem(cases.mlp(jr.key(0), depth=1), jr.key(1))
    return solve(problem, GradientFlow(until=until.loss_fraction(1e-6)), [0.0, 0.5, 2.0], observe=wanted)


@functools.cache
def _modes_run(ts=(0.0, 0.5)):
    return solve(cases.modes([1.0], [1.0]), Descent(optax.sgd(0.25)), ts)


def test_indexing():
    assert _run()["loss"] is _run().observed["loss"]
    expected = r"'kernel' was not observed; observed: \['kernel_change', 'loss', 'outputs', 'weight_norms'\]"
    with pytest.raises(KeyError, match=expected):
        _run()["kernel"]
    assert _run().final.net.weights[0].shape == (5, 3)
    np.testing.assert_allclose(jax.vmap(_run().final.net)(_run().final.problem.x), _run()["outputs"][-1], rtol=1e-5)


def test_to_xarray():
    run, data = _run(), _run().to_xarray()
    assert {name: data[name].dims for name in data} == {
        "loss": ("t",),
        "outputs": ("t", "sample", "output"),
        "weight_norms": ("t", "layer"),
        "kernel_change": ("t",),
    }
    for name in run.observed:
        np.testing.assert_array_equal(data[name], run[name])
    units = {name: data[name].attrs["units"] for name in data}
    assert units == {"loss": "loss", "outputs": "output", "weight_norms": "weight", "kernel_change": "1"}
    np.testing.assert_array_equal(data.t, run.ts)
    assert data.t.attrs["units"] == "gradient-flow time"
    assert data.attrs["dynamics"] == "GradientFlow(Tsit5)"
    assert data.attrs["result"] == "max_time"
    assert data.attrs["t_end"] == 2.0
    assert data.attrs["steps"] == int(run.stats.steps) > 0
    assert data.attrs["rejected"] == int(run.stats.rejected)
    assert run.certificate is not None
    assert data.attrs["energy_balance"] == float(run.certificate.energy_balance)
    assert json.dumps(data.attrs)  # can be written to any file


def test_to_xarray_of_one_time_and_without_certificate():
    data = _modes_run(0.5).to_xarray()
    assert data["loss"].dims == ()
    assert data.t.dims == ()
    assert float(data.t) == 0.5
    assert "energy_balance" not in data.attrs


def test_to_xarray_survives_a_file(tmp_path):
    data = _run().to_xarray()
    data.to_zarr(tmp_path / "run.zarr", consolidated=False, zarr_format=3)
    with xarray.open_zarr(tmp_path / "run.zarr", consolidated=False) as back:
        kept = {name: value for name, value in data.attrs.items() if value == value}
        xarray.testing.assert_equal(back, data)
        assert {name: back.attrs[name] for name in kept} == kept


def test_repr():
    text = repr(_run())
    lines = text.splitlines()
    run = _run()
    assert lines[0] == "Trajectory of GradientFlow(Tsit5): max_time, t_end = 2"
    assert lines[1] == f"  3 time(s) from 0 to 2; {run.stats.steps} steps, {run.stats.rejected} rejected"
    dtype = jnp.result_type(float)
    assert lines[2] == f"  loss: (3,) {dtype} [loss]  {run['loss'][0]:.4g} -> {run['loss'][-1]:.4g}"
    assert lines[3] == f"  outputs: (3, 4, 2) {dtype} [output]"
    assert lines[-2].startswith("  Certificate(")
    assert "energy balance" in lines[-2]
    # observed; parameters at the start and the end; data; hyperparameters; the last time
    assert f"memory: {run.nbytes / 1e6:.3g} MB" in lines[-1]
    numbers = 3 * (1 + 8 + 2 + 1) + 2 * (15 + 5 + 10 + 2) + (4 * 3 + 4 * 2) + (3 * 2 + 3) + 1
    assert run.nbytes == numbers * dtype.itemsize


def test_stats_print_their_numbers():
    stats = _run().stats
    text = f"Stats(steps={stats.steps}, rejected={stats.rejected}, gradient_evaluations={stats.gradient_evaluations}, "
    assert repr(stats) == text + "kernel_evaluations=0, integrator='Tsit5')"
    inside = []
    jax.make_jaxpr(lambda stats: inside.append(repr(stats)))(stats)
    assert inside[0].startswith("Stats(steps=traced, ")


def test_repr_of_one_time_and_without_certificate():
    assert "1 time(s) from 0.5 to 0.5; 2 steps" in repr(_modes_run(0.5))
    assert "Certificate" not in repr(_modes_run())


def test_repr_inside_a_trace_and_of_a_batch():
    seen = []

    def run(w):
        trajectory = solve(cases.modes(w[None], [1.0]), Descent(optax.sgd(0.25)), [0.0, 0.5])
        seen.append(repr(trajectory))
        return trajectory

    batch = jax.vmap(run)(jnp.ones(3))
    jax.jit(run)(jnp.array(1.0))
    expected = "Trajectory(Descent(sgd), traced or batched, observed=['loss'])"
    assert {*seen, repr(batch)} == {expected}
    assert batch["loss"].shape == (3, 2)


def test_is_a_pytree():
    run = _modes_run()
    doubled = jax.tree.map(lambda leaf: 2 * leaf, run.observed)
    np.testing.assert_array_equal(doubled["loss"], 2 * run["loss"])
    leaves, structure = jax.tree.flatten(run)
    assert jax.tree.unflatten(structure, leaves).labels == run.labels


def test_float32():
    """A float32 problem stays float32, whatever the default."""
    problem = cases.modes(jnp.array([2.0, -1.0], jnp.float32), jnp.array([1.0, 3.0], jnp.float32))
    exact = 0.5 * (4 * np.exp(-2 * np.array([0.0, 0.3, 2.0])) + 3 * np.exp(-6 * np.array([0.0, 0.3, 2.0])))
    for dynamics, tolerance in ((GradientFlow(), 1e-4), (Descent(optax.sgd(1e-3)), 1e-2), (cases.ModesDecay(), 1e-6)):
        run = solve(problem, dynamics, [0.0, 0.3, 2.0])
        np.testing.assert_allclose(run["loss"], exact, rtol=tolerance)
        assert run["loss"].dtype == run.ts.dtype == run.t_end.dtype == jnp.float32
        assert all(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(run.final))
        assert " float32 [loss]" in repr(run)


def test_a_certificate_prints_no_more_digits_than_its_dtype_has():
    assert repr(Certificate.of_spectrum(jnp.zeros((), jnp.float32))).startswith("Certificate(6.9 digits")


def test_names_of_results():
    assert [str(name) for name in result_names([0, 8, -1])] == ["successful", "unstable", "not_run"]
    for bad, error in ((9, ValueError), (-2, ValueError), (0.5, TypeError)):
        with pytest.raises(error, match="codes must"):
            result_names(bad)
