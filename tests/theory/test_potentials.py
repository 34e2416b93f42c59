"""Potentials against their printed formulas, their derivatives and the flows they come from."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import DeepPotential, HyperbolicEntropy, SingleNeuronPotential, spectral_velocity
from tests.cases import assert_fails, eps


BETA_0, BETA = np.array([0.3, -1.2, 0.7]), np.array([1.1, 0.4, -0.2])
MULTIPLIERS, RATES, GAMMA = np.array([1.3, 0.7]), np.array([0.6, 1.9]), 0.8


# --- one neuron ---


def printed_neuron(beta, beta_0, delta, eta_a, eta_w):
    """Psi - psi beta_0.beta/|beta_0| less Psi(0), with 60 digits; (5) as printed is eta_a = eta_w = 1."""
    exact = lambda values: [Decimal(float(value)) for value in np.ravel(values)]
    with localcontext(prec=60):
        beta, beta_0, (delta, eta_a, eta_w) = exact(beta), exact(beta_0), exact([delta, eta_a, eta_w])
        dot = lambda one, two: sum((a * b for a, b in zip(one, two, strict=True)), Decimal(0))
        e2 = 4 * eta_a * eta_w
        kappa = lambda r2: (delta**2 + e2 * r2).sqrt()
        psi = lambda r2: (kappa(r2) - 2 * delta) * max(kappa(r2) + delta, Decimal(0)).sqrt() * 2 / (3 * e2.sqrt())
        r2, start2 = dot(beta, beta), dot(beta_0, beta_0)
        linear = (kappa(start2) - delta).sqrt() * dot(beta_0, beta) / start2.sqrt()
        return float(psi(r2) - psi(Decimal(0)) - linear)


@pytest.mark.parametrize("delta", [2.0, 0.0, -2.0, 0.01, -0.01])
def test_one_neuron_has_the_printed_potential(delta):
    for eta_a, eta_w in ((1.0, 1.0), (0.4, 3.0)):
        ours = SingleNeuronPotential(BETA_0, delta, eta_a, eta_w).value(jnp.asarray(BETA))

        def close(delta, eta_a=eta_a, eta_w=eta_w, ours=ours):
            printed = printed_neuron(BETA, BETA_0, delta, eta_a, eta_w)
            np.testing.assert_allclose(ours, printed, rtol=eps(50))

        close(delta)
        assert_fails(lambda close=close: close(-delta if delta else 1.0))
        if (eta_a, eta_w) != (1.0, 1.0):
            assert_fails(lambda close=close: close(delta, 1.0, 1.0))


VALUE = jax.jit(lambda beta, b0, delta: SingleNeuronPotential(b0, delta, 0.5, 3.0).value(beta))


@pytest.mark.x64_only
@settings(max_examples=30, deadline=None)
@given(st.floats(-6, 6), st.sampled_from([-1, 1]), st.floats(-3, 3))
def test_one_neuron_does_not_cancel(exponent, sign, size):
    delta, beta = sign * 10.0**exponent, 10.0**size * BETA
    ours = float(VALUE(jnp.asarray(beta), jnp.asarray(BETA_0), delta))
    printed = printed_neuron(beta, BETA_0, delta, 0.5, 3.0)
    # The radial and the linear term may cancel: the error is relative to their size.
    kappa = lambda r: np.hypot(delta, np.sqrt(6) * r)
    slope = lambda r: np.sqrt(6) * r / np.sqrt(kappa(r) + delta) if delta > 0 else np.sqrt(kappa(r) - delta)
    size = (slope(np.linalg.norm(beta)) + slope(np.linalg.norm(BETA_0))) * np.linalg.norm(beta)
    assert abs(ours - printed) <= eps(10) * size


def test_upstream_is_the_distance_to_the_start():
    # For delta -> inf the potential is sqrt(eta_a eta_w/(2 delta)) |beta - beta_0|^2, up to a constant.
    for delta in (1e10, 1e30):
        potential = SingleNeuronPotential(BETA_0, delta, 0.5, 3.0)
        rise = potential.value(jnp.asarray(BETA)) - potential.value(jnp.asarray(BETA_0))
        np.testing.assert_allclose(rise, np.sqrt(1.5 / (2 * delta)) * np.sum((BETA - BETA_0) ** 2), rtol=eps(20))


def test_downstream_is_the_angle_to_the_start():
    # For delta -> -inf it is sqrt(2 |delta|) (|beta| - beta_0.beta/|beta_0|).
    potential = SingleNeuronPotential(BETA_0, -1e30, 0.5, 3.0)
    angle = np.linalg.norm(BETA) - BETA @ BETA_0 / np.linalg.norm(BETA_0)
    np.testing.assert_allclose(potential.value(jnp.asarray(BETA)), np.sqrt(2e30) * angle, rtol=eps(20))


def neuron_metric(beta, delta, eta_a, eta_w):
    """M of beta' = -M X^T residual, Kunin et al. (4), from the weights."""
    kappa = np.sqrt(delta**2 + 4 * eta_a * eta_w * beta @ beta)
    a = np.sqrt((kappa + delta) / (2 * eta_w))
    return eta_w * a**2 * np.eye(len(beta)) + eta_a * np.outer(beta / a, beta / a)


