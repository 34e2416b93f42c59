"""The function that moving kernels learn."""

import functools

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import GradientFlow, kernels, nets, observe, Problem, solve
from tests.cases import assert_fails, eps


@functools.cache
def _run(steps):
    """A network that learns features: its kernels do not commute."""
    x = jr.normal(jr.key(1), (7, 3))
    net = nets.MLP(
        in_size=3, out_size=2, width_size=6, depth=1, activation="tanh", scaling=nets.Scaling.standard(), key=jr.key(0)
    )
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


@pytest.mark.slow
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


def _small_until_it_turns(small, eps, a):
    """Appendix A: a kernel of size `small` that turns, then one that only grows; f_0 ~ eps^a. Errors of (14), (15)."""
    features = jr.normal(jr.key(4), (3, 6, 8))  # of four training points and two others, three kernels
    kernel = features @ features.transpose(0, 2, 1)
    sizes = jnp.array([small, small, small, 0.5, 0.5, 1.0])[:, None, None]  # the jumps take no time
    matrices = sizes * kernel[jnp.array([0, 0, 1, 2, 2, 2])]
    ts = jnp.array([0.0, 1.0, 2.0, 2.0, 4.0, 1e4])
    y, start = jr.normal(jr.key(5), (4, 1)), eps**a * jr.normal(jr.key(6), (6, 1))
    among, cross = matrices[:, :4, :4], matrices[:, 4:, :4]
    found = kernels.along_path(ts, among, y, start=start[:4], cross=cross, cross_start=start[4:])
    assert found.predictions is not None
    regression = kernels.regression(among[-1], y, start=start[:4]).predict(cross[-1], start[4:])
    without_start = kernels.regression(among[-1], y).predict(cross[-1])
    return [float(jnp.linalg.norm(found.predictions[-1] - one)) for one in (regression, without_start)]


@pytest.mark.x64_only
@pytest.mark.parametrize("a", [0.5, 0.75, 1.5])
def test_a_kernel_that_turns_while_it_is_small_leaves_regression_with_the_last_one(a):
    """To O(eps) with the start's outputs, and to O(eps^min(1, a)) without. Twin: one that turns at its full size."""

    def orders(size):
        errors = np.array([_small_until_it_turns(size(eps), eps, a) for eps in (1e-8, 1e-10)])
        np.testing.assert_allclose(np.log(errors[0] / errors[1]) / np.log(1e2), [1, min(1, a)], atol=0.02)

    orders(lambda eps: eps)
    assert_fails(lambda: orders(lambda eps: 1.0))


def test_what_is_refused(as_users):
    kernel, y = jnp.eye(2)[None].repeat(2, 0), jnp.ones((2, 1))
    with pytest.raises(ValueError, match="a kernel for each"):
        kernels.along_path(jnp.array([0.0, 1.0, 2.0]), kernel, y)
    with pytest.raises(ValueError, match="ascend"):
        kernels.along_path(jnp.array([1.0, 0.0]), kernel, y)


def test_for_ever_with_a_kernel_of_low_rank():
    """What the kernel does not see is never learnt, and rounding does not become a rate."""
    features = jr.normal(jr.key(0), (6, 2))
    kernel, y = features @ features.T, jr.normal(jr.key(1), (6, 1))
    ts, twice = jnp.array([0.0, jnp.inf]), jnp.stack([kernel, kernel])
    path = kernels.along_path(ts, twice, y, cross=twice[:, :2])
    flow = kernels.linearized(kernel, y)
    assert path.predictions is not None
    np.testing.assert_allclose(path.outputs[1], flow.outputs(jnp.inf), atol=eps(1e3))
    np.testing.assert_allclose(path.predictions[1], flow.outputs(jnp.inf)[:2], atol=eps(1e3))
