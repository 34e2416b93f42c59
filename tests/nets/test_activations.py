import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
from hypothesis import given, settings, strategies as st

from jaxsolve import GradientFlow, nets, Problem, solve
from jaxsolve.nets import Activation, leaky_relu, softplus
from tests.cases import ACTIVATIONS, assert_fails, eps
from tests.inside import find_activation, kinked


EACH = pytest.mark.parametrize("name", ACTIVATIONS)
POINTS = np.array([-30.0, -3.0, -1.1, -0.2, -1e-3, 1e-3, 0.3, 0.9, 2.5, 30.0])


@EACH
def test_value_and_derivative(name):
    phi, value, derivative = ACTIVATIONS[name]
    z = jnp.asarray(POINTS)
    out, slope = jax.jit(lambda z: jax.jvp(phi, (z,), (jnp.ones_like(z),)))(z)
    np.testing.assert_allclose(out, value(POINTS), rtol=eps(50), atol=eps(4))
    np.testing.assert_allclose(slope, derivative(POINTS), rtol=eps(50), atol=eps(4))
    for _, other_value, other_derivative in (ACTIVATIONS[other] for other in ACTIVATIONS if other != name):
        for found, wrong in ((out, other_value), (slope, other_derivative)):
            check = functools.partial(np.testing.assert_allclose, found, wrong(POINTS), rtol=eps(50), atol=eps(4))
            assert_fails(check)


@EACH
def test_gain_is_one_over_the_rms_for_a_unit_gaussian(name):
    phi, value, _ = ACTIVATIONS[name]

    def integrand(z):
        return float(value(np.float64(z))) ** 2 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    halves = [scipy.integrate.quad(integrand, *ends, epsabs=0, epsrel=1e-12)[0] for ends in ((-12, 0), (0, 12))]
    tolerance = max(1e-12, eps(10))
    assert phi.gain == pytest.approx(sum(halves) ** -0.5, rel=tolerance)
    without_negative = halves[1] ** -0.5
    assert (phi.gain == pytest.approx(without_negative, rel=tolerance)) == (name == "relu")


def test_known_gains():
    assert nets.linear.gain == pytest.approx(1, rel=eps(10))
    assert nets.relu.gain == pytest.approx(2**0.5, rel=eps(10))
    assert leaky_relu(0.5).gain == pytest.approx(1.6**0.5, rel=eps(10))
    assert softplus(5.0).gain == pytest.approx(1.404, abs=5e-4)  # Geiger et al.


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.grad,
        lambda f: lambda z: jax.vmap(f)(jnp.full(2, z))[0],
        lambda f: lambda z: jax.jit(jax.vmap(f))(jnp.full(2, z))[0],
        lambda f: lambda z: jax.jit(jax.vmap(jax.grad(f)))(jnp.full(2, z))[0],
    ],
)
@pytest.mark.parametrize("fn", [jax.nn.relu, lambda z: z])
def test_gain_is_a_number_inside_every_transformation(transform, fn):
    fresh = Activation("fresh", lambda z: fn(3 * z))  # its gain is not known yet
    expected = 2**0.5 / 3 if fn is jax.nn.relu else 1 / 3
    assert transform(lambda z: z * fresh.gain)(1.0) == pytest.approx(expected, rel=eps(10))


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if ACTIVATIONS[name][0].homogeneous])
@settings(max_examples=30, deadline=None)
@given(z=st.one_of(st.just(0.0), st.floats(1e-3, 10), st.floats(-10, -1e-3)), c=st.floats(0.01, 100))
def test_homogeneous_functions_commute_with_positive_factors(name, z, c):
    phi = ACTIVATIONS[name][0]
    np.testing.assert_allclose(phi(jnp.asarray(c * z)), c * phi(jnp.asarray(z)), rtol=eps(10))


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if not ACTIVATIONS[name][0].homogeneous])
def test_other_functions_do_not(name):
    phi = ACTIVATIONS[name][0]
    one, two = jax.jit(phi)(jnp.asarray([0.5, 1.0]))
    assert abs(two - 2 * one) > 0.01


def test_only_the_identity_is_linear():
    assert {name for name in ACTIVATIONS if ACTIVATIONS[name][0].linear} == {"linear"}


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if "(" not in name])
def test_found_by_name(name):
    assert find_activation(name) == ACTIVATIONS[name][0]
    assert find_activation(ACTIVATIONS[name][0]) is ACTIVATIONS[name][0]


