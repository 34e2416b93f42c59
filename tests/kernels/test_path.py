"""The function that moving kernels learn."""

import functools

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import GradientFlow, kernels, nets, observe, Problem, solve


@functools.cache
def _run(steps):
    """A network that learns features: its kernels do not commute."""
    x = jr.normal(jr.key(1), (7, 3))
    net = nets.MLP(3, 6, 1, 2, "tanh", scaling=nets.Scaling.standard(), key=jr.key(0))
    y = jnp.concatenate([x[:, :1] * x[:, 1:2], jnp.sign(x[:, 2:])], axis=1)
    problem = Problem(net, x[:4], y[:4], test=(x[4:], y[4:]))
    watched = [observe.kernel(), observe.cross_kernel(), observe.outputs(), observe.test_outputs()]
    ts = jnp.linspace(0, 6, steps + 1)
    return problem, solve(problem, GradientFlow(rtol=1e-9, atol=1e-11, land_on_ts=True), ts, observe=watched)


def _errors(steps):
    problem, run = _run(steps)
    first = {"start": run["outputs"][0], "cross_start": run["test_outputs"][0]}
    path = kernels.along_path(run.ts, run["kernel"], problem.y, cross=run["cross_kernel"], **first)
    assert path.predictions is not None
    pairs = ((path.outputs, run["outputs"]), (path.predictions, run["test_outputs"]))
    return np.array([float(jnp.max(jnp.abs(found - truth))) for found, truth in pairs])


@pytest.mark.x64_only
def test_the_run_follows_from_its_kernels_to_second_order():
    coarse, fine = _errors(20), _errors(40)
    orders = np.log2(coarse / fine)
    assert np.all(orders > 1.8)
    assert np.all(fine < 0.02)


@pytest.mark.x64_only
def test_the_exponential_is_ordered_in_time():
    """Twin: equation 2 as printed, with the exponential of the kernel's integral, errs however fine the steps."""
    problem, run = _run(40)
    n = len(problem.x)
    matrices = np.asarray(run["kernel"]).reshape(41, 8, 8)
    dt = np.diff(np.asarray(run.ts))[:, None, None]
    total = (dt * (matrices[1:] + matrices[:-1]) / 2).sum(0) / n
    values, vectors = np.linalg.eigh(total)
    gap = np.asarray(problem.y - run["outputs"][0]).ravel()
    printed = np.asarray(problem.y).ravel() - vectors @ (np.exp(-values) * (vectors.T @ gap))
    truth = np.asarray(run["outputs"][-1]).ravel()
    assert np.abs(printed - truth).max() > 5 * _errors(40)[0]


def test_a_kernel_that_stands_still_is_exact():
    kernel, y = jnp.array([[2.0, 1.0], [1.0, 3.0]]), jnp.array([[1.0], [-1.0]])
    path = kernels.along_path(jnp.array([0.0, 5.0]), jnp.stack([kernel, kernel]), y, cross=jnp.ones((2, 1, 2)))
    flow = kernels.linearized(kernel, y)
    np.testing.assert_allclose(path.outputs[1], flow.outputs(5.0), rtol=1e-5)
    assert path.predictions is not None
    np.testing.assert_allclose(path.predictions[1], flow.predict(5.0, jnp.ones((1, 2))), rtol=1e-5, atol=1e-6)
    assert kernels.along_path(jnp.array([0.0, 5.0]), jnp.stack([kernel, kernel]), y).predictions is None


def test_what_is_refused(as_users):
    kernel, y = jnp.eye(2)[None].repeat(2, 0), jnp.ones((2, 1))
    with pytest.raises(ValueError, match="a kernel for each"):
        kernels.along_path(jnp.array([0.0, 1.0, 2.0]), kernel, y)
    with pytest.raises(ValueError, match="ascend"):
        kernels.along_path(jnp.array([1.0, 0.0]), kernel, y)
