"""Closed forms where something ends or never begins: layers without end, layers that stand still, rounding."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests.cases import eps, X64
from tests.inside import safe_hypot


WATCHED = (js.observe.loss(), js.observe.outputs(), js.observe.layer_alignment(), js.observe.kernel_norm())


@pytest.mark.slow
def test_layers_on_separable_data_end_at_infinity():
    """A sample at the origin learns nothing, and the layers are parallel; none of this is NaN."""
    net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jr.key(0))
    x = jnp.array([[0.0, 0.0], [1.0, 0.0], [-2.0, 0.0]])
    problem = js.Problem(net, x, jnp.array([1.0, 1.0, -1.0]), loss=js.losses.Logistic())
    run = js.solve(problem, js.theory.TwoLayerLine(), [0.0, 10.0, jnp.inf], observe=WATCHED)
    np.testing.assert_array_equal(run["outputs"][-1].ravel(), [0, jnp.inf, -jnp.inf])
    np.testing.assert_allclose(run["loss"][-1], np.log(2) / 3, rtol=eps(100))
    assert abs(run["layer_alignment"][-1].item()) == 1
    assert run["kernel_norm"][-1] == np.inf


def test_hypotenuses():
    sides = [(3.0, 4.0, 5.0), (np.inf, 1.0, np.inf), (2.0, -np.inf, np.inf), (np.inf, np.inf, np.inf), (0.0, 0.0, 0.0)]
    for one, two, expected in sides:
        np.testing.assert_allclose(safe_hypot(jnp.asarray(one), jnp.asarray(two)), expected)
    slopes = jax.grad(lambda pair: safe_hypot(pair[0], pair[1]))
    np.testing.assert_allclose(slopes(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=eps(10))
    assert np.all(np.isfinite(slopes(jnp.zeros(2))))


@pytest.mark.parametrize("width", [1, 2, 3, 10])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.0, 3.0])
def test_narrow_networks_have_a_regime(width, sigma):
    found = js.theory.classify_network(width, sigma_u=sigma, sigma_w=sigma, eta_u=0.3, eta_w=0.3)
    assert np.isfinite(found.kernel_change)
    nearly = js.theory.classify_network(width, sigma_u=sigma, sigma_w=sigma * (1 + 1e-7))
    assert np.isfinite(nearly.kernel_change)


def test_layers_of_zeros_are_frozen():
    found = js.theory.classify_network(10, sigma_u=0.0, sigma_w=0.0)
    assert found.regime is js.observe.Regime.FROZEN
    assert found.timescale.t_c == np.inf


def test_a_first_layer_that_stands_still_never_aligns():
    times = []
    for read_out in (0.1, 0.0):
        scaling = js.nets.Scaling([1.0, 1.0], [0.1, read_out], [1.0, 1.0])
        net = js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=scaling, key=jr.key(0))
        times.append(js.theory.alignment_time(js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))))
    assert np.isfinite(times[0])
    assert times[1] == np.inf


@pytest.mark.parametrize(("w", "a"), [((100.0, 0.0), 0.01), ((0.01, 0.0), 100.0)])
def test_small_halves_of_a_preconditioner_do_not_cancel(w, a):
    beta = jnp.array([w], jnp.float32) * a
    found = js.theory.neurons_preconditioner(beta[:, :, None], jnp.array([a**2 - w[0] ** 2], jnp.float32))
    expected = np.diag([a**2 + w[0] ** 2, a**2])  # a^2 I + w w^T
    np.testing.assert_allclose(found[:, 0, :, 0], expected, rtol=1e-5)


def test_data_without_a_solution_have_no_implicit_bias():
    x, y = jnp.array([[1.0, 0.0], [1.0, 0.0]]), jnp.array([1.0, 2.0])
    bias = lambda y: js.theory.implicit_bias(js.theory.HyperbolicEntropy(1.0), x, y)
    with pytest.raises(ValueError, match="has no solution"):
        bias(y)
    assert np.all(np.isnan(jax.jit(bias)(y)))
    assert np.all(np.isfinite(jax.jit(bias)(jnp.array([1.0, 1.0]))))


@pytest.mark.slow
def test_derivatives_of_what_is_zero():
    """Of a sample at the origin and of data along an axis; and of a neuron that is balanced."""

    def outputs(first, angle):
        net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jr.key(0))
        x = jnp.stack([first, jnp.ones(())])[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)])[None]
        view = js.theory.TwoLayerLine().at(js.Problem(net, x, jnp.array([0.5, 1.0])), jnp.ones(()))
        return jnp.concatenate([view.outputs.ravel(), view.kernel.ravel(), view.params.weights[0].ravel()])

    at = (jnp.zeros(()), jnp.zeros(()))
    for moved in (0, 1):
        found = jax.jacfwd(outputs, moved)(*at)
        step = 1e-5 if X64 else 1e-2
        above, below = (outputs(*(a + sign * step * (i == moved) for i, a in enumerate(at))) for sign in (1, -1))
        np.testing.assert_allclose(found, (above - below) / (2 * step), rtol=1e-3, atol=1e-3)
        assert np.max(np.abs(found)) > 0.1

    beta = jnp.array([[[0.3], [0.4]]])
    rows = lambda delta: js.theory.neurons_preconditioner(beta, delta)[:, 0, :, 0]
    slope = jax.jacfwd(rows)(jnp.zeros(1))[..., 0]
    nearby = (rows(jnp.array([1e-3])) - rows(jnp.array([-1e-3]))) / 2e-3
    np.testing.assert_allclose(slope, nearby, atol=1e-3)
