"""Neurons at quadrature points: the kernels of their start against formulas, and what more of them are worth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxsolve as js
from jaxsolve.dynamics.wide import dmft
from tests.cases import assert_fails, eps


X = np.array([[0.3, -0.8], [1.1, 0.4], [-0.6, 0.9]])


def _net(width=64, activation="erf"):
    rule = js.nets.Scaling.mean_field(0.7, sigma=1.3)
    return js.nets.MLP(
        in_size=2, out_size=2, width_size=width, depth=1, activation=activation, scaling=rule, key=jr.key(0)
    )


def _arcsine():
    """<erf(h) erf(h)> of Gaussian h (Williams, 1997)."""
    gram = 2 * 1.3**2 * X @ X.T / 2
    size = 1 + np.diag(gram)
    return 2 / np.pi * np.arcsin(gram / np.sqrt(np.outer(size, size)))


def _off(samples, seed):
    net = dmft.sampled(_net(), samples, seed)
    signals = np.asarray(js.nets.erf(jnp.asarray(X @ np.asarray(net.weights[0]).T / 2**0.5)))
    return np.abs(signals @ signals.T / samples - _arcsine()).max()


def test_more_points_are_worth_more_than_draws():
    few, many = (np.mean([_off(samples, seed) for seed in range(5)]) for samples in (128, 8192))
    assert np.log2(few / many) / 6 > 0.7  # draws: 0.5
    assert many < 1e-3


def test_the_normal_form_stays_and_the_start_is_zero():
    net = _net()
    points = dmft.sampled(net, 256, 0)
    before = dmft.normal_form(net)
    same = lambda other, name: np.testing.assert_allclose(
        getattr(dmft.normal_form(other), name), getattr(before, name), rtol=eps(10)
    )
    for name, read in (
        ("rate", lambda n: n.scaling.eta),
        ("variance", lambda n: n.weights),
        ("richness", lambda n: n.scaling.multiplier),
    ):
        same(points, name)
        off = eqx.tree_at(read, points, read(net))  # that of the network of another width
        assert_fails(lambda off=off, name=name: same(off, name))
    np.testing.assert_allclose(jax.vmap(points)(jnp.asarray(X)), 0, atol=eps(100))


def test_the_error_is_that_of_other_points():
    found = []
    for seed in range(12):
        net = dmft.sampled(_net(), 128, seed)
        net = eqx.tree_at(lambda one: one.weights[1], net, net.weights[1] + 0.3 * jnp.sin(net.weights[0].T))
        found.append((jax.vmap(net)(jnp.asarray(X)), dmft.sampling_error(net, jnp.asarray(X))))
    outputs, errors = (np.stack([np.asarray(pair[i]) for pair in found]) for i in (0, 1))
    ratio = outputs.std(0, ddof=1) / np.sqrt(np.mean(errors**2, axis=0))
    assert np.all((ratio > 0.4) & (ratio < 2.0)), ratio


def test_a_point_at_zero_is_a_finite_weight(monkeypatch):
    """One in 150 seeds of 784 inputs and 8192 points has a Sobol point that is exactly 0, whose quantile is -inf."""
    from scipy.stats import qmc

    monkeypatch.setattr(qmc.Sobol, "random", lambda self, count: np.zeros((count, self.d)))
    weights = dmft.sampled(_net(), 64, 0).weights
    assert all(np.all(np.isfinite(w)) for w in weights)


def test_small_layers_are_aligned_as_large_ones():
    w, u = jr.normal(jr.key(0), (5, 3), jnp.float32), jr.normal(jr.key(1), (1, 5), jnp.float32)
    on_a_line = jnp.array([[0.0, 0.0, 1.0]], jnp.float32)
    for x, scale in ((None, 1e-12), (None, 1e-24), (on_a_line, 1e-24)):
        found, tiny = (dmft.two_layer_alignment(s * w, s * u, x) for s in (1.0, scale))
        np.testing.assert_allclose(tiny, found, rtol=1e-5)
    whole = jnp.concatenate([w, jnp.eye(5, dtype=jnp.float32)], axis=1)
    inside = dmft.two_layer_alignment(w, u, None, outside=jnp.float32(5))
    np.testing.assert_allclose(inside * jnp.linalg.norm(whole), jnp.linalg.norm(u @ w) / jnp.linalg.norm(u), rtol=1e-5)
