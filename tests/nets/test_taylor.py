import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxsolve import Descent, FrozenKernel, GradientFlow, kernels, nets, observe, Problem, solve, sweep
from tests.cases import assert_fails, eps, mlp


def _moved(net, key, by=0.3):
    """A network with other parameters, of the same kind."""
    params, rest = nets.partition(net)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    moved = [p + by * jax.random.normal(k, p.shape, p.dtype) for p, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), rest)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_it_is_that_of_neural_tangents(degree, getkey):
    net, x = mlp(getkey(), "tanh"), jax.random.normal(getkey(), (4, 3))
    other, (start, rest) = _moved(net, getkey()), nets.partition(net)
    f = lambda p, x: jax.vmap(eqx.combine(p, rest))(x)
    expand = kernels.neural_tangents().taylor_expand
    at = nets.partition(other)[0]
    series = nets.taylor_expand(net, degree)
    np.testing.assert_array_equal(jax.vmap(series)(x), jax.vmap(net)(x))
    found = jax.vmap(eqx.tree_at(lambda s: s.net, series, other))(x)
    np.testing.assert_allclose(found, expand(f, start, degree)(at, x), atol=eps(100))
    lower = expand(f, start, degree - 1)(at, x)
    assert_fails(lambda: np.testing.assert_allclose(found, lower, atol=eps(100)))


@pytest.mark.x64_only
def test_it_errs_by_the_next_power(getkey):
    net, x, key = mlp(getkey(), "tanh"), jax.random.normal(getkey(), (4, 3)), getkey()
    for degree in (1, 2):
        series, errors = nets.taylor_expand(net, degree), []
        for by in (0.02, 0.01):
            other = _moved(net, key, by)
            there = jax.vmap(eqx.tree_at(lambda s: s.net, series, other))(x)
            errors.append(jnp.linalg.norm(there - jax.vmap(other)(x)))
        assert abs(jnp.log2(errors[0] / errors[1]) - degree - 1) < 0.1


def test_rates_kernels_and_runs_are_those_of_a_network(getkey):
    net, x, y = mlp(getkey(), "tanh"), jax.random.normal(getkey(), (4, 3)), jax.random.normal(getkey(), (4, 2))
    linear, quadratic = (Problem(nets.taylor_expand(net, degree), x, y) for degree in (1, 2))
    problem = Problem(net, x, y)
    rates = [jax.tree.leaves(one.eta) for one in (problem, linear, quadratic)]
    assert rates[0] == rates[1] == rates[2]
    start = problem.kernel(problem.params, x)
    size = float(jnp.max(jnp.abs(start)))
    for one in (linear, quadratic):
        np.testing.assert_allclose(one.kernel(one.params, x), start, atol=eps(100) * size)
    exact = solve(problem, FrozenKernel(), [0.5])["loss"]
    run = solve(linear, GradientFlow(rtol=1e-5), [0.5], observe=[observe.loss(), observe.kernel_change()])
    np.testing.assert_allclose(run["loss"], exact, rtol=1e-3)
    np.testing.assert_allclose(run["kernel_change"], 0, atol=eps(100))
    moved = eqx.tree_at(lambda series: series.net, quadratic.net, _moved(net, getkey()))
    assert float(kernels.relative_change(quadratic.kernel(nets.partition(moved)[0], x), start)) > 0.01


def test_a_sweep_makes_series_of_its_own(getkey):
    """Of networks whose scale is an axis, each as by itself."""
    x, y, key = jax.random.normal(getkey(), (4, 3)), jax.random.normal(getkey(), (4, 1)), getkey()

    def build(gamma):
        scaling = nets.Scaling.ntk(gamma=gamma)
        net = nets.MLP(in_size=3, out_size=1, width_size=8, depth=1, activation="tanh", scaling=scaling, key=key)
        return Problem(nets.taylor_expand(net, 2), x, y)

    found = sweep(build, {"gamma": [0.1, 1.0]}, Descent(optax.sgd(0.1)), [0.0, 1.0], progress=False)["loss"]
    alone = [solve(build(gamma), Descent(optax.sgd(0.1)), [0.0, 1.0])["loss"] for gamma in (0.1, 1.0)]
    np.testing.assert_allclose(found, alone, rtol=eps(1e3))


def test_a_backward_rule_of_its_own(getkey):
    """The first order needs forward mode, which such a rule alone has not."""

    @jax.custom_vjp
    def square(h):
        return h**2

    square.defvjp(lambda h: (h**2, h), lambda h, g: (2 * h * g,))
    net = nets.Function(lambda w, x: square(w @ x), jax.random.normal(getkey(), (2, 3)))
    other, x = jax.random.normal(getkey(), (2, 3)), jax.random.normal(getkey(), (3,))
    series = nets.taylor_expand(net, 1)
    found = eqx.tree_at(lambda s: s.net.params, series, other)(x)
    np.testing.assert_allclose(found, net(x) + 2 * (net.params @ x) * ((other - net.params) @ x), rtol=eps(100))


@pytest.mark.usefixtures("as_users")
def test_what_has_no_series(getkey):
    with pytest.raises(TypeError, match="net must be a network"):
        nets.taylor_expand(jnp.tanh, 2)
    with pytest.raises(ValueError, match="degree must be an integer >= 1"):
        nets.taylor_expand(mlp(getkey(), "tanh"), 0)