def test_no_overflow():
    z = jnp.asarray([-1e4, -1e3, 0.0, 1e3, 1e4])
    every = [phi for phi, *_ in ACTIVATIONS.values()]
    values, slopes = jax.jit(lambda z: jax.jvp(lambda z: jnp.stack([phi(z) for phi in every]), (z,), (jnp.ones(5),)))(z)
    assert jnp.all(jnp.isfinite(values))
    assert jnp.all(jnp.isfinite(slopes))
    np.testing.assert_allclose(softplus(2.0)(z), [0, 0, np.log(2) / 2, 1e3, 1e4], rtol=eps(4))


def test_softplus_to_the_last_digits():
    """Value, slope and curvature against 40 digits, with one test point every percent of ten decades."""
    z = np.concatenate([sign * np.geomspace(1e-8, 80, 500) for sign in (-1, 1)] + [[0.0]])
    z = np.asarray(jnp.asarray(z), float)  # what the dtype holds
    with mpmath.workdps(40):
        tail = [mpmath.exp(-mpmath.mpf(value)) for value in z]
        exact = [[mpmath.log1p(1 / e), 1 / (1 + e), e / (1 + e) ** 2] for e in tail]
        expected = np.array(exact, float).T
    phi = softplus(1.0)
    slope, curvature = jax.grad(phi), jax.grad(jax.grad(phi))
    found = [jax.jit(jax.vmap(fn))(jnp.asarray(z)) for fn in (phi, slope, curvature)]
    close = lambda a, b, rtol: np.testing.assert_allclose(a, b, rtol=rtol, atol=0)
    close(found[0], expected[0], eps(8))  # measured: 3
    close(found[1], expected[1], eps(8))  # measured: 2
    np.testing.assert_allclose(found[2], expected[2], rtol=0, atol=eps(2))  # JAX's own, of the sigmoid
    assert_fails(lambda: close(jnp.log(1 + jnp.exp(jnp.asarray(z))), expected[0], eps(8)))  # loses small exp(z)
    np.testing.assert_array_equal(phi(jnp.array([-jnp.inf, jnp.inf])), [0, jnp.inf])
    assert jnp.isnan(phi(jnp.array(jnp.nan)))


def test_equal_activations_are_one_static_value():
    assert softplus(2.0) == softplus(2.0)
    assert hash(softplus(2.0)) == hash(softplus(2.0))
    assert softplus(2.0) != softplus(3.0)
    assert repr(softplus(2.0)) == "softplus(2)"
    assert repr(nets.relu) == "relu"


def test_a_function_of_ones_own():
    def bump(z):
        return jnp.exp(-(z**2))

    phi = find_activation(bump)
    assert (phi.name, phi.homogeneous, phi.linear) == ("bump", False, False)
    np.testing.assert_array_equal(phi(jnp.asarray([0.0, 1.0])), bump(jnp.asarray([0.0, 1.0])))
    assert phi.gain == pytest.approx(5**0.25, rel=max(1e-12, eps(10)))  # E exp(-2 z^2) = 1/sqrt(5)


@pytest.mark.parametrize("given", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.standardize, lambda z: z - z.mean()])
def test_functions_that_mix_numbers_are_no_activations(given):
    """They keep the shape; a sum over an axis of their own, as of a polynomial's terms, mixes nothing."""
    make = lambda phi: nets.MLP(
        in_size=3, out_size=1, width_size=8, depth=1, activation=phi, scaling=nets.Scaling.ntk(), key=jax.random.key(0)
    )
    with pytest.raises(ValueError, match="must act on every number separately"):
        make(given)
    make(lambda z: jnp.sum(jnp.stack([z, z**2], axis=-1), axis=-1))
    make(lambda z: jnp.polyval(jnp.array([1.0, 2.0]), z))


@pytest.mark.usefixtures("as_users")
def test_unknown_activations():
    known = r"\['erf', 'gelu', 'leaky_relu', 'linear', 'relu', 'sigmoid', 'softplus', 'swish', 'tanh'\]"
    with pytest.raises(ValueError, match=f"unknown activation 'rlu'; known names are {known}, or pass a function"):
        find_activation("rlu")
    with pytest.raises(TypeError, match="activation must be a name, an Activation or a function, got 3"):
        find_activation(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="activation must be a function without arrays, which .* got PReLU"):
        find_activation(eqx.nn.PReLU())
    for beta in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="softplus needs beta > 0, got"):
            softplus(beta)


@pytest.mark.parametrize("given", [jax.nn.relu, jnp.tanh, jax.nn.sigmoid, jax.nn.silu])
def test_functions_that_have_a_name_are_known_by_themselves(given):
    found = find_activation(given)
    assert found.fn is given
    assert found.known
    assert found.homogeneous == (given is jax.nn.relu)


