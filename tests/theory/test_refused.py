"""Arguments that closed forms refuse, and numbers of every kind that they take."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve import theory


NET = js.nets.TwoLayerLinear(in_size=2, width_size=2, scaling=js.nets.Scaling.ntk(), key=jr.key(0))
MODES = theory.BalancedModes.from_map(np.eye(2), np.ones(2))
OVERLAPS = jnp.ones(5)


@pytest.mark.parametrize(
    ("ask", "kind", "said"),
    [
        (lambda: theory.early_mode(-1.0, start=0.1, s=1.0, eta=np.ones(3)), ValueError, "t must be a time >= 0"),
        (lambda: theory.early_overlaps(OVERLAPS, -1.0, s=1.0, a=1.0, b=1.0), ValueError, "t must be a time >= 0"),
        (lambda: theory.early_overlaps(OVERLAPS, 1.0, s=1.0, a=1.0, b=0.0), ValueError, "b must be finite and > 0"),
        (lambda: theory.unbalanced_regime(2, 2, 1, jnp.ones(2)), TypeError, "delta must be a number"),
        (lambda: theory.spectral_velocity(np.ones((1, 1)), np.ones(1), delta=0.0), ValueError, "matrices of one shape"),
        (lambda: theory.alignment_time(NET), TypeError, "must be a jaxsolve.Problem"),  # pyright: ignore
        (lambda: MODES.hidden_kernel(1.5), TypeError, "layer must be an integer"),  # pyright: ignore
        (lambda: theory.classify_network(2.5), TypeError, "width must be an integer"),  # pyright: ignore
        (lambda: theory.balance_offsets(0.2), ValueError, r"shape \(L - 1,\)"),
    ],
)
def test_bad_arguments_are_named(ask, kind, said, as_users):
    with pytest.raises(kind, match=said):
        ask()


def test_arrays_and_numbers_of_other_libraries_are_taken(as_users):
    rich, lazy = theory.UnbalancedRegime.RICH, theory.UnbalancedRegime.LAZY
    assert theory.unbalanced_regime(2, 2, 1, jnp.zeros(())) is rich
    assert theory.unbalanced_regime(2, 2, 1, np.float32(1)) is lazy
    assert theory.spectral_velocity(np.array([[2.0]]), np.array([[-1.0]]), delta=0.0).velocities.shape == (1,)


def test_a_law_without_a_power_is_one_everywhere():
    laws = theory.lazy_scaling(1)
    assert laws.crossover.alpha == 0
    np.testing.assert_allclose(laws.crossover(100.0, 0.0), 0.1, rtol=1e-6)


def test_derivatives_by_p_and_q_at_zero_are_unknown_and_not_wrong():
    """The layers' product is the root of P Q: with a derivative of 0 there, all that P Q enters would be left out."""
    at = lambda P, Q: theory.ReducedLine.from_pq(P, Q, jnp.zeros(()), jnp.ones(()), jnp.ones(())).f(jnp.ones(()))
    assert np.isnan(jax.grad(at, 1)(jnp.ones(()), jnp.zeros(())))
    found = jax.grad(at, 1)(jnp.ones(()), jnp.full((), 0.5))
    step = 1e-2
    near = (at(jnp.ones(()), jnp.full((), 0.5 + step)) - at(jnp.ones(()), jnp.full((), 0.5 - step))) / (2 * step)
    np.testing.assert_allclose(found, near, rtol=1e-2)
