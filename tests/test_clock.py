import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

from jaxsolve import Descent
from tests.cases import eps
from tests.inside import nearest_step, time_at


LAST = 10**7


def test_time_of_momentum_is_where_its_velocity_settles():
    """Heavy ball on a constant slope: after many steps each moves by rate/(1 - momentum) times the slope."""
    rate, momentum, velocity, moved = 0.1, 0.8, 0.0, []
    for _ in range(400):
        velocity = momentum * velocity - rate
        moved.append(-velocity)
    assert (seen := Descent(optax.sgd(rate, momentum=momentum)).rate) is not None
    np.testing.assert_allclose(moved[-1], seen, rtol=eps(10))


@pytest.mark.parametrize(
    ("t", "expected"),
    [(0.0, 0), (0.1, 1), (0.1499, 1), (0.1501, 2), (0.3, 3), (1e3, 10_000), ([0.04, 0.06, 0.24], [0, 1, 2])],
)
def test_step_nearest_to_a_time(t, expected):
    steps, _ = nearest_step(jnp.asarray(t), jnp.asarray(0.1), LAST)
    assert jnp.issubdtype(steps.dtype, jnp.integer)
    np.testing.assert_array_equal(steps, expected)


def test_time_of_a_step_has_the_dtype_of_the_rate():
    for dtype in (jnp.float16, jnp.float32):
        times = time_at(jnp.asarray([0, 1, 7]), jnp.asarray(0.25, dtype))
        assert times.dtype == dtype
        np.testing.assert_array_equal(times, [0, 0.25, 1.75])


@settings(max_examples=50, deadline=None)
@given(step=st.integers(0, 10**6), rate=st.floats(1e-6, 1000.0))
def test_steps_survive_the_way_to_time_and_back(step, rate):
    per_step = jnp.asarray(rate)
    assert nearest_step(time_at(jnp.asarray(step), per_step), per_step, LAST)[0] == step


def test_what_comes_after_the_last_step_keeps_its_time():
    t = jnp.asarray([0.2, 0.33, 0.36, 5.0, 1e30, jnp.inf])
    steps, times = nearest_step(t, jnp.asarray(0.1), 3)
    np.testing.assert_array_equal(steps, [2, 3, 4, 4, 4, 4])
    np.testing.assert_allclose(times, [0.2, 0.3, *t[2:]], rtol=eps(4))  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_times_round_by_at_most_half_a_step():
    t, per_step = jnp.linspace(0.0, 3.0, 101), jnp.asarray(0.07)
    assert jnp.max(jnp.abs(nearest_step(t, per_step, LAST)[1] - t)) <= 0.035 * (1 + eps(100))


def test_under_jit_vmap_and_grad():
    rates = jnp.asarray([0.1, 0.2])
    found = jax.jit(jax.vmap(lambda rate: nearest_step(jnp.asarray(1.0), rate, LAST)[0]))(rates)
    np.testing.assert_array_equal(found, [10, 5])
    np.testing.assert_allclose(jax.grad(lambda rate: time_at(jnp.asarray(7), rate))(0.3), 7, rtol=eps(4))
