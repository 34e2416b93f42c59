"""Kernels of balanced deep linear networks against the empirical kernel, and against the end of real runs."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import BalancedModes, plain_spiked_kernel, spiked_kernel
from tests.cases import assert_fails, eps


REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-14, land_on_ts=True)
ETA = np.array([2.0, 0.7, 1.3])
SIZES = (6, 4, 5, 2)
NO_SIZE: Any = 1.5


def frames(sizes, modes, seed):
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    return [jnp.linalg.qr(jax.random.normal(k, (size, modes)))[0] for k, size in zip(keys, sizes, strict=True)]


def balanced_net(values, sizes, eta, multiplier=None):
    """A network W_l = sqrt(eta_l) sum_a v_a r_{l+1} r_l^T with random orthonormal directions; m_l W_l if multiplied."""
    matrices = len(eta)
    directions = frames(sizes, len(values), 7)
    v = values ** (1 / matrices) / np.prod(eta) ** (1 / (2 * matrices))
    multiplier = np.ones(matrices) if multiplier is None else multiplier
    weights = [
        np.sqrt(eta[i]) / multiplier[i] * (directions[i + 1] * v[None, :]) @ directions[i].T for i in range(matrices)
    ]
    scaling = js.nets.Scaling(multiplier, np.ones(matrices), eta / multiplier**2)
    net = js.nets.DeepLinear(
        in_size=sizes[0], out_size=sizes[-1], width_size=3, depth=matrices - 1, scaling=scaling, key=jax.random.key(0)
    )
    return eqx.tree_at(lambda n: n.weights, net, tuple(weights)), directions[0], directions[-1]


def empirical(net, x):
    """The eta-weighted and the plain kernel."""
    return js.kernels.empirical(net, x, eta=js.nets.rates(net)).ntk, js.kernels.empirical(net, x).ntk


def on(matrix, x):
    return jnp.einsum("ni,cidj,mj->ncmd", x, matrix, x)


@pytest.fixture(scope="module")
def one_output():
    c = jnp.array([0.8])
    net, right, left = balanced_net(c, (6, 4, 5, 1), ETA)
    x = jax.random.normal(jax.random.key(1), (7, 6))
    return c[0] * left[0, 0], right[:, 0], x, *(k[:, 0, :, 0] for k in empirical(net, x))


def test_one_output(one_output):
    c, r, x, weighted, plain = one_output
    c = jnp.abs(c)
    check = lambda kernel, true: np.testing.assert_allclose(x @ kernel.matrix(r) @ x.T, true, atol=eps(50))
    check(spiked_kernel(c, ETA), weighted)
    check(plain_spiked_kernel(c, ETA), plain)
    assert_fails(lambda: check(plain_spiked_kernel(c, ETA), weighted))
    for layer in range(3):  # a rate left out, and a layer
        without = np.where(np.arange(3) == layer, 1, ETA)
        assert_fails(lambda eta=without: check(spiked_kernel(c, eta), weighted))
        assert_fails(lambda eta=without: check(plain_spiked_kernel(c, eta), plain))
        assert_fails(lambda layer=layer: check(spiked_kernel(c, np.delete(ETA, layer)), weighted))
    # The spike of the plain kernel depends on the rates, that of the kernel that drives f only on the depth.
    np.testing.assert_allclose(plain_spiked_kernel(c, ETA).ratio, ETA[0] / ETA[1] + ETA[0] / ETA[2], rtol=eps(10))
    np.testing.assert_allclose(spiked_kernel(c, ETA).ratio, 2, rtol=eps(10))
    # Equations 10 and 36 in the paper's u, with c = u^L prod_l sqrt(eta_l/eta_L).
    ratios = ETA / ETA[-1]
    u = (c / np.sqrt(np.prod(ratios))) ** (1 / 3)
    B = np.prod(ratios[1:])
    A = sum(np.prod(np.delete(ratios, index)) for index in (1, 2))
    np.testing.assert_allclose(plain_spiked_kernel(c, ETA)[:2], [u**4 * B, u**4 * A], rtol=eps(20))


def test_final_scale_is_not_the_printed_one(one_output):
    """Equation 42: s^{2(L-1)/L}, not s^{2L-2}; at unit rates s^{4/3} (1.566 at s = 1.4)."""
    s = 1.4
    net, right, _ = balanced_net(jnp.array([s]), (6, 4, 5, 1), np.ones(3))
    true = empirical(net, right.T)[0][0, 0, 0, 0]
    np.testing.assert_allclose(true, 3 * s ** (4 / 3), rtol=eps(20))
    np.testing.assert_allclose(sum(spiked_kernel(s, np.ones(3))[:2]), true, rtol=eps(20))
    assert_fails(lambda: np.testing.assert_allclose(3 * s**4, true, rtol=1e-2))


def test_two_outputs():
    values = jnp.array([1.3, 0.6])
    multiplier = np.array([0.8, 1.2, 0.5])
    net, right, left = balanced_net(values, SIZES, ETA, multiplier)
    x = jax.random.normal(jax.random.key(1), (7, 6))
    weighted, plain = empirical(net, x)
    modes = BalancedModes(values, left, right, ETA)
    check = lambda matrix, true: np.testing.assert_allclose(on(matrix, x), true, atol=eps(200))
    check(modes.kernel_matrix(), weighted)
    unscaled, _, _ = balanced_net(values, SIZES, ETA)
    check(modes.plain_kernel_matrix(), empirical(unscaled, x)[1])
    assert_fails(lambda: check(modes.plain_kernel_matrix(), weighted))
    assert_fails(lambda: check(BalancedModes(values, left, right, ETA[:2]).kernel_matrix(), weighted))  # a layer less
    # As printed the first matrix has R R^T, of the rank of the modes, where the identity must stand.
    missing = jnp.eye(6) - right @ right.T
    back = (left * values[None, :] ** (4 / 3)) @ left.T
    printed = modes.kernel_matrix() - jnp.prod(ETA) ** (1 / 3) * back[:, None, :, None] * missing[None, :, None, :]
    assert float(jnp.linalg.norm(on(printed, x) - weighted) / jnp.linalg.norm(weighted)) > 0.1
    assert_fails(lambda: check(printed, weighted))


def test_hidden_kernels():
    values = jnp.array([1.3, 0.6])
    net, right, left = balanced_net(values, SIZES, ETA)
    modes = BalancedModes(values, left, right, ETA)
    product = jnp.eye(6)
    for layer in (1, 2, 3):
        product = net.weights[layer - 1] @ product
        np.testing.assert_allclose(modes.hidden_kernel(layer), product.T @ product, atol=eps(50))
        other = layer % 3 + 1
        assert_fails(lambda m=product, k=other: np.testing.assert_allclose(modes.hidden_kernel(k), m.T @ m, rtol=1e-2))
    # Equation 54 at equal rates: (beta^T beta)^{l/L}; equation 43 for one mode, s^{2l/L} beta beta^T.
    equal = BalancedModes.from_map(np.array([[0.0, 3.0], [2.0, 0.0]]), np.ones(3))
    np.testing.assert_allclose(equal.hidden_kernel(2), np.diag([2.0, 3.0]) ** (4 / 3), atol=eps(50))
    single = BalancedModes.from_map(np.array([[0.6, 0.8]]) * 1.4, np.ones(2))
    beta = np.array([0.6, 0.8])
    np.testing.assert_allclose(single.hidden_kernel(1), 1.4 * np.outer(beta, beta), atol=eps(20))


def test_one_output_is_a_case_of_many():
    target = jnp.array([[0.3, -0.5, 0.4]])
    s = jnp.linalg.norm(target)
    modes = BalancedModes.from_map(target, ETA)
    for many, one in [
        (modes.kernel_matrix(), spiked_kernel(s, ETA)),
        (modes.plain_kernel_matrix(), plain_spiked_kernel(s, ETA)),
    ]:
        np.testing.assert_allclose(many[0, :, 0, :], one.matrix(target[0] / s), atol=eps(20))


# --- the end of a run ---


def whitened(seed, samples, size):
    frame = jnp.linalg.qr(jax.random.normal(jax.random.key(seed), (max(samples, size), min(samples, size))))[0]
    return samples**0.5 * (frame if samples >= size else frame.T)


def run_to_the_end(outputs, sigma, init, samples=8, size=5):
    """A deep linear network of three matrices with unequal rates, after training; its targets' map."""
    x = whitened(0, samples, size)
    beta = jax.random.normal(jax.random.key(1), (outputs, size)) * jnp.linspace(1.2, 0.8, outputs)[:, None]
    scaling = js.nets.Scaling(np.ones(3), sigma * jnp.ones(3), ETA)
    net = js.nets.DeepLinear(
        in_size=size, out_size=outputs, width_size=6, depth=2, scaling=scaling, init=init, key=jax.random.key(2)
    )
    problem = js.Problem(net, x, x @ beta.T)
    flow = js.solve(problem, REFERENCE, jnp.array([0.0, 400.0]), observe=js.observe.loss())
    return problem, flow, beta