HESSIAN = jax.jit(lambda beta, delta: jax.hessian(SingleNeuronPotential(BETA_0, delta, 0.4, 3.0).value)(beta))


@pytest.mark.x64_only
@pytest.mark.parametrize("delta", [2.0, 0.0, -2.0])
def test_one_neuron_flows_along_its_mirror_map(delta):
    # The Hessian of Phi times M is a multiple of the identity: time is rescaled, the path is the mirror flow's.
    def close(at):
        hessian = HESSIAN(jnp.asarray(BETA), at)
        both = np.asarray(hessian) @ neuron_metric(BETA, delta, 0.4, 3.0)
        np.testing.assert_allclose(both, both[0, 0] * np.eye(3), atol=1e-14 * both[0, 0])

    close(delta)
    assert_fails(lambda: close(-delta if delta else 2.0))  # the potential of another balance


# --- deep networks ---


@pytest.mark.x64_only
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deep_networks_flow_along_their_mirror_map(depth):
    r, r_0 = np.linalg.norm(BETA), np.linalg.norm(BETA_0)
    potential = DeepPotential(BETA_0, depth)
    printed = (depth + 1) / (depth + 2) * r ** ((depth + 2) / (depth + 1)) - BETA_0 @ BETA / r_0 ** (
        depth / (depth + 1)
    )
    np.testing.assert_allclose(potential.value(jnp.asarray(BETA)), printed, rtol=1e-14)

    # M from the layers: rank one, W_1 = s e n^T and so on, all of one size s = |beta|^(1/(depth + 1)).
    n, s = BETA / r, r ** (1 / (depth + 1))
    metric = s ** (2 * depth) * (np.eye(3) + depth * np.outer(n, n))

    def close(order):
        hessian = np.asarray(jax.jit(jax.hessian(DeepPotential(BETA_0, order).value))(jnp.asarray(BETA)))
        both = hessian @ metric
        np.testing.assert_allclose(both, both[0, 0] * np.eye(3), atol=1e-14 * both[0, 0])

    close(depth)
    assert_fails(lambda: close(depth + 1))


# --- the hyperbolic entropy ---


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_diagonal_networks_have_the_printed_potential(alpha):
    w = 2 * alpha**2
    printed = np.sum(BETA * np.arcsinh(BETA / w) - np.sqrt(BETA**2 + w**2) + w)
    ours = HyperbolicEntropy.of_diagonal_network(alpha, alpha).value(jnp.asarray(BETA))
    np.testing.assert_allclose(ours, printed, rtol=eps(500))  # the printed form cancels at large alpha
    assert_fails(
        lambda: np.testing.assert_allclose(
            HyperbolicEntropy(w / 2).value(jnp.asarray(BETA)),
            printed,
            rtol=1e-4,  # without the factor 2 of the width
        )
    )


