"""Closed forms are written in pieces; where two meet, the derivative is that of the function, not of one piece."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.theory import ReducedLine, ReducedNeuron
from tests.inside import mode_strength


pytestmark = pytest.mark.x64_only
TIMES = [0.0, 0.4, 1.0, 5.0, jnp.inf]


def central(f, at, step=1e-4):
    """Finite differences of order 4."""
    return (8 * (f(at + step) - f(at - step)) - (f(at + 2 * step) - f(at - 2 * step))) / (12 * step)


def line(a, b, y):
    return ReducedLine.from_layers(jnp.stack(a), jnp.stack(b), jnp.array(1.3), y)


METHODS = {
    "f": lambda line, t: line.f(t),
    "residual": lambda line, t: line.residual(t),
    "P": lambda line, t: line.pq[0],
    "Q": lambda line, t: line.pq[1],
    "read-out": lambda line, t: line.squared_norms(t)[0],
    "input": lambda line, t: line.squared_norms(t)[1],
    "xi": lambda line, t: line.log_xi(t),
    "zeta": lambda line, t: line.zeta(t),
}
PLACES = {
    "no output": lambda s: line([1.0, 0.5], [s - 0.1, 0.2], jnp.array(0.7)),
    "no target": lambda s: line([1.0, 0.5], [0.6, 0.2], s),
    "no target, output below it": lambda s: line([-1.0, 0.5], [0.6, 0.2], s),
    "no target, no output": lambda s: line([1.0, 0.5], [-0.1, 0.2], s),
    "balanced": lambda s: line([1.0 + s, 0.5], [0.5, 1.0], jnp.array(0.7)),
    "at its target": lambda s: line([1.0, 0.5], [0.6, 0.2], 1.3 * line([1.0, 0.5], [0.6, 0.2], s).product + s),
}
ZEROS = {"no output": "product", "no target": "y", "balanced": "phi"}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", PLACES)
def test_line(place, name):
    value = jax.jit(lambda s, t: METHODS[name](PLACES[place](s), t))
    slope = jax.jit(jax.grad(value))
    for t in TIMES:
        np.testing.assert_allclose(slope(0.0, t), central(lambda s, t=t: value(s, t), 0.0), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("place", ZEROS)
def test_places_are_on_the_border(place):
    assert getattr(PLACES[place](jnp.array(0.0)), ZEROS[place]) == 0


def test_read_out_of_zeros():
    """The start of most two-layer networks with a zero output: P and Q lose a term each where |a.b| counts as flat."""
    start = lambda u: ReducedLine.from_layers(jnp.array([u]), jnp.ones(1), jnp.array(1.0), jnp.array(1.0))
    assert float(jax.grad(lambda u: start(u).pq[0])(0.0)) == pytest.approx(1.0, rel=1e-14)
    assert float(jax.grad(lambda u: start(u).pq[1])(0.0)) == pytest.approx(-1.0, rel=1e-14)
    out = jax.jit(lambda u: start(u).f(1.0))
    np.testing.assert_allclose(jax.grad(out)(0.0), central(out, 0.0), rtol=1e-8)


@pytest.mark.parametrize("y", [0.0, 1e-9])
def test_nothing_moves_and_nothing_is_wanted(y):
    """Parallel layers without a target: R = 0."""
    for sign in (1.0, -1.0):
        out = jax.jit(
            lambda y, t, s=sign: ReducedLine.from_layers(jnp.array([0.7]), jnp.array([s * 0.7]), jnp.array(1.0), y).f(t)
        )
        for t in (0.3, 2.0):
            np.testing.assert_allclose(jax.grad(out)(y, t), central(lambda y, out=out, t=t: out(y, t), y), rtol=1e-6)


@pytest.mark.parametrize("a", [1.0, 0.3, 0.5], ids=["upstream", "downstream", "balanced"])
@pytest.mark.parametrize("t", [0.0, 0.7, 30.0])
def test_neuron_without_a_target(a, t):
    def beta(b):
        return ReducedNeuron(jnp.array(a), jnp.array([0.3, 0.4]), b, jnp.array(1.2)).beta(t)

    numeric = np.stack([central(lambda s, e=e: jax.jit(beta)(s * e), 0.0, 3e-4) for e in np.eye(2)], axis=1)
    np.testing.assert_allclose(jax.jacobian(beta)(jnp.zeros(2)), numeric, rtol=1e-6, atol=1e-9)


def test_neuron_ends_at_its_target():
    """Upstream every target is fitted, so that beta(inf) = b; balanced or downstream the saddle may be in between."""
    beta = lambda b: ReducedNeuron(jnp.array(1.0), jnp.array([0.5, 0.0]), b, jnp.array(1.0)).beta(jnp.inf)
    np.testing.assert_allclose(jax.jacobian(beta)(jnp.zeros(2)), np.eye(2), atol=1e-14)
    still = lambda b: ReducedNeuron(jnp.array(0.5), jnp.array([0.5, 0.0]), b, jnp.array(1.0)).beta(jnp.inf)
    assert np.all(np.isfinite(still(jnp.zeros(2))))
    assert np.all(np.isfinite(jax.jacobian(still)(jnp.zeros(2))))


@pytest.mark.parametrize("matrices", [2, 3, 5])
def test_modes_at_rest_follow_their_targets(matrices):
    """A target of 0 and one that is met; by finite differences, and for the second the linear law."""
    for T in (0.0, 0.5, 1.0, 4.0):
        v = lambda v, s, T=T: mode_strength(v, s, jnp.array(T), matrices=matrices) ** matrices
        half = jnp.array(0.5)
        of_target = jax.jit(lambda s, v=v, half=half: v(half, s))
        none = jax.grad(v, 1)(half, jnp.array(0.0))
        np.testing.assert_allclose(none, central(of_target, 0.0, 1e-5), rtol=2e-4, atol=1e-9)
        met = half**matrices
        decay = np.exp(-matrices * 0.5 ** (2 * matrices - 2) * T)
        np.testing.assert_allclose(jax.grad(v, 1)(half, met), 1 - decay, rtol=1e-12, atol=1e-14)
        start = jax.grad(v, 0)(half, met)
        np.testing.assert_allclose(start, matrices * 0.5 ** (matrices - 1) * decay, rtol=1e-12)
    far = mode_strength(jnp.array([0.5, 0.0]), jnp.zeros(2), jnp.full(2, 1e300), matrices=matrices)
    assert np.all(np.isfinite(far))


@pytest.mark.parametrize("matrices", [2, 5, 10])
def test_small_modes_in_single_precision(matrices):
    """Those that move know nothing of the others, whose powers overflow."""
    v = jnp.array([1e-3, 2e-3, 0.5, 1e-8, 0.0], jnp.float32)
    s = jnp.array([1.0, 1.0, 0.0, 0.0, 0.0], jnp.float32)

    def total(v, s, T):
        return jnp.sum(mode_strength(v, s, jnp.full(5, T), matrices=matrices))

    for found in jax.grad(total, (0, 1, 2))(v, s, jnp.float32(3.0)):
        assert found.dtype == jnp.float32
        assert np.all(np.isfinite(found))


@pytest.mark.slow
def test_deep_network_with_a_target_of_lower_rank():
    """Through the problem: the derivative in an entry of the targets that is 0, against integration of the weights."""
    scaling = js.nets.Scaling(multiplier=[1.0] * 3, sigma=[1.0] * 3, eta=[1.0] * 3)
    init = js.nets.Given([0.5 * jnp.eye(2)] * 3)
    net = js.nets.DeepLinear(
        in_size=2, out_size=2, width_size=2, depth=2, scaling=scaling, init=init, key=jax.random.key(0)
    )

    def outputs(s, dynamics):
        problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.stack([1.0 + 0 * s, s])))
        return js.solve(problem, dynamics, 1.0, observe=js.observe.outputs())["outputs"][1, 1]

    exact = jax.jvp(lambda s: outputs(s, js.theory.DeepBalanced()), (0.0,), (1.0,))[1]
    flow = js.GradientFlow(rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(exact, central(lambda s: outputs(s, flow), 0.0, 1e-2), rtol=1e-3)
