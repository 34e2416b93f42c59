"""Balance at finite start: its mean over random starts, and what it does to the layers after training."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import balance_offsets, layer_values, mean_conserved
from tests.cases import assert_fails, eps


REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-14, land_on_ts=True)
WIDTHS = (30, 50, 20, 40, 10)
NO_SIZE: Any = 1.5


def paper_start(sigma, widths=WIDTHS):
    """The conserved numbers at the paper's start, sigma_l^2 = sigma^2/N_l and unit rates."""
    return mean_conserved(widths, sigma / np.sqrt(widths[:-1]), np.ones(len(widths) - 1))


def test_mean_of_the_conserved_matrices():
    """Eq. 56 by drawing starts, through what a network says that it conserves."""
    sizes, sigma, eta = (3, 4, 2, 5), np.array([0.7, 1.1, 0.4]), np.array([2.0, 0.5, 1.3])
    rng = np.random.default_rng(0)
    total = []
    draws = 300_000
    weights = [rng.normal(size=(draws, sizes[i + 1], sizes[i])) * sigma[i] for i in range(3)]
    for i in range(2):
        above, below = weights[i + 1] / eta[i + 1] ** 0.5, weights[i] / eta[i] ** 0.5
        total.append((np.einsum("nab,nac->bc", above, above) - np.einsum("nab,ncb->ac", below, below)) / draws)
    expected = np.asarray(mean_conserved(sizes, sigma, eta))
    for matrix, factor in zip(total, expected, strict=True):
        np.testing.assert_allclose(matrix, factor * np.eye(len(matrix)), atol=0.1)
    found = [np.trace(matrix) / len(matrix) for matrix in total]
    check = lambda expected: np.testing.assert_allclose(found, expected, rtol=5e-3)
    check(expected)
    assert_fails(lambda: check(mean_conserved(sizes, sigma, np.ones(3))))  # without the rates
    assert_fails(lambda: check(mean_conserved(sizes[::-1], sigma, eta)))  # sizes counted from the outputs


def test_a_network_conserves_them():
    """The sign and the pairing of layers are those of `net.conserved`."""
    scaling = js.nets.Scaling(np.ones(2), np.array([0.5, 0.3]), np.array([2.0, 0.5]))
    keys = jax.random.split(jax.random.key(0), 2000)

    def one(key):
        net = js.nets.TwoLayerLinear(in_size=3, out_size=2, width_size=4, scaling=scaling, key=key)
        (conserved,) = net.conserved(net, js.nets.rates(net))
        return jnp.trace(conserved.outgoing - conserved.incoming) / 4

    found = jnp.mean(jax.jit(jax.vmap(one))(keys))
    expected = mean_conserved((3, 4, 2), np.array([0.5, 0.3]), np.array([2.0, 0.5]))
    np.testing.assert_allclose(found, expected[0], atol=2e-2)


def test_offsets_are_the_corrected_equation_57():
    N, L = WIDTHS, 4
    ratio = lambda k: N[k] / N[k - 1]  # N_{k+1}/N_k, counted from 1
    corrected = [L - l - sum(ratio(k) for k in range(l + 1, L + 1)) for l in range(1, L + 1)]
    printed = [L - l - sum(ratio(k) for k in range(l, L)) for l in range(1, L + 1)]
    found = balance_offsets(paper_start(0.1)) / 0.01
    np.testing.assert_allclose(found, corrected, atol=eps(50))
    np.testing.assert_allclose(found, [0.35, -0.25, 0.75, 0], atol=eps(50))
    assert_fails(lambda: np.testing.assert_allclose(found, printed, atol=0.1))
    # Equal widths give none (the printed sum gives -L).
    np.testing.assert_allclose(balance_offsets(paper_start(0.1, (7,) * 5)), 0, atol=eps(1))


def exact_values(s, eta, offsets):
    """prod_l u_l = s with u_l^2/eta_l = v^2 + offset_l (eq. 58), by bisection."""
    product = lambda square: np.prod(np.sqrt(eta * (square + offsets))) - s
    square = scipy.optimize.brentq(product, max(0, -offsets.min()) + 1e-12, 100.0, xtol=1e-15)
    return np.sqrt(eta * (square + offsets))


@pytest.mark.x64_only
def test_layer_values_to_second_order():
    s, eta, errors = 1.7, np.array([2.0, 0.5, 1.3, 0.9]), []
    for sigma in (0.1, 0.01):
        conserved = np.asarray(paper_start(sigma))
        true = exact_values(s, eta, np.asarray(balance_offsets(conserved)))
        errors.append(float(np.max(np.abs(layer_values(s, eta, conserved) - true))))
    assert errors[0] < 3e-5  # measured 3.3e-6
    np.testing.assert_allclose(np.log10(errors[0] / errors[1]), 4, atol=0.05)