def test_entropy_goes_from_l1_to_l2():
    for alpha in (1e-12, 1e6):
        ours = HyperbolicEntropy.of_diagonal_network(alpha, alpha).value(jnp.asarray(BETA))
        w = 2 * alpha**2
        small = np.sum(np.abs(BETA) * (np.log(2 * np.abs(BETA) / w) - 1))
        np.testing.assert_allclose(ours, small if alpha < 1 else np.sum(BETA**2) / (2 * w), rtol=eps(20))


@pytest.mark.x64_only
@pytest.mark.parametrize("delta", [1.5, -0.3])
def test_singular_values_have_the_printed_potential(delta):
    x = BETA
    printed = np.sum(2 * x * np.arcsinh(2 * x / abs(delta)) - np.sqrt(4 * x**2 + delta**2) + abs(delta)) / 4
    potential = HyperbolicEntropy.of_singular_values(delta)
    np.testing.assert_allclose(potential.value(jnp.asarray(x)), printed, rtol=1e-13)
    for eta_a, eta_w in ((1.0, 1.0), (0.4, 3.0)):
        potential = HyperbolicEntropy.of_singular_values(delta, eta_a, eta_w, beta_0=0.2)
        curvature = np.diag(jax.jit(jax.hessian(potential.value))(jnp.asarray(x)))
        np.testing.assert_allclose(curvature, 1 / np.sqrt(delta**2 + 4 * eta_a * eta_w * x**2), rtol=1e-13)


# --- the singular values of balanced networks ---


def lambda_balanced(sizes, delta):
    d, h, c = sizes
    scaling = js.nets.Scaling(MULTIPLIERS, jnp.array([0.8, 0.5]), RATES, GAMMA)
    # Their delta is eta_1 eta_2 lambda; with multipliers it is that of the rates m^2 eta.
    init = js.nets.LambdaBalanced(delta / np.prod(MULTIPLIERS**2))
    return js.nets.TwoLayerLinear(
        in_size=d, out_size=c, width_size=h, scaling=scaling, init=init, key=jax.random.key(h + c)
    )


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("sizes", "delta"),
    [
        ((2, 3, 4), 1.5),
        ((4, 3, 2), -1.5),
        ((3, 3, 3), 0.0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (((2, 2, 4), 1.5), ((4, 3, 3), 1.5), ((4, 2, 4), -1.5))
        ),
    ],
)
def test_singular_values_of_balanced_networks(sizes, delta):
    d, h, c = sizes
    rng = np.random.default_rng(h)
    x, y = rng.normal(size=(6, d)), rng.normal(size=(6, c))
    net = lambda_balanced(sizes, delta)
    problem = js.Problem(net, jnp.asarray(x), jnp.asarray(y))
    (m1, m2), (eta_1, eta_2) = MULTIPLIERS, RATES
    W, A = m1 * np.asarray(net.weights[0]), m2 * np.asarray(net.weights[1]).T
    eta_w, eta_a = m1**2 * eta_1, m2**2 * eta_2
    np.testing.assert_allclose(eta_w * A @ A.T - eta_a * W @ W.T, delta * np.eye(h), atol=1e-13)
    slope = jax.grad(problem.objective)(problem.params)
    W_dot, A_dot = -m1 * eta_1 * np.asarray(slope.weights[0]), -m2 * eta_2 * np.asarray(slope.weights[1]).T
    beta = W.T @ A
    u, values, vt = np.linalg.svd(beta)
    wanted = np.diag(u.T @ (W_dot.T @ A + W.T @ A_dot) @ vt.T)
    gradient = GAMMA * x.T @ (GAMMA * x @ beta - y) / len(x)
    ours = spectral_velocity(jnp.asarray(beta), jnp.asarray(gradient), delta, eta_a, eta_w, width=h)
    np.testing.assert_allclose(ours.values, values, atol=1e-14)

    def close(velocities):
        np.testing.assert_allclose(velocities, wanted, rtol=1e-11, atol=1e-13)

    close(ours.velocities)
    wide = spectral_velocity(jnp.asarray(beta), jnp.asarray(gradient), delta, eta_a, eta_w).velocities
    if h < min(d, c):  # a narrow layer holds no more than h
        assert_fails(lambda: close(wide))
    else:
        close(wide)
    printed = spectral_velocity(jnp.asarray(beta), jnp.asarray(gradient), delta).velocities  # rates of 1
    assert_fails(lambda: close(printed))


