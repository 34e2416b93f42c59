"""Fields in function space, against the chain rule through the weights."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


def _velocity(weights, rates, force):
    """dbeta/dt by the chain rule, where beta is the product of all weights, transposed, and `force` its gradient."""

    def beta(weights):
        product = weights[0]
        for w in weights[1:]:
            product = w @ product
        return product.T

    gradient = jax.grad(lambda weights: jnp.sum(beta(weights) * force))(weights)
    return jax.jvp(beta, (weights,), ([-eta * g for eta, g in zip(rates, gradient, strict=True)],))[1]


RATES = [0.7, 1.9]  # of w and a


@pytest.mark.parametrize(("d", "h", "c"), [(4, 3, 2), (2, 5, 3), (3, 1, 1)])
def test_theorem_4_1(d, h, c, getkey):
    w, a, force = jr.normal(getkey(), (h, d)), jr.normal(getkey(), (c, h)), jr.normal(getkey(), (d, c))
    betas = jnp.einsum("kd,ck->kdc", w, a)
    delta = RATES[0] * jnp.sum(a**2, axis=0) - RATES[1] * jnp.sum(w**2, axis=1)
    mixed = (RATES[0] * RATES[1]) ** 0.5
    found = lambda delta, mixed: -jnp.tensordot(js.theory.neurons_preconditioner(betas, delta, mixed), force, 2)
    truth = _velocity([w, a], RATES, force)
    close = lambda value: np.testing.assert_allclose(value, truth, rtol=cases.eps(1e3), atol=cases.eps(300))
    close(found(delta, mixed))
    cases.assert_fails(lambda: close(found(0 * delta, mixed)))  # delta is left out
    cases.assert_fails(lambda: close(found(delta, 1.0)))  # the rates are


def _isotropic(key, d, c, delta):
    """W, A with eta_w A^T A - eta_a W W^T = delta I and as many hidden neurons as the theorem wants."""
    one, two = jr.split(key)
    if delta > 0:
        w = jr.normal(one, (c, d))
        gram = (RATES[1] * w @ w.T + delta * jnp.eye(c)) / RATES[0]
        return w, jnp.linalg.qr(jr.normal(two, (c, c)))[0] @ jnp.linalg.cholesky(gram).T
    a = jr.normal(one, (c, d))
    gram = (RATES[0] * a.T @ a - delta * jnp.eye(d)) / RATES[1]
    return jnp.linalg.cholesky(gram) @ jnp.linalg.qr(jr.normal(two, (d, d)))[0], a


@pytest.mark.parametrize(("d", "c", "delta"), [(4, 2, 1.5), (2, 4, 0.7), (3, 2, -1.5), (2, 4, -0.7)])
def test_theorem_4_2(d, c, delta, getkey):
    w, a = _isotropic(getkey(), d, c, delta)
    force = jr.normal(getkey(), (d, c))
    mixed = (RATES[0] * RATES[1]) ** 0.5
    truth = _velocity([w, a], RATES, force)
    close = lambda value: np.testing.assert_allclose(value, truth, rtol=cases.eps(1e3), atol=cases.eps(1e3))
    found = jax.jit(lambda delta: js.theory.isotropic_velocity((a @ w).T, force, delta, mixed))
    close(found(delta))
    cases.assert_fails(lambda: close(found(0.0)))


def test_velocity_of_the_preconditioner(getkey):
    w, force, a = jr.normal(getkey(), (3,)), jr.normal(getkey(), (3,)), jnp.array(0.8)
    eta_w, eta_a = RATES
    M = lambda a, w: eta_w * a**2 * jnp.eye(3) + eta_a * jnp.outer(w, w)
    truth = jax.jvp(M, (a, w), (-eta_a * w @ force, -eta_w * a * force))[1]
    close = lambda value: np.testing.assert_allclose(value, truth, rtol=cases.eps(300), atol=cases.eps(100))
    close(js.theory.preconditioner_velocity(a * w, force, (eta_w * eta_a) ** 0.5))
    cases.assert_fails(lambda: close(js.theory.preconditioner_velocity(a * w, force)))  # the rates are left out


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("delta", [0.9, 0.0, -0.9])
def test_deep_isotropic_networks(depth, delta, getkey):
    d = 3
    width = 1 if delta >= 0 else d
    rotations = [jnp.linalg.qr(jr.normal(getkey(), (d, d)))[0] for _ in range(depth + 1)]
    a = 1.2 * rotations[0][:, :1][:width] / jnp.linalg.norm(rotations[0][:width, 0])
    # W_L W_L^T = a a^T - delta I; all layers have its singular values.
    values, left = jnp.linalg.eigh(a @ a.T - delta * jnp.eye(width))
    sizes, layers = jnp.diag(jnp.sqrt(jnp.maximum(values, 0))), []
    for index, rotation in enumerate(rotations[1:]):  # from the last layer to the first
        right = rotation[:width] if index == depth - 1 or width > 1 else jnp.ones((1, 1))
        layers.append(left @ sizes @ right)
        left = right.T
    force = jr.normal(getkey(), (d, 1))
    chain = [*layers[::-1], a.T]
    truth = _velocity(chain, [1.0] * len(chain), force)[:, 0]
    beta = chain[0]
    for matrix in chain[1:]:
        beta = matrix @ beta
    found = lambda delta: -js.theory.deep_preconditioner(beta[0], delta, depth) @ force[:, 0]
    close = lambda value: np.testing.assert_allclose(value, truth, rtol=cases.eps(1e4), atol=cases.eps(1e4))
    close(found(delta))
    cases.assert_fails(lambda: close(found(delta + 0.3)))


@pytest.mark.parametrize("delta", [0.9, -0.9])
def test_deep_networks_that_start_isotropic(delta, getkey):
    width, init = 1 if delta > 0 else 3, js.nets.LambdaBalanced(delta)
    sizes = {"in_size": 3, "out_size": 1, "width_size": width, "depth": 2, "init": init, "key": getkey()}
    chain = list(js.nets.DeepLinear(scaling=js.nets.Scaling.standard(), **sizes).weights)
    force, beta = jr.normal(getkey(), (3, 1)), chain[2] @ chain[1] @ chain[0]
    truth = _velocity(chain, [1.0] * 3, force)[:, 0]
    close = lambda delta: np.testing.assert_allclose(
        -js.theory.deep_preconditioner(beta[0], delta, 2) @ force[:, 0], truth, rtol=cases.eps(1e4), atol=cases.eps(1e4)
    )
    close(delta)
    cases.assert_fails(lambda: close(delta / 2))


def test_the_derivative_of_the_deep_one(getkey):
    beta, slope = jr.normal(getkey(), (3,)), jr.normal(getkey(), (3,))
    along = lambda s: js.theory.deep_preconditioner(beta + s * slope, 0.5, 2)
    step = cases.eps() ** (1 / 3)
    numeric = (along(step) - along(-step)) / (2 * step)
    np.testing.assert_allclose(jax.jvp(along, (0.0,), (1.0,))[1], numeric, rtol=100 * step**2, atol=100 * step**2)


def test_bad_arguments(as_users):
    with pytest.raises(ValueError, match=r"betas must have shape \(h, d, c\) and delta \(h,\), got"):
        js.theory.neurons_preconditioner(jnp.ones((2, 3)), jnp.ones(2))
    with pytest.raises(ValueError, match=r"beta and force must both have shape \(d, c\), got \(2,\)"):
        js.theory.isotropic_velocity(jnp.ones(2), jnp.ones(2), 0.0)
    with pytest.raises(ValueError, match=r"shape \(d,\), got \(2,\) and \(3,\)"):
        js.theory.preconditioner_velocity(jnp.ones(2), jnp.ones(3))
    with pytest.raises(ValueError, match="beta must be a vector that is not zero"):
        js.theory.deep_preconditioner(jnp.zeros(2), 0.0, 1)
    with pytest.raises(ValueError, match="depth"):
        js.theory.deep_preconditioner(jnp.ones(2), 0.0, 0)


@pytest.mark.parametrize(
    ("w", "a"), [((0.0, 0.0), (2.0,)), ((3.0,), (0.0, 0.0)), ((3.0,), (0.0,)), ((0.0, 0.0), (0.0, 0.0))]
)
def test_a_neuron_with_one_factor_zero_still_moves(w, a):
    """M = a a^T x I + I x w w^T: where there is one output, or one input, beta = 0 and delta tell it."""
    w, a = jnp.array(w), jnp.array(a)
    beta, delta = jnp.outer(w, a)[None], jnp.array([a @ a - w @ w])
    truth = jnp.einsum("jl,in->ijnl", jnp.outer(a, a), jnp.eye(w.size))
    truth = truth + jnp.einsum("jl,in->ijnl", jnp.eye(a.size), jnp.outer(w, w))
    np.testing.assert_array_equal(js.theory.neurons_preconditioner(beta, delta), truth)


def test_a_direction_that_beta_does_not_tell_is_asked_for(as_users):
    beta, found = jnp.zeros((1, 2, 2)), js.theory.neurons_preconditioner
    with pytest.raises(ValueError, match="a_k is not zero, but beta_k does not determine its direction"):
        found(beta, jnp.ones(1))
    with pytest.raises(ValueError, match="w_k is not zero, but beta_k does not determine its direction"):
        found(beta, -jnp.ones(1))
    assert np.isnan(jax.jit(found)(beta, jnp.ones(1))).any()


@pytest.mark.parametrize("delta", [0.0, 5e-4])
def test_weak_modes_move_beside_strong_ones(delta):
    """In single precision as well: hypot(s, delta/2), not the root of what is left of a square."""
    beta = jnp.diag(jnp.array([1.0, 1e-4], jnp.float32))
    found = js.theory.isotropic_velocity(beta, jnp.eye(2, dtype=jnp.float32), jnp.float32(delta))
    np.testing.assert_allclose(found, -np.diag(2 * np.hypot([1.0, 1e-4], delta / 2)), rtol=1e-5)


def test_zero_singular_values_grow_between_the_null_spaces():
    """Of W = [[w, 0, 0], [0, 0, 0]] and A = diag(a, 1), a w = 2 and delta = 1, beta moves by -G off its one mode."""
    beta, force = jnp.zeros((3, 2)).at[0, 0].set(2.0), jnp.zeros((3, 2)).at[2, 1].set(1.0)
    for turn in (jnp.eye(3), jnp.linalg.qr(jr.normal(jr.key(0), (3, 3)))[0]):
        found = js.theory.spectral_velocity(turn @ beta, turn @ force, 1.0)
        np.testing.assert_allclose(found.velocities, [0.0, 1.0], atol=cases.eps(10))
        step = 1e-3  # and so do those of the weights themselves
        moved = turn @ beta + step * js.theory.isotropic_velocity(turn @ beta, turn @ force, 1.0)
        grown = (jnp.linalg.svd(moved, compute_uv=False) - found.values) / step
        np.testing.assert_allclose(grown, found.velocities, atol=2 * step)
    slope = jax.grad(lambda beta: jnp.sum(js.theory.spectral_velocity(beta, force, 1.0).velocities))
    assert np.isfinite(slope(jnp.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))).all()
    thin = js.theory.spectral_velocity(jnp.zeros((3, 3)), jnp.eye(3), 1.0, width=2).velocities
    assert np.isnan(thin[:2]).all()
    assert thin[2] == 0