@pytest.mark.slow
@pytest.mark.x64_only
def test_kernel_after_training_from_a_balanced_start():
    """One output, balanced, at least as many samples as inputs: exact, however large the start is."""
    problem, flow, beta = run_to_the_end(1, 0.3, js.nets.LambdaBalanced(0.0))
    assert float(flow["loss"][-1]) < 1e-20
    weighted, plain = empirical(flow.final.net, problem.x)
    s = jnp.linalg.norm(beta)
    for true, kernel in ((weighted, spiked_kernel(s, ETA)), (plain, plain_spiked_kernel(s, ETA))):
        expected = problem.x @ kernel.matrix(beta[0] / s) @ problem.x.T
        np.testing.assert_allclose(true[:, 0, :, 0], expected, atol=4e-9)  # measured 5e-10
        alignment = js.kernels.target_alignment(true, problem.y)
        np.testing.assert_allclose(alignment, kernel.alignment(5), rtol=1e-10)
        assert_fails(lambda a=alignment, k=kernel: np.testing.assert_allclose(a, k.alignment(6), rtol=1e-3))


@pytest.mark.slow
@pytest.mark.x64_only
def test_alignment_after_training_from_a_small_start():
    """Any start: the kernel of the limit, up to the start's size; here fewer samples than inputs."""
    errors = []
    for sigma in (0.03, 0.01):  # one compilation for both
        problem, flow, beta = run_to_the_end(1, sigma, js.nets.Gaussian(), samples=4)
        true = js.kernels.target_alignment(empirical(flow.final.net, problem.x)[0], problem.y)
        errors.append(abs(float(true) - float(spiked_kernel(1.0, ETA).alignment(4))))
    assert errors[1] < 5e-4  # measured 5e-5
    np.testing.assert_allclose(np.log(errors[0] / errors[1]) / np.log(3), 2, atol=0.02)