# --- all of them ---

ALL = {
    "upstream": SingleNeuronPotential(BETA_0, 2.0, 0.5, 3.0),
    "balanced": SingleNeuronPotential(BETA_0, 0.0, 0.5, 3.0),
    "downstream": SingleNeuronPotential(BETA_0, -2.0, 0.5, 3.0),
    "turned over": SingleNeuronPotential(BETA_0, -2.0, 0.5, 3.0, crossed=True),
    "deep": DeepPotential(BETA_0, 3),
    "diagonal": HyperbolicEntropy.of_diagonal_network(np.array([0.1, 0.7, 2.0]), 0.4),
    "singular values": HyperbolicEntropy.of_singular_values(-0.4, 0.5, 3.0, beta_0=BETA_0),
}


@pytest.mark.parametrize("name", ALL)
def test_mirror_map_is_the_gradient_and_has_an_inverse(name):
    potential = ALL[name]
    slope = potential.mirror_map(jnp.asarray(BETA))
    np.testing.assert_allclose(jax.grad(potential.value)(jnp.asarray(BETA)), slope, rtol=eps(100), atol=eps(20))
    np.testing.assert_allclose(potential.inverse_mirror_map(slope), BETA, rtol=eps(100), atol=eps(100))
    start = jnp.broadcast_to(potential.beta_0, (3,))
    if name == "turned over":  # the tilt of the other branch: the gradient at the start is twice that of g
        np.testing.assert_allclose(potential.mirror_map(start), -2 * potential.tilt(), rtol=eps(20))
    else:
        np.testing.assert_allclose(potential.mirror_map(start), 0, atol=eps(10))
        np.testing.assert_allclose(potential.inverse_mirror_map(jnp.zeros(3)), start, rtol=eps(20), atol=eps(20))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_derivatives_at_zero_are_finite(name):
    potential = ALL[name]
    for function in (potential.value, potential.mirror_map, potential.inverse_mirror_map):
        assert np.all(np.isfinite(jax.jit(jax.jacfwd(function))(jnp.zeros(3))))
        assert np.all(np.isfinite(jax.jit(jax.jacrev(function))(jnp.zeros(3))))


@pytest.mark.x64_only
def test_upstream_curvature_at_zero():
    curvature = jax.jacfwd(SingleNeuronPotential(BETA_0, 2.0, 0.5, 3.0).mirror_map)(jnp.zeros(3))
    np.testing.assert_allclose(curvature, 2 * np.sqrt(1.5) / np.sqrt(4.0) * np.eye(3), rtol=1e-14, atol=1e-15)


def test_nothing_overflows():
    huge = jnp.asarray(1e30 * BETA)
    for potential in ALL.values():
        for beta in (huge, -huge, jnp.asarray(1e-30 * BETA)):
            assert np.all(np.isfinite(potential.mirror_map(beta)))


