"""Soft committee machines: their averages by quadrature, their paths by online SGD in many dimensions."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import scipy.special

import jaxsolve as js
from jaxsolve.dynamics import OrderParameters
from tests import cases


def _g(z):
    return jax.lax.erf(z / 2**0.5)


def _parameters(seed=0, k=2, m=1, d=6):
    draws = np.random.default_rng(seed)
    w, b = 0.7 * draws.normal(size=(k, d)), draws.normal(size=(m, d))
    return OrderParameters.of(w, draws.normal(size=k), teacher=b, teacher_readout=draws.normal(size=m))


def _by_quadrature(at, rate, readout_rate, noise, nodes=48):
    """The derivatives of Q, R and v, and the error, by sums over Gauss-Hermite nodes of all preactivations."""
    Q, R, T, v, A = (np.asarray(array, np.float64) for array in (at.Q, at.R, at.T, at.v, at.A))
    k = len(v)
    root = np.linalg.cholesky(np.block([[Q, R], [R.T, T]]))
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    z = np.array(list(itertools.product(points, repeat=len(root)))) @ root.T
    p = np.prod(np.array(list(itertools.product(weights, repeat=len(root)))), axis=1) / (2 * np.pi) ** (len(root) / 2)
    g, slope = scipy.special.erf(z / 2**0.5), np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2)[:, :k]
    miss = g @ np.append(v, -A)
    drift = np.einsum("s,s,si,sb->ib", p, miss, v * slope, z)
    spread = np.einsum("s,s,si,sk->ik", p, miss**2 + noise, v * slope, v * slope)
    student = drift[:, :k]
    return (
        -rate * (student + student.T) + rate**2 * spread,
        -rate * drift[:, k:],
        -readout_rate * (p * miss) @ g[:, :k],
        (p * miss**2).sum() / 2,
    )


@pytest.mark.parametrize(("k", "m"), [(1, 1), (2, 1), (1, 2)])
def test_averages_by_quadrature(k, m):
    at, rates = _parameters(k=k, m=m), (0.7, 0.4, 0.2)
    expected = _by_quadrature(at, *rates)

    def check(rate, readout_rate, noise):
        found = js.SoftCommittee(rate, readout_rate=readout_rate, noise_variance=noise).velocity(at)
        for one, other in zip((found.Q, found.R, found.v, at.error), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6 if cases.X64 else 1e-4, atol=1e-7 if cases.X64 else 1e-5)
        assert not found.T.any()
        assert not found.A.any()

    check(*rates)
    for twin in ((0.6, 0.4, 0.2), (0.7, 0.3, 0.2), (0.7, 0.4, 0.0)):
        cases.assert_fails(lambda twin=twin: check(*twin))


def test_a_student_that_is_its_teacher_stays():
    b = np.random.default_rng(0).normal(size=(3, 8))
    readout = np.array([1.0, -0.5, 2.0])
    order = np.array([2, 0, 1])
    same = OrderParameters.of(b[order], readout[order], teacher=b, teacher_readout=readout)
    assert abs(same.error) < cases.eps(100)
    still = js.SoftCommittee(0.5, readout_rate=0.5).velocity(same)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(still)) < cases.eps(1e3)
    noisy = js.SoftCommittee(0.5, noise_variance=0.1).velocity(same)
    assert jnp.abs(noisy.Q).max() > 1e-3


TIMES, RATE, A = np.arange(1.0, 5.0), 1.5, np.array([1.0, 0.5])


def _distance(d, runs, follow):
    """The root mean square distance of overlaps in online SGD in d dimensions from those that are followed."""
    key = jr.key(d)
    first, second, third = jr.split(key, 3)
    w, b, v = 0.5 * jr.normal(first, (2, d)), jr.normal(second, (2, d)), jnp.array([0.7, 1.2])
    network = lambda w, v, x: jnp.sum(v * _g(w @ x / d**0.5), keepdims=True)

    def sample(key, size):
        x = jr.normal(key, (size, d))
        return x, jax.vmap(lambda x: network(b, jnp.asarray(A, w.dtype), x))(x)

    stream = js.Stream(js.nets.Function(lambda w, x: network(w, v, x), w), sample, key=third, size=1)

    def one(key):
        descent = js.Descent(optax.sgd(RATE), batch_size=1, key=key)
        found = js.solve(stream, descent, RATE * d * TIMES, observe=js.observe.parameters())["parameters"]
        w = found.reshape(len(TIMES), 2, d)
        return jnp.einsum("tid,tkd->tik", w, w) / d, jnp.einsum("tid,nd->tin", w, b) / d

    Q, R = jax.jit(jax.vmap(one))(jr.split(third, runs))
    end = follow(OrderParameters.of(w, v, teacher=b, teacher_readout=A))
    return float(jnp.sqrt(jnp.mean((Q - end.Q[None]) ** 2) + jnp.mean((R - end.R[None]) ** 2)))


def test_online_learning_in_many_dimensions():
    close = lambda follow: _distance(100, 8, follow) < 1.3 / 100**0.5
    assert close(lambda start: js.SoftCommittee(RATE).solve(start, TIMES))
    # Without the noise of single samples: gradient flow of the population loss.
    assert not close(lambda start: js.SoftCommittee(RATE / 1e3).solve(start, 1e3 * TIMES))


@pytest.mark.slow
def test_the_distance_falls_with_the_root_of_the_dimension():
    distances = [_distance(d, 16, lambda start: js.SoftCommittee(RATE).solve(start, TIMES)) for d in (250, 500, 1000)]
    slope = np.log(distances[2] / distances[0]) / np.log(4)
    assert -0.65 < slope < -0.35


def _escape(asymmetry):
    """The time at which a student leaves the plateau on which its units are alike, from a start that nearly is."""
    R = jnp.full((2, 2), 0.01) + asymmetry * jnp.array([[1.0, -1.0], [-1.0, 1.0]])
    start = OrderParameters(0.2 * jnp.eye(2), R, jnp.eye(2), jnp.ones(2), jnp.ones(2))
    ts = jnp.linspace(0.0, 300.0, 3001)
    error = np.asarray(js.SoftCommittee(1.0).solve(start, ts).error)
    plateau = error[150]  # at t = 15, where all have come
    return float(ts[np.argmax(error < plateau / 2)]), plateau


def test_the_plateau_grows_with_the_logarithm():
    """Of the asymmetry at the start, which is of order 1/sqrt(d) where weights are drawn."""
    (first, height), (second, _), (third, _) = (_escape(10.0**-power) for power in (3, 4, 5))
    assert height > 0.01
    assert 20 < first < second < third
    np.testing.assert_allclose(third - second, second - first, rtol=0.02)


def _end(rate):
    ts = jnp.array([0.0, 1.0, 3.0])
    return js.SoftCommittee(rate, readout_rate=rate / 2).solve(_parameters(k=2, m=2), ts)


def test_jit_and_vmap():
    start, end = _parameters(k=2, m=2), _end
    rates = jnp.array([0.3, 0.8])
    many = jax.jit(jax.vmap(end))(rates)
    for rate, row in zip(rates, many.error, strict=True):
        np.testing.assert_allclose(row, end(rate).error, rtol=1e-6 if cases.X64 else 1e-3)
    one = end(0.3)
    np.testing.assert_allclose(one.Q[0], start.Q, rtol=cases.eps(10))
    np.testing.assert_allclose(one.Q, jnp.swapaxes(one.Q, 1, 2), rtol=cases.eps(100), atol=cases.eps(100))


@pytest.mark.slow
def test_gradients():
    h = 1e-3 if cases.X64 else 3e-2
    numeric = (_end(0.3 + h).error[-1] - _end(0.3 - h).error[-1]) / (2 * h)
    slope = jax.grad(lambda rate: _end(rate).error[-1])(0.3)
    np.testing.assert_allclose(slope, numeric, rtol=1e-4 if cases.X64 else 0.02)


@pytest.mark.slow
def test_convergence_with_the_tolerance():
    start = _parameters(k=2, m=2)
    end = lambda rtol: js.SoftCommittee(1.0, rtol=rtol).solve(start, 5.0).error[-1]
    exact = end(1e-10 if cases.X64 else 1e-6)
    assert abs(end(1e-4) - exact) < 1e-3 * exact
    if cases.X64:
        assert abs(end(1e-7) - exact) < 1e-6 * exact


def test_a_run_that_takes_no_time():
    start = _parameters()
    assert eqx.tree_equal(jax.tree.map(lambda leaf: leaf[0], js.SoftCommittee(1.0).solve(start, 0.0)), start)


@pytest.mark.usefixtures("as_users")
def test_bad_arguments():
    start, bad = _parameters(), np.ones
    faults: list[tuple[dict[str, Any], str]] = [
        ({"rate": -1.0}, "rate must be one finite number >= 0, got -1"),
        ({"rate": 1.0, "noise_variance": jnp.nan}, "noise_variance must be one finite number"),
        ({"rate": 1.0, "max_steps": 0}, "max_steps"),
    ]
    for options, message in faults:
        with pytest.raises(ValueError, match=message):
            js.SoftCommittee(**options)
    committee: Any = js.SoftCommittee(1.0)
    with pytest.raises(TypeError, match="start must be js.dynamics.OrderParameters, got int"):
        committee.solve(3, 1.0)
    with pytest.raises(ValueError, match="start must be at one time"):
        committee.solve(committee.solve(start, [0.0, 1.0]), 1.0)
    for ts, message in (([1.0, 0.5], "sorted"), (-1.0, ">= 0"), (jnp.inf, "ts must be finite")):
        with pytest.raises(ValueError, match=message):
            committee.solve(start, ts)
    with pytest.raises(ValueError, match=r"must have one d, got shapes \(2, 3\) and \(1, 4\)"):
        OrderParameters.of(bad((2, 3)), bad(2), teacher=bad((1, 4)), teacher_readout=bad(1))
    with pytest.raises(ValueError, match="order parameters of 3 units and a teacher of 1 have shapes"):
        OrderParameters.of(bad((2, 3)), bad(3), teacher=bad((1, 3)), teacher_readout=bad(1))
    with pytest.raises(ValueError, match="v must be an array of one number for each unit"):
        OrderParameters(bad((1, 1)), bad((1, 1)), bad((1, 1)), 1.0, bad(1))
    with pytest.raises(RuntimeError, match="max_steps|maximum number"):
        js.SoftCommittee(1.0, max_steps=2).solve(start, 100.0)