@pytest.mark.x64_only
@pytest.mark.slow
def test_kernel_of_two_outputs_after_training_from_a_small_start():
    errors = []
    for sigma in (0.03, 0.01):
        problem, flow, beta = run_to_the_end(2, sigma, js.nets.Gaussian())
        modes = BalancedModes.from_map(beta, ETA)
        pairs = zip(
            (modes.kernel_matrix(), modes.plain_kernel_matrix()), empirical(flow.final.net, problem.x), strict=True
        )
        errors.append([float(jnp.linalg.norm(on(m, problem.x) - k) / jnp.linalg.norm(k)) for m, k in pairs])
    assert max(errors[1]) < 3e-3  # measured 3e-4
    np.testing.assert_allclose(np.log(np.divide(*errors)) / np.log(3), 2, atol=0.02)


# --- properties ---

rates = st.lists(st.floats(0.1, 10), min_size=4, max_size=4)


@jax.jit
def speed_and_sums(c, eta):
    weighted, plain = spiked_kernel(c, eta), plain_spiked_kernel(c, eta)
    slope = jax.grad(lambda c: spiked_kernel(c, eta).spike)(c)
    return weighted, plain, slope


@given(rates, st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_identities(eta, c):
    eta = np.array(eta)
    weighted, plain, slope = speed_and_sums(jnp.asarray(c), jnp.asarray(eta))
    # K(r, r) drives the mode: dc/dt = L mean(eta) c^{2-2/L} (s - c).
    np.testing.assert_allclose(sum(weighted[:2]), 4 * np.prod(eta) ** 0.25 * c**1.5, rtol=eps(100))
    np.testing.assert_allclose(plain.isotropic * eta[0], weighted.isotropic, rtol=eps(100))
    np.testing.assert_allclose(plain.ratio, np.sum(eta[0] / eta[1:]), rtol=eps(100))
    np.testing.assert_allclose(slope, 1.5 * weighted.spike / c, rtol=eps(100))
    A, B = (float(v) for v in (plain.spike, plain.isotropic))
    np.testing.assert_allclose(plain.alignment(7), (A + B) / np.sqrt((A + B) ** 2 + 6 * B**2), rtol=eps(100))


@pytest.mark.parametrize("c", [0.0, 1e-36, 1e30])
def test_the_ratio_is_that_of_rates_where_parts_under_or_overflow(c):
    for kernel in (spiked_kernel, plain_spiked_kernel):
        found = kernel(jnp.float32(c), jnp.ones(3, jnp.float32))
        assert found.isotropic in (0, np.inf)
        assert found.ratio == 2
        np.testing.assert_allclose(found.alignment(4), 3 / np.sqrt(12), rtol=1e-6)


def test_limits_are_finite():
    for c in (0.0, 1e-15, 1e15):
        for kernel in (spiked_kernel, plain_spiked_kernel):
            value, slope = jax.value_and_grad(lambda c, k=kernel: k(c, jnp.full(50, 1e3)).spike)(c)
            assert np.isfinite(value)
            assert np.isfinite(slope)
        assert np.isfinite(spiked_kernel(c, np.ones(3)).alignment(4))
    empty = BalancedModes(jnp.array([1.0, 0.0]), jnp.eye(2), jnp.eye(2), ETA)

    def score(values):
        return jnp.sum(BalancedModes(values, jnp.eye(2), jnp.eye(2), ETA).kernel_matrix())

    assert np.all(np.isfinite(empty.kernel_matrix()))
    assert np.all(np.isfinite(jax.jit(jax.grad(score))(empty.values)))


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    values = jnp.array([1.3, 0.6])
    _, right, left = balanced_net(values, SIZES, ETA)
    fine = BalancedModes(values, left, right, ETA).kernel_matrix()
    values, left, right = (a.astype(jnp.float32) for a in (values, left, right))
    single = BalancedModes(values, left, right, ETA).kernel_matrix()
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, fine, atol=1.6e-6)  # measured 1.6e-7


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda: spiked_kernel(-1.0, np.ones(2)), ValueError, "strength must be >= 0"),
        (lambda: spiked_kernel(1.0, np.ones(1)), ValueError, "at least two weight matrices"),
        (lambda: plain_spiked_kernel(1.0, np.array([1.0, -1.0])), ValueError, "eta must be finite and > 0"),
        (lambda: spiked_kernel(1.0, np.ones(2)).alignment(0), ValueError, "rank"),
        (lambda: spiked_kernel(1.0, np.ones(2)).alignment(NO_SIZE), TypeError, "rank"),
        (lambda: BalancedModes([1.0], np.ones((2, 1)), np.eye(1), [1.0, 1.0]), ValueError, "left must be orthonormal"),
        (lambda: BalancedModes([1.0], np.eye(2), np.eye(1), [1.0, 1.0]), ValueError, "left .size, modes."),
        (lambda: BalancedModes([np.inf], np.eye(1), np.eye(1), [1.0, 1.0]), ValueError, "values holds 1"),
        (lambda: BalancedModes.from_map(np.eye(2), np.ones(2)).hidden_kernel(3), ValueError, "layer must be one of"),
    ],
)
def test_bad_arguments_are_refused(ask, kind, message, as_users):
    with pytest.raises(kind, match=message):
        ask()