@pytest.mark.x64_only
@pytest.mark.parametrize("name", ALL)
def test_float32_keeps_its_digits(name):
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == float else leaf, ALL[name])
    beta = jnp.asarray(BETA, jnp.float32)
    for rough, fine in (
        (single.value(beta), ALL[name].value(jnp.asarray(BETA))),
        (single.mirror_map(beta), ALL[name].mirror_map(jnp.asarray(BETA))),
    ):
        assert rough.dtype == jnp.float32
        np.testing.assert_allclose(rough, fine, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("delta", [1e4, -1e4, -1e8])
def test_the_mirror_map_has_an_inverse_far_from_balance(delta):
    """Far downstream |c|^2 is 2 |delta| and little more: beta is in what is more, and in the dual."""
    potential, along = SingleNeuronPotential(BETA_0, delta), jnp.asarray(BETA_0) + 0.1 * jnp.asarray(BETA)
    duals = jnp.geomspace(1e-3, 1.0, 5)[:, None] * along[None, :]
    beta_0, wide = np.asarray(BETA_0, np.longdouble), np.asarray(duals, np.longdouble)
    size = np.sqrt(np.sum(beta_0**2))
    kappa = np.hypot(np.longdouble(delta), 2 * size)
    low, high = 4 * size**2 / (kappa + abs(delta)), kappa + abs(delta)  # kappa -+ |delta|
    # With rates of 1: |beta| = |full| sqrt(|full|^2 + 2 delta)/2 along full = dual + c.
    c = np.sqrt(low if delta > 0 else high) * beta_0 / size
    over = np.sum(wide**2 + 2 * wide * c, axis=1) + (high if delta > 0 else low)  # |c|^2 + 2 delta = kappa + delta
    expected = (wide + c) * np.sqrt(over)[:, None] / 2
    found = jax.vmap(potential.inverse_mirror_map)(duals)
    close = lambda value: np.testing.assert_allclose(value, expected.astype(float), rtol=eps(20))
    close(found)
    assert_fails(lambda: close(jax.vmap(potential.inverse_mirror_map)(1.1 * duals)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SingleNeuronPotential(BETA_0, jnp.inf), "delta holds 1 value"),
        (lambda: SingleNeuronPotential(BETA_0, 1.0, 0.0), "eta_a must be finite and > 0"),
        (lambda: SingleNeuronPotential(BETA_0, 1.0, 1.0, -1.0), "eta_w must be finite and > 0"),
        (lambda: SingleNeuronPotential(np.zeros(3), -1.0), "beta_0 must not be zero for delta <= 0"),
        (lambda: SingleNeuronPotential(BETA_0, 1.0, crossed=True), "a changes its sign for delta < 0 only"),
        (lambda: DeepPotential(np.zeros(3), 2), "beta_0 must not be zero"),
        (lambda: DeepPotential(BETA_0, 0), "depth must be an integer >= 1"),
        (lambda: HyperbolicEntropy(0.0), "width must be finite and > 0"),
        (lambda: HyperbolicEntropy.of_diagonal_network(0.0, 1.0), "no weight of u may be zero at the start, got 0.0"),
        (lambda: HyperbolicEntropy.of_diagonal_network(jnp.ones(3), jnp.ones(4)), r"same shape.*got \(3,\) and \(4,\)"),
        (lambda: HyperbolicEntropy(np.float32(1e-46)), "width must be finite and > 0"),
        (lambda: HyperbolicEntropy.of_singular_values(0.0), "delta must not be zero"),
        (lambda: HyperbolicEntropy.of_singular_values(1.0, -1.0), "eta_a must be finite and > 0"),
    ],
)
def test_impossible_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_shapes_are_refused(as_users):
    with pytest.raises(ValueError, match="matrices of one shape"):
        spectral_velocity(jnp.ones((2, 3)), jnp.ones((3, 2)), 1.0)
    with pytest.raises(TypeError, match="depth must be an integer"):
        DeepPotential(BETA_0, 1.5)  # pyright: ignore[reportArgumentType]
