"""Closed forms in single precision, where powers of their numbers under- or overflow and their results do not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests.cases import X64
from tests.inside import half_loss_time, mode_strength


def single(*values):
    return tuple(jnp.asarray(value, jnp.float32) for value in values)


def deep(layers, strength, targets, *, gamma=1.0, size=1.0):
    """W_l = strength I on inputs of a size, in single precision."""
    n = len(targets)
    scaling = js.nets.Scaling([1.0] * layers, [1.0] * layers, [1.0] * layers, gamma=gamma)
    init = js.nets.Given([strength * jnp.eye(n)] * layers)
    net = js.nets.DeepLinear(
        in_size=n, out_size=n, width_size=n, depth=layers - 1, scaling=scaling, init=init, key=jr.key(0)
    )
    problem = js.Problem(net, size * n**0.5 * jnp.eye(n), jnp.diag(jnp.asarray(targets)))
    return jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, problem)


def test_a_mode_whose_power_is_no_number_stays_and_rises():
    """v = 1e-10 of 5 matrices: v^5 is 1e-50, and the escape, at v^-3/3, 3e29."""
    law = jax.jit(lambda v, T: mode_strength(v, jnp.float32(1), T, matrices=5))
    v = jnp.float32(1e-10)
    for T, expected in ((0.0, 1e-10), (1.0, 1e-10), (1e29, 1e-10 * 0.7 ** (-1 / 3)), (1e31, 1.0), (jnp.inf, 1.0)):
        np.testing.assert_allclose(law(v, jnp.float32(T)), expected, rtol=1e-4, err_msg=str(T))
    slope = jax.grad(law)(v, jnp.float32(1e29))
    np.testing.assert_allclose(slope, 0.7 ** (-4 / 3), rtol=1e-3)
    np.testing.assert_allclose(half_loss_time(*single(1e-10, 1.0), matrices=5), 1e30 / 3, rtol=1e-3)
    assert half_loss_time(*single(1e-10, 1.0), matrices=10) == np.inf  # 1e80/8
    np.testing.assert_allclose(mode_strength(*single(1e-10, 1.0, 1e38), matrices=10), 1e-10, rtol=1e-5)


@pytest.mark.parametrize(("layers", "strength"), [(8, 1e-4), (10, 1e-5)])
def test_deep_saddles_are_left_in_infinite_time(layers, strength):
    """At 1.7e23 with 8 matrices, beyond the square root of the largest number; with 10, beyond all numbers."""
    targets = (1.0, 0.5)
    problem = deep(layers, strength, np.sqrt(2) * np.array(targets))
    run = js.solve(problem, js.theory.DeepBalanced(), [0.0, 1.0, jnp.inf], observe=js.observe.outputs())
    np.testing.assert_allclose(run["outputs"][-1], problem.y, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run["outputs"][1], 0, atol=1e-30)


def test_modes_without_a_target_end_at_zero():
    """v = (18 T)^(-1/18) of 10 matrices is no small number at any time that float32 can hold."""
    at = lambda t: js.theory.DeepBalanced().at(deep(10, 0.5, (1.0, 0.0)), jnp.float32(t)).params.weights[3][1, 1]
    assert at(jnp.inf) == 0
    np.testing.assert_allclose(at(1e19), 18e19 ** (-1 / 18), rtol=1e-3)


@pytest.mark.parametrize("size", [1e-12, 1e10])
def test_inputs_of_any_size(size):
    """gamma makes up for it: the networks are the same function of whitened inputs."""
    found = []
    for here in (1.0, size):
        problem = deep(2, 0.3, (1.0, 0.5), gamma=1 / here, size=here)
        form = js.theory.Balanced()
        assert form.check(problem).exact
        found.append([form.at(problem, jnp.float32(t)).outputs for t in (0.0, 1.0, jnp.inf)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[1][-1], np.diag([1.0, 0.5]), rtol=1e-5, atol=1e-6)


def test_derivatives_of_isotropic_velocities_where_eigenvalues_are_equal():
    """Across beta beta^T every eigenvalue is delta^2/4: the root has a derivative, but eigenvectors have none."""
    force = jnp.array([[0.3, -0.1], [1.0, 0.2], [-0.5, 0.4], [0.7, 0.1]])
    ways = jnp.cos(jnp.arange(8.0)).reshape(4, 2)
    moved = jax.jit(lambda beta, step: js.theory.isotropic_velocity(beta + step * ways, force, 1.0))
    slope, step = jax.jit(jax.jacfwd(moved, 1)), 1e-5 if X64 else 1e-2
    for beta in (jnp.zeros((4, 2)), jnp.array([[3.0, 0.0], [4.0, 1.0], [0.0, 0.0], [0.0, -2.0]])):
        found = slope(beta, 0.0)
        np.testing.assert_allclose(found, (moved(beta, step) - moved(beta, -step)) / (2 * step), atol=1e-3)
    by_rows = jax.grad(lambda step: jnp.sum(moved(beta, step)))(0.0)
    np.testing.assert_allclose(by_rows, jnp.sum(found), rtol=1e-4)
    assert np.max(np.abs(found)) > 0.1


def test_small_betas_of_neurons_precondition():
    """M = a^2 I + w w^T of a neuron with a = 1 and a small w."""
    tiny = js.theory.neurons_preconditioner(jnp.full((1, 2, 1), 1e-25, jnp.float32), jnp.ones(1, jnp.float32))
    np.testing.assert_allclose(tiny[:, 0, :, 0], np.eye(2), atol=1e-6)


def test_a_reduced_line_of_small_numbers_ends():
    line = js.theory.ReducedLine.from_pq(*single(1.0, 1.0, 0.0, 1e-25, 1e-25))
    np.testing.assert_allclose(line.f(jnp.float32(jnp.inf)), 1e-25, rtol=1e-5)
    assert line.zeta(jnp.float32(jnp.inf)) > 0


def test_small_neurons_and_targets_have_directions():
    w, b = np.array([3e-25, 4e-25]), np.array([0.0, 2e-25])
    neuron = js.theory.ReducedNeuron(*single(1.0, w, b, 1.0))
    mu, phi = neuron.radius_and_alignment(jnp.float32(0))
    np.testing.assert_allclose([mu / 1e-25, phi], [5, 0.8], rtol=1e-5)
    balanced = js.theory.ReducedNeuron(*single(5e-20, np.array([3e-20, 4e-20]), np.array([0.0, 2.0]), 1.0))
    assert balanced.delta == 0
    assert balanced.basin == 1
