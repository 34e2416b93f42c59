"""Random projections of outputs stand for all of them: on average, with the variance that theory has."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js

from ..cases import eps


NET = eqx.nn.MLP(3, 40, 8, 1, jnp.tanh, key=jr.key(0))
X = jr.normal(jr.key(1), (4, 3))


def projected(count, key, net=NET):
    return js.kernels.Projected(net, count, key=key)


def test_the_kernel_is_that_of_the_signs_by_hand():
    key = jr.key(5)
    whole = js.kernels.empirical(NET, X).ntk
    signs = jr.rademacher(key, (3, 40), whole.dtype)
    by_hand = jnp.einsum("pa,iajb,pb->ij", signs, whole, signs) / 3
    found = js.kernels.empirical(projected(3, key), X, trace=True).ntk
    np.testing.assert_allclose(found, by_hand, rtol=eps(100), atol=eps(100) * float(jnp.max(by_hand)))


def test_on_average_it_is_the_trace_and_varies_as_said():
    whole = js.kernels.empirical(NET, X).ntk
    trace = jnp.einsum("iaja->ij", whole)
    kernels = jax.lax.map(
        lambda key: js.kernels.empirical(projected(2, key), X, trace=True).ntk, jr.split(jr.key(2), 400)
    )
    error = jnp.std(kernels, axis=0)
    # Of one sample's block, symmetric: variance 2/count times the squares off its diagonal.
    block = whole[0, :, 0]
    expected = jnp.sqrt(2 / 2 * (jnp.sum(block**2) - jnp.sum(jnp.diag(block) ** 2)))
    np.testing.assert_allclose(error[0, 0], expected, rtol=0.15)  # of 400 draws: 4 % by itself
    np.testing.assert_allclose(jnp.mean(kernels, axis=0), trace, atol=4 * float(jnp.max(error)) / 400**0.5)
    # The bound holds of every entry; the twin, with four times the projections, would be half as wide.
    norms = jnp.sqrt(jnp.sum(whole**2, axis=(1, 3)))
    assert jnp.all(error <= 1.15 * norms)
    assert error[0, 0] > 1.5 * expected / 2


def test_rates_go_with_the_network():
    eta = jax.tree.map(lambda leaf: jnp.asarray(float(leaf.ndim), leaf.dtype), eqx.filter(NET, eqx.is_inexact_array))
    seen = projected(4, jr.key(3))
    found = js.kernels.empirical(seen, X, eta=seen.rates(eta), trace=True).ntk
    whole = js.kernels.empirical(NET, X, eta=eta).ntk
    signs = jr.rademacher(jr.key(3), (4, 40), whole.dtype)
    by_hand = jnp.einsum("pa,iajb,pb->ij", signs, whole, signs) / 4
    np.testing.assert_allclose(found, by_hand, rtol=eps(100), atol=eps(100) * float(jnp.max(by_hand)))


def test_traced_observables_take_them():
    problem = js.Problem(NET, X, jnp.zeros((4, 40)))
    moved = jax.tree.map(lambda leaf: 1.2 * leaf, problem.params)
    change = js.observe.kernel_change()
    view = js.View(problem, jnp.zeros(()), moved)
    exact = float(js.observe.traced(change)(view))
    several = [float(js.observe.traced(change, projections=16, seed=seed)(view)) for seed in range(3)]
    assert len(set(several)) == 3
    np.testing.assert_allclose(several, exact, rtol=0.2)
    # A monitor that holds the whole kernel of the start compares like with like.
    watched = [js.observe.traced(change, projections=16), js.observe.kernel_norm()]
    watched[1] = js.observe.Observable("norm", watched[1].fn, js.Quantity.KERNEL)
    row = js.Monitor(problem, observe=watched, every=1)(0, moved)
    assert row is not None
    np.testing.assert_allclose(row["kernel_change"], several[0], rtol=eps(1e4))


@pytest.mark.parametrize("count", [0, 1.5, "two"])
@pytest.mark.usefixtures("as_users")
def test_bad_counts(count):
    with pytest.raises((TypeError, ValueError), match="count must be an integer >= 1"):
        projected(count, jr.key(0))
    with pytest.raises((TypeError, ValueError), match="projections must be an integer >= 1"):
        js.observe.traced(js.observe.kernel_change(), projections=count)
    with pytest.raises((TypeError, ValueError), match="projections must be an integer >= 1"):
        js.diagnose(NET, X, jnp.zeros((4, 40)), projections=count)
