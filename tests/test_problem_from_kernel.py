"""Training where only a kernel is known."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxsolve import (
    Descent,
    FrozenKernel,
    GradientFlow,
    kernels,
    losses,
    MomentumFlow,
    observe,
    Problem,
    RESULTS,
    solve,
)
from tests.cases import assert_fails, eps, X64


WATCHED = [observe.outputs(), observe.test_outputs()]


def _kernel(getkey, *outputs):
    """A kernel between eight points, of one block or one for each output, and that between three others and these."""
    rows = jax.random.normal(getkey(), (11, *outputs, 30)) / 6
    flat = rows.reshape(-1, 30)
    both = (flat @ flat.T).reshape(rows.shape[:-1] * 2)
    return both[:8, ..., :8, :] if outputs else both[:8, :8], both[8:, ..., :8, :] if outputs else both[8:, :8]


def _data(getkey):
    labels = jnp.arange(8) % 3
    start, start_test = jax.random.normal(getkey(), (8, 3)), jax.random.normal(getkey(), (3, 3))
    return labels, start, start_test


def _cross_entropy(f, y):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(f) * y, axis=1))


@pytest.mark.parametrize("blocks", [(), (3,)], ids=["one block", "blocks"])
def test_its_ntk_is_that_kernel(blocks, getkey):
    kernel, _ = _kernel(getkey, *blocks)
    labels, start, _ = _data(getkey)

    def ntk(scale):
        problem = Problem.from_kernel(scale * kernel, labels, start=start, loss=losses.CrossEntropy())
        return problem.kernel(problem.params, problem.x)

    expected = kernel if blocks else np.einsum("nm,ab->namb", kernel, np.eye(3))
    np.testing.assert_allclose(ntk(1.0), expected, atol=eps(100))
    values, slopes = jax.jit(lambda scale: jax.jvp(ntk, (scale,), (jnp.ones_like(scale),)))(jnp.asarray(2.0))
    np.testing.assert_allclose(values, 2 * expected, atol=eps(200))
    np.testing.assert_allclose(slopes, expected, atol=eps(1e3))


@pytest.mark.parametrize("blocks", [(), (3,)], ids=["one block", "blocks"])
@pytest.mark.parametrize("momentum", [None, 0.8])
def test_cross_entropy_and_momentum_are_those_of_neural_tangents(momentum, blocks, getkey):
    kernel, cross = _kernel(getkey, *blocks)
    labels, start, start_test = _data(getkey)
    rate, steps = 0.4, 5.0
    if momentum is None:
        flow, t = GradientFlow(rtol=1e-4 if not X64 else 1e-8), rate * steps
    else:
        flow = MomentumFlow(tau=rate / (1 - momentum) ** 2, rtol=1e-4 if not X64 else 1e-8)
        t = rate * steps / (1 - momentum)
    problem = Problem.from_kernel(
        kernel, labels, start=start, test=(cross, labels[:3]), start_test=start_test, loss=losses.CrossEntropy()
    )
    run = solve(problem, flow, [t], observe=WATCHED)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        swapped = (lambda k: np.transpose(k, (0, 2, 1, 3))) if blocks else np.asarray
        predict = kernels.neural_tangents().predict.gradient_descent(
            _cross_entropy,
            jnp.asarray(swapped(kernel)),
            jax.nn.one_hot(labels, 3, dtype=kernel.dtype),
            rate,
            momentum,
            trace_axes=() if blocks else (-1,),
        )
        expected = predict(steps, start, start_test, jnp.asarray(swapped(cross)))
        early = predict(steps / 2, start, start_test, jnp.asarray(swapped(cross)))
    for name, values, sooner in zip(("outputs", "test_outputs"), expected, early, strict=True):
        np.testing.assert_allclose(run[name][0], values, atol=3e-7 if X64 else 1e-3)
        assert_fails(lambda n=name, v=sooner: np.testing.assert_allclose(run[n][0], v, atol=1e-2))


def test_for_mse_it_is_the_closed_form(getkey):
    kernel, cross = _kernel(getkey)
    _, start, start_test = _data(getkey)
    y = jax.random.normal(getkey(), (8, 3))
    problem = Problem.from_kernel(kernel, y, start=start, test=(cross, y[:3]), start_test=start_test)
    np.testing.assert_allclose(problem.outputs(problem.params), start, atol=eps())
    exact = kernels.linearized(kernel, y, start=start)
    for dynamics, tolerance in ((FrozenKernel(), eps(100)), (GradientFlow(rtol=1e-4), 1e-3)):
        run = solve(problem, dynamics, [3.0], observe=WATCHED)
        np.testing.assert_allclose(run["outputs"][0], exact.outputs(3.0), atol=tolerance)
        np.testing.assert_allclose(run["test_outputs"][0], exact.predict(3.0, cross, start_test), atol=tolerance)


def test_the_largest_stable_rate_is_that_of_neural_tangents(getkey, monkeypatch):
    """2 (1 + momentum) over the largest rate of the flow, below which descent converges and above which it does not."""
    kernel, _ = _kernel(getkey)
    y, momentum = jax.random.normal(getkey(), (8, 3)), 0.5
    largest = 2 * (1 + momentum) / kernels.linearized(kernel, y).rates[-1]
    nt = kernels.neural_tangents()
    # Its way for processors uses an argument that SciPy has removed.
    monkeypatch.setattr(sys.modules["neural_tangents._src.predict"], "_is_on_cpu", lambda kernel: False)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        its = nt.predict.max_learning_rate(kernel, y.size, momentum)
    # Its loss is an average over the three outputs, and it adds 1e-12 to the eigenvalue.
    np.testing.assert_allclose(3 * largest, its, rtol=eps(100) + 1e-11)
    problem = Problem.from_kernel(kernel, y, start=jnp.zeros((8, 3)))
    ends = []
    for share in (0.9, 1.1):
        rate = float(share * largest)
        steps = Descent(optax.sgd(rate, momentum=momentum))
        ends.append(solve(problem, steps, [100 * rate / (1 - momentum)], throw=False))
    assert ends[0]["loss"][0] < problem.objective(problem.params)
    assert ends[1].result == RESULTS.diverged


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": jnp.zeros((8, 7))}, "kernel"),
        ({"kernel": -jnp.eye(8)}, "not positive semi-definite"),
        ({"start": jnp.zeros(8)}, r"start must have shape \(8, c\)"),
        ({"kernel": jnp.eye(16).reshape(8, 2, 8, 2)}, r"start must have shape \(8, 2\)"),
        ({"test": (jnp.zeros((3, 7)), jnp.zeros((3, 3)))}, r"cross must have shape \(m, 8\)"),
        ({"test": (jnp.zeros((3, 8)), jnp.zeros((3, 3))), "start_test": jnp.zeros((2, 3))}, "start_test must have"),
        ({"y": jnp.zeros((7, 3))}, "8 inputs but its targets"),
        ({"start_test": jnp.zeros((3, 3))}, "start_test is given without test"),
        ({"start": jnp.full((8, 3), jnp.nan)}, "start holds"),
        ({"kernel": jnp.eye(8).reshape(8, 1, 8, 1)}, r"start must have shape \(8, 1\)"),
    ],
)
def test_what_does_not_fit(change, message):
    given = {"kernel": jnp.eye(8), "y": jnp.zeros((8, 3)), "start": jnp.zeros((8, 3))} | change
    with pytest.raises(ValueError, match=message):
        Problem.from_kernel(**given)
