"""When linear networks align."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import GradientFlow, nets, NotApplicable, observe, Problem, solve, theory


def _problem(sigma, depth=2, key=0):
    scaling = nets.Scaling(
        multiplier=[0.5, 2.0, 1.0][: depth + 1],
        sigma=[sigma] * (depth + 1),
        eta=[2.0, 0.5, 1.5][: depth + 1],
        gamma=1.5,
    )
    net = nets.DeepLinear(in_size=3, width_size=6, depth=depth, scaling=scaling, key=jr.key(key))
    x = 2 * jnp.linalg.qr(jr.normal(jr.key(1), (4, 3)))[0]
    return Problem(net, x, x @ jnp.array([[0.6], [0.8], [0.0]]))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_speed_of_the_first_layer(depth):
    """By differentiating the loss at a start whose output is small. Twin: rates, multipliers or gamma left out."""
    problem = _problem(1e-4, depth)
    gradient = jax.grad(problem.objective)(problem.params).weights[0]
    expected = jnp.linalg.norm(problem.params.weights[0]) / (2.0 * jnp.linalg.norm(gradient))
    np.testing.assert_allclose(theory.alignment_time(problem), expected, rtol=1e-3)
    for name in ("eta", "gamma", "multiplier"):
        read = lambda p, name=name: getattr(p.net.scaling, name)
        off = eqx.tree_at(read, problem, replace_fn=lambda old: jnp.ravel(old).at[0].set(1.0).reshape(old.shape))
        assert abs(theory.alignment_time(off) / expected - 1) > 0.1


@pytest.mark.slow
@pytest.mark.x64_only
def test_the_time_follows_that_of_the_cosine():
    """At three layers both grow as 1/sigma: their ratio stays."""
    ratios = []
    for sigma in (1e-2, 1e-3):
        problem = _problem(sigma, key=2)
        scale = float(theory.alignment_time(problem))
        ts = jnp.linspace(0, 4 * scale, 400)
        cosine = solve(problem, GradientFlow(), ts, observe=observe.layer_cosine())["layer_cosine_0"]
        ratios.append(float(ts[jnp.argmax(cosine > 0.9)]) / scale)
    assert 0.1 < ratios[0] < 4
    assert abs(ratios[0] / ratios[1] - 1) < 0.05  # twin: without the factor 1/sigma it would be 10


def test_phase_times_by_hand():
    times = theory.phase_times(jnp.array([2.0, 0.5]), start=1e-3)
    np.testing.assert_allclose((times.alignment, times.learning), (2.0, np.log(2000) / 4), rtol=1e-6)
    np.testing.assert_allclose(times.ratio, 8 / np.log(2000), rtol=1e-6)


def test_what_is_refused():
    with pytest.raises(ValueError, match="start must be below the largest s"):
        theory.phase_times(jnp.ones(1), start=2.0)
    with pytest.raises(ValueError, match="start"):
        theory.phase_times(jnp.ones(1), start=0.0)
    net = nets.MLP(
        in_size=3, out_size=1, width_size=6, depth=1, activation="relu", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    with pytest.raises(NotApplicable, match="linear activation"):
        theory.alignment_time(Problem(net, jnp.eye(3), jnp.ones((3, 1))))
