"""Regression in context: its sequences, and the few that have the same moments."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


COVARIANCE = np.array([[0.5, 0.2, 0.0], [0.2, 0.4, -0.1], [0.0, -0.1, 0.3]])


def test_pairs_of_a_sequence_tell_its_weights():
    data = js.data.in_context(7, COVARIANCE, 5, n_test=3, key=jr.key(0))
    assert data.x.shape == (7, 6, 4)
    assert data.test is not None
    assert data.test[0].shape == (3, 6, 4)
    for x, y in zip(data.x, data.y, strict=True):
        weights, *_ = np.linalg.lstsq(x[:-1, :-1], x[:-1, -1], rcond=None)
        np.testing.assert_allclose(x[-1, :-1] @ weights, y[0], rtol=1e-3, atol=cases.eps(1e4))
        assert x[-1, -1] == 0
    np.testing.assert_array_equal(js.data.in_context(7, COVARIANCE, 5, key=jr.key(0)).x, data.x)


def test_inputs_have_the_covariance():
    x = js.data.in_context(4000, COVARIANCE, 9, key=jr.key(1)).x[..., :-1].reshape(-1, 3)
    np.testing.assert_allclose(x.T @ x / len(x), COVARIANCE, atol=5 * 0.8 / np.sqrt(len(x)))


@pytest.mark.parametrize("covariance", [COVARIANCE, np.array([0.4, 0.3, 0.0])], ids=["matrix", "singular"])
def test_moments_are_those_printed(covariance):
    data, full = js.data.in_context_moments(covariance, 7), covariance if covariance.ndim == 2 else np.diag(covariance)
    z = np.einsum("ni,nj->nij", data.x[:, 0, :-1] * data.x[:, 0, -1:], data.x[:, 1, :-1]).reshape(len(data.x), -1)
    y, n = np.asarray(data.y)[:, 0], len(z)
    second = full @ full + (full @ full + np.trace(full) * full) / 7
    close = lambda found, wanted: np.testing.assert_allclose(found, wanted, atol=cases.eps(20))
    close(z.T @ z / n, np.kron(second, full))
    close(y @ z / n, (full @ full).ravel())
    close(y @ y / n, np.trace(full))


@pytest.mark.parametrize("rank", [None, 1])
def test_gradient_is_the_mean_over_sequences(rank):
    """Within five standard errors of 20 batches; with another length of the context it is not."""
    arrays = 2 if rank is None else 3
    scaling = js.nets.Scaling([1.0] * arrays, [0.8] * arrays, [1.0] * arrays)
    make = lambda tokens: js.nets.LinearAttention(
        in_shape=(tokens, 4), heads=3, rank=rank, scaling=scaling, key=jr.key(2)
    )
    flat = lambda tree: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])

    @jax.jit
    def sampled(key):
        problem = js.Problem(make(5), *js.data.in_context(4000, COVARIANCE, 4, key=key).train)
        return problem.objective(problem.params), flat(jax.grad(problem.objective)(problem.params))

    losses, gradients = (np.asarray(found) for found in jax.lax.map(sampled, jr.split(jr.key(3), 20)))

    def check(context):
        problem = js.Problem(make(2), *js.data.in_context_moments(COVARIANCE, context).train)
        gradient = flat(jax.grad(problem.objective)(problem.params))
        for found, wanted in ((losses, problem.objective(problem.params)), (gradients, gradient)):
            assert np.all(np.abs(found.mean(0) - wanted) < 5 * found.std(0, ddof=1) / np.sqrt(len(found)))

    check(4)
    cases.assert_fails(lambda: check(8))


@pytest.mark.usefixtures("as_users")
def test_bad_arguments():
    for make in (js.data.in_context_moments, lambda *given: js.data.in_context(3, *given, key=jr.key(0))):
        with pytest.raises(ValueError, match=r"shape \(D,\)"):
            make(1.0, 3)
        with pytest.raises(ValueError, match="negative eigenvalue"):
            make(np.array([1.0, -1.0]), 3)
        with pytest.raises(ValueError, match="context"):
            make(np.array([1.0]), 0)
    with pytest.raises(ValueError, match="positive eigenvalue"):
        js.data.in_context_moments(np.zeros(2), 3)
