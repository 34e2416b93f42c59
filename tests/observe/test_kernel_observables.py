"""Observables of the kernel's spectrum, classes and centered alignment, against NumPy on a kernel by hand."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import FrozenKernel, GradientFlow, observe, Problem, solve, View
from tests import cases
from tests.inside import check_observables


N, C = 6, 2
OBSERVABLES = {
    item.name: item
    for item in (
        observe.kernel_trace(),
        observe.kernel_effective_rank(),
        observe.kernel_participation_ratio(),
        observe.kernel_entropy(),
        observe.kernel_spectrum(5),
        observe.kernel_target_power(5),
        observe.kernel_centered_distance(),
        observe.kernel_centered_alignment(),
        observe.kernel_by_class(),
        observe.kernel_within_class(),
        observe.kernel_between_classes(),
    )
}


@functools.cache
def _problem():
    net = cases.mlp(jr.key(0))
    y = 1.5 * jax.nn.one_hot(jnp.asarray([0, 1, 1, 0, 1, 0]), C) + 0.2 * jr.normal(jr.key(3), (N, C))
    return Problem(net, cases.inputs(jr.key(1), N), y)


@functools.cache
def _rows():
    """All observables at two sets of parameters, the second those of the start, in one compiled program."""
    problem = _problem()
    params = jax.tree.map(lambda *a: jnp.stack(a), cases.randomized(problem.params, jr.key(2)), problem.params)
    read = lambda p: {name: item(View(problem, jnp.zeros(()), p)) for name, item in OBSERVABLES.items()}
    return params, jax.jit(jax.vmap(read))(params)


def _kernel(params):
    """By central differences of outputs in NumPy; rows are (sample, output)."""
    hand = cases.by_hand(_problem(), "tanh")
    theta, step = np.asarray(ravel_pytree(params)[0], float), 1e-5
    moved = [(hand.outputs(theta + e) - hand.outputs(theta - e)).ravel() for e in step * np.eye(theta.size)]
    jacobian = np.array(moved).T / (2 * step)
    return (jacobian * hand.eta) @ jacobian.T


@functools.cache
def _expected():
    params, _ = _rows()
    k, k0 = (_kernel(jax.tree.map(lambda a, row=row: a[row], params)) for row in (0, 1))
    y = np.asarray(_problem().y)
    h = np.kron(np.eye(N) - 1 / N, np.eye(C))
    unit = lambda a: a / np.linalg.norm(a)
    values, vectors = np.linalg.eigh(k)
    values, p = values[::-1], values[::-1] / np.trace(k)
    centered = (y - y.mean(0)).ravel()
    average = k.reshape(N, C, N, C).trace(axis1=1, axis2=3) / C
    first, second = (0, 3, 5), (1, 2, 4)
    mean = lambda a, b, skip: np.mean([average[i, j] for i in a for j in b if i != j or not skip])
    between = mean(first, second, False)
    return {
        "kernel_trace": np.trace(k),
        "kernel_effective_rank": np.exp(-np.sum(p * np.log(p))),
        "kernel_participation_ratio": np.trace(k) ** 2 / np.sum(k**2),
        "kernel_entropy": -np.sum(p * np.log(p)),
        "kernel_spectrum": values[:5],
        "kernel_target_power": np.cumsum((vectors[:, ::-1].T @ unit(y.ravel())) ** 2)[:5],
        "kernel_centered_distance": 1 - np.sum(unit(h @ k @ h) * unit(h @ k0 @ h)),
        "kernel_centered_alignment": np.sum(unit(h @ k @ h) * unit(np.outer(centered, centered))),
        "kernel_by_class": [[mean(first, first, False), between], [between, mean(second, second, False)]],
        "kernel_within_class": [mean(first, first, True), mean(second, second, True)],
        "kernel_between_classes": [[np.nan, between], [between, np.nan]],
    }


@pytest.mark.x64_only
@pytest.mark.parametrize("name", OBSERVABLES)
def test_formula(name):
    observable, value = OBSERVABLES[name], np.asarray(_rows()[1][name])[0]
    expected = np.asarray(_expected()[name])
    assert getattr(observe, name)().name == name
    assert value.ndim == len(observable.dims)
    close = lambda expected: np.testing.assert_allclose(value, expected, rtol=1e-8)  # the finite differences' own error
    close(expected)
    # The same of the kernel at the start.
    cases.assert_fails(lambda: np.testing.assert_allclose(_rows()[1][name][1], expected, rtol=1e-3))


@pytest.mark.parametrize("name", OBSERVABLES)
def test_at_the_start_and_dtypes(name):
    found = np.asarray(_rows()[1][name])
    assert found.dtype == jnp.result_type(float)
    if name == "kernel_centered_distance":
        np.testing.assert_allclose(found[1], 0, atol=cases.eps(10))
    else:
        assert not np.allclose(found[0], found[1])


def test_classes_of_one_column_are_its_signs():
    kernel = jnp.arange(16.0).reshape(4, 1, 4, 1)
    problem = cases.modes([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0])
    problem = Problem(problem.net, problem.x, jnp.asarray([[1.0], [-2.0], [0.0], [3.0]]))
    view = View(problem, jnp.zeros(()), given_kernel=kernel)
    k, first, second = np.asarray(kernel[:, 0, :, 0]), [1, 2], [0, 3]
    expected = [[k[np.ix_(a, b)].mean() for b in (first, second)] for a in (first, second)]
    np.testing.assert_allclose(observe.kernel_by_class()(view), expected, rtol=cases.eps(10))
    assert len(check_observables(list(OBSERVABLES.values()), FrozenKernel())) == len(OBSERVABLES)
    with pytest.raises(ValueError, match="needs kernel, but ModesDecay provides only"):
        check_observables(observe.kernel_entropy(), cases.ModesDecay())


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("name", ["kernel_by_class", "kernel_within_class", "kernel_between_classes"])
def test_a_run_without_a_sample_of_a_class_is_refused(name):
    problem = cases.modes([1.0, 0.5], [1.0, 3.0])  # whose targets are 0: all of them negative
    with pytest.raises(ValueError, match="no target is of class 1; leave its column out"):
        solve(problem, GradientFlow(), [0.0, 0.5], observe=OBSERVABLES[name])


def test_along_a_run():
    """The kernel of f = w x is x x^T whatever w: nothing moves, and the trajectory has the shapes of the dims."""
    problem = cases.modes([1.0, 0.5], [1.0, 3.0])
    items = [observe.kernel_spectrum(2), observe.kernel_trace()]
    run = solve(problem, GradientFlow(), jnp.asarray([0.0, 0.5]), observe=items)
    np.testing.assert_allclose(run["kernel_spectrum"], [[6, 2], [6, 2]], rtol=cases.eps(20))
    np.testing.assert_allclose(run["kernel_trace"], [8, 8], rtol=cases.eps(20))


def test_by_default_as_many_as_there_are_up_to_ten():
    """Of a kernel of 2 and of 12 eigenvalues."""
    problem = Problem(_problem().net, _problem().x[:1], jnp.array([[1.0, 3.0]]))
    small = View(problem, jnp.zeros(()), given_kernel=jnp.diag(jnp.array([6.0, 2.0])).reshape(1, 2, 1, 2))
    np.testing.assert_allclose(observe.kernel_spectrum()(small), [6, 2], rtol=cases.eps(20))
    np.testing.assert_allclose(observe.kernel_target_power()(small), [0.1, 1], rtol=cases.eps(20))
    large = View(_problem(), jnp.zeros(()), given_kernel=jnp.diag(jnp.arange(12.0)).reshape(6, 2, 6, 2))
    np.testing.assert_allclose(observe.kernel_spectrum()(large), np.arange(11, 1, -1), rtol=cases.eps(20))
    assert observe.kernel_target_power()(large).shape == (10,)


def test_a_kernel_of_zeros_has_zeros():
    view = View(_problem(), jnp.zeros(()), given_kernel=jnp.zeros((6, 2, 6, 2)))
    np.testing.assert_array_equal(observe.kernel_spectrum()(view), np.zeros(10))
    np.testing.assert_array_equal(observe.kernel_trace()(view), 0)


@pytest.mark.parametrize("make", [observe.kernel_spectrum, observe.kernel_target_power])
@pytest.mark.usefixtures("as_users")
def test_how_many(make):
    view = View(_problem(), jnp.zeros(()), given_kernel=jnp.eye(12).reshape(6, 2, 6, 2))
    with pytest.raises(ValueError, match="has 12 eigenvalues, but top is 13"):
        make(13)(view)
    with pytest.raises(ValueError, match="top must be an integer >= 1, got 0"):
        make(0)
    assert make(3).fn == make(3).fn  # so that a fresh one does not recompile