@pytest.mark.x64_only
def test_the_corrected_and_the_printed_equation_59():
    s, sigma, L = 1.7, 0.1, 4
    true = exact_values(s, np.ones(L), np.asarray(balance_offsets(paper_start(sigma))))[-1]
    g = float(np.sum(balance_offsets(paper_start(sigma)))) / sigma**2
    found = layer_values(s, np.ones(L), paper_start(sigma))[-1]
    np.testing.assert_allclose(found, s ** (1 / L) - g * sigma**2 / (2 * L * s ** (1 / L)), rtol=1e-14)
    np.testing.assert_allclose(found, true, rtol=1.7e-5)  # measured 1.8e-6
    printed = s**2 - g * sigma**2 / (2 * L * s ** (1 / L))
    assert abs(printed - true**2) > 1


@pytest.mark.slow
@pytest.mark.x64_only
def test_layers_after_training_of_a_lambda_balanced_network():
    """Where the conserved matrix is a multiple of the identity, integration of the weights ends at these values."""
    eta, errors = np.array([2.0, 0.5]), []
    x = np.sqrt(6.0) * jnp.linalg.qr(jax.random.normal(jax.random.key(0), (6, 3)))[0]
    target = jax.random.normal(jax.random.key(1), (3, 3)) + jnp.eye(3)
    s = jnp.linalg.svd(target, compute_uv=False)
    for delta in (0.1, 0.01):
        scaling = js.nets.Scaling(np.ones(2), np.array([0.5, 0.5]), eta)
        net = js.nets.TwoLayerLinear(
            in_size=3,
            out_size=3,
            width_size=3,
            scaling=scaling,
            key=jax.random.key(2),
            init=js.nets.LambdaBalanced(delta),
        )
        flow = js.solve(js.Problem(net, x, x @ target.T), REFERENCE, jnp.array([200.0]), observe=js.observe.loss())
        assert float(flow["loss"][-1]) < 1e-18
        found = [jnp.linalg.svd(w, compute_uv=False) for w in flow.final.params.weights]
        expected = jax.vmap(lambda c, d=delta: layer_values(c, eta, np.array([d / np.prod(eta)])))(s)
        errors.append(float(jnp.max(jnp.abs(jnp.stack(found, axis=1) - expected))))
    assert errors[1] < 1e-3  # measured 1.2e-4
    np.testing.assert_allclose(np.log10(errors[0] / errors[1]), 2, atol=0.1)


@given(st.floats(0.1, 10), st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=3))
@settings(max_examples=15, deadline=None)
def test_first_order_properties(c, conserved):
    eta = jnp.array([2.0, 0.5, 1.3, 0.9])
    conserved = jnp.asarray(conserved)
    zero, value, slope = values_and_slope(jnp.asarray(c), eta, conserved)
    np.testing.assert_allclose(jnp.prod(zero), c, rtol=eps(50))
    np.testing.assert_allclose(zero + slope, value, rtol=eps(50))  # it is linear in what is conserved
    # To first order the product stays c and the conserved numbers are what they should be.
    np.testing.assert_allclose(jnp.sum(slope / zero), 0, atol=eps(50))
    change = 2 * zero * slope / eta
    np.testing.assert_allclose(change[1:] - change[:-1], conserved, atol=eps(20))


@jax.jit
def values_and_slope(c, eta, conserved):
    zero, slope = jax.jvp(lambda k: layer_values(c, eta, k), (jnp.zeros_like(conserved),), (conserved,))
    return zero, layer_values(c, eta, conserved), slope


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    conserved = jnp.asarray(paper_start(0.1), jnp.float32)
    rough = layer_values(jnp.asarray(1.7, jnp.float32), np.ones(4), conserved)
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, layer_values(1.7, np.ones(4), paper_start(0.1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda: mean_conserved((2, 3), np.ones(2), np.ones(2)), ValueError, "need 2 sigmas and 3 sizes"),
        (lambda: mean_conserved((2, 3, 1), np.ones(1), np.ones(2)), ValueError, "need 2 sigmas"),
        (lambda: mean_conserved((2, 0, 1), np.ones(2), np.ones(2)), ValueError, "each of sizes"),
        (lambda: mean_conserved((2, NO_SIZE, 1), np.ones(2), np.ones(2)), TypeError, "each of sizes"),
        (
            lambda: mean_conserved((2, 3, 1), np.array([1.0, -1.0]), np.ones(2)),
            ValueError,
            "sigma must be finite and >= 0",
        ),
        (lambda: mean_conserved((2, 3, 1), np.ones(2), np.array([1.0, 0.0])), ValueError, "eta must be finite and > 0"),
        (lambda: layer_values(0.0, np.ones(2), np.array([0.1])), ValueError, "give c > 0"),
        (lambda: layer_values(1.0, np.ones(2), np.array([0.1, 0.1])), ValueError, "1 conserved numbers, got 2"),
    ],
)
def test_bad_arguments_are_refused(ask, kind, message, as_users):
    with pytest.raises(kind, match=message):
        ask()