def test_kinks_of_functions_of_ones_own_are_seen(getkey):
    """No flag tells; the program does."""
    for own, bent in ((lambda z: jnp.maximum(z, 0.3 * z), True), (lambda z: z * jnp.tanh(z), False)):
        net = nets.MLP(
            in_size=2, out_size=1, width_size=4, depth=1, activation=own, scaling=nets.Scaling.ntk(), key=getkey()
        )
        assert not find_activation(own).known
        assert kinked(Problem(net, jnp.eye(2), jnp.ones((2, 1)))) is bent


@pytest.mark.x64_only
def test_relu_of_others_takes_the_steps_of_ours():
    """The same network by Equinox and by `nets`: its kinks count alike. Twin: the step control of a smooth one."""
    plain = {"use_bias": False, "use_final_bias": False, "key": jax.random.key(0)}
    own, smooth = (eqx.nn.MLP(3, 1, 16, 1, phi, **plain) for phi in (jax.nn.relu, jnp.tanh))
    ours = nets.MLP(
        in_size=3,
        out_size=1,
        width_size=16,
        depth=1,
        activation="relu",
        scaling=nets.Scaling.standard(),
        key=jax.random.key(1),
    )
    ours = eqx.tree_at(lambda n: n.weights, ours, tuple(layer.weight for layer in own.layers))
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(8, size))) for size in (3, 1))
    steps, twin, known = (
        int(solve(Problem(net, x, y), GradientFlow(), 5.0).stats.steps) for net in (own, smooth, ours)
    )
    assert abs(steps - known) <= 1  # measured: 40 both
    assert abs(twin - known) > 10  # measured: 20


@pytest.mark.parametrize(
    ("read", "bent"),
    [
        (lambda h: jnp.real(jnp.exp(jax.lax.complex(h, h) * 1j)), False),
        (lambda h: jax.lax.fori_loop(0, 4, lambda i, h: h + jnp.maximum(jnp.square(h) + (1.0 - i), 0), h), True),
        (lambda h: jax.lax.scan(lambda c, _: (c - 2, jnp.maximum(c + jnp.square(h), 0)), 1.0, None, length=3)[1], True),
        (lambda h: jax.lax.while_loop(lambda h: jnp.sum(h) < 3, lambda h: jnp.maximum(h, 0.1 * h) + 1, h), True),
        (lambda h: jax.lax.while_loop(lambda h: jnp.sum(h) < 3, lambda h: jnp.tanh(h) + 1, h), False),
        (lambda h: jax.lax.scan(lambda s, _: (h + jnp.maximum(s - 1, 0), None), jnp.zeros(3), None, length=3)[0], True),
        (lambda h: jax.lax.scan(lambda s, _: (jnp.tanh(s + h), None), jnp.zeros(3), None, length=3)[0], False),
    ],
)
def test_kinks_in_loops_and_beside_complex_numbers(read, bent):
    """What a loop carries is known after all of its steps, not at the first."""
    net = jax.tree_util.Partial(lambda w, x: jnp.sum(read(w @ x))[None], jnp.ones((3, 2)))
    assert kinked(Problem(net, jnp.eye(2), jnp.ones((2, 1)))) is bent


@pytest.mark.parametrize("norm", [eqx.nn.LayerNorm(6), eqx.nn.RMSNorm(6), eqx.nn.GroupNorm(2, 6)])
def test_variances_that_are_kept_from_going_below_zero_are_smooth(norm, getkey):
    """Equinox takes their maximum with 0, which they never pass: they are sums of squares over a count."""
    first, last = eqx.nn.Linear(2, 6, key=getkey()), eqx.nn.Linear(6, 1, key=getkey())
    x, y = jnp.asarray([[1.0, 2.0], [0.5, -1.0]]), jnp.ones((2, 1))
    smooth = eqx.nn.Sequential([first, norm, eqx.nn.Lambda(jnp.tanh), last])
    assert not kinked(Problem(smooth, x, y))
    assert kinked(Problem(eqx.nn.Sequential([first, norm, eqx.nn.Lambda(jax.nn.relu), last]), x, y))
    passing = eqx.nn.Lambda(lambda h: h * jnp.maximum(0.0, jnp.var(h) - 1))  # twin: these do pass 0
    assert kinked(Problem(eqx.nn.Sequential([first, norm, passing, last]), x, y))


@pytest.mark.usefixtures("as_users")
def test_gains_are_of_double_precision_whoever_asks_first():
    gains = []
    for first in (False, True):
        wave = Activation(f"wave, first in {first}", jnp.sin)  # not yet known
        with jax.enable_x64(first):
            gains.append(wave.gain)
    np.testing.assert_allclose(gains, 1 / np.sqrt((1 - np.exp(-2.0)) / 2), rtol=1e-14)
