"""Kernels at infinite width of any plain function: exact for homogeneous ones, with a stated error for all others."""

import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
import scipy.special

import jaxsolve as js
from jaxsolve import kernels, nets
from tests.cases import assert_fails, eps, inputs, mlp, scaling


def _net(activation, **changes) -> nets.MLP:
    values = scaling(2, bias_sigma=0.0, bias_eta=0.0, **changes)
    return nets.MLP(in_size=2, out_size=1, width_size=4, depth=1, activation=activation, scaling=values, key=jr.key(0))


def _points(norms=(1.0, 3.0), angles=(0.0, 0.4, 1.7, 3.1)):
    """Inputs in the plane: pairs at all angles, some parallel, and the origin."""
    rows = [(norm * math.cos(angle), norm * math.sin(angle)) for norm in norms for angle in angles]
    return jnp.array([*rows, (0.0, 0.0)])


def _expected(net, x, average):
    """NNGP, NTK and their sizes, from `average(i, j, derivative)` of pre-activations with this covariance."""
    values, x = net.scaling, np.asarray(x, np.float64)
    m, sigma = np.asarray(values.multiplier, np.float64), np.asarray(values.sigma, np.float64)
    gram = m[0] ** 2 * x @ x.T
    pairs = [[average(sigma[0] ** 2 * gram[np.ix_([i, j], [i, j])]) for j in range(len(x))] for i in range(len(x))]
    value, slope = np.moveaxis(np.array(pairs), -1, 0)
    gain = float(values.gamma) ** 2 * 4 * m[1] ** 2
    return gain * sigma[1] ** 2 * value, gain * (value + sigma[1] ** 2 * slope * gram)


def _polar(degree, minus, plus):
    """Averages of a homogeneous function: the radius in closed form, the angle by quadrature between the kinks."""

    def of_degree(k, below, above, covariance):
        f = lambda u: above * u**k if u > 0 else below * (-u) ** k
        one, two = np.sqrt(np.diag(covariance))
        if not one * two:
            return 0.0
        angle = np.arccos(np.clip(covariance[0, 1] / one / two, -1, 1))
        angle = 0 if angle < 1e-6 else math.pi if angle > math.pi - 1e-6 else angle
        kinks = sorted({(start + turn) % (2 * math.pi) for start in (0, angle) for turn in (math.pi / 2, -math.pi / 2)})
        edges = [kinks[0], *kinks[1:], kinks[0] + 2 * math.pi]
        product = lambda t: f(one * math.cos(t)) * f(two * math.cos(t - angle))
        arcs = [scipy.integrate.quad(product, *ends, epsabs=0, epsrel=1e-13)[0] for ends in zip(edges, edges[1:])]  # noqa: B905, RUF007
        return 2**k * math.factorial(k) * sum(arcs) / (2 * math.pi)

    def average(covariance):
        slope = of_degree(degree - 1, -degree * minus, degree * plus, covariance) if degree else 0.0
        return of_degree(degree, minus, plus, covariance), slope

    return average


def _close(found, expected, tolerance):
    size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_array_less(np.abs(np.asarray(found, np.float64) - expected), tolerance * size + 1e-300)


HOMOGENEOUS = {
    "abs": (jnp.abs, 1, 1.0, 1.0),
    "maximum": (lambda z: jnp.maximum(z, 0.3 * z), 1, -0.3, 1.0),
    "where": (lambda z: jnp.where(z < 0, -0.5 * z, 2 * z), 1, 0.5, 2.0),
    "times 3": (lambda z: 3 * z, 1, -3.0, 3.0),
    "relu squared": (lambda z: jax.nn.relu(z) ** 2, 2, 0.0, 1.0),
    "z relu": (lambda z: z * jax.nn.relu(-z), 2, -1.0, 0.0),
    "cube": (lambda z: z**3, 3, -1.0, 1.0),
    "fifth power": (lambda z: z**5, 5, -1.0, 1.0),
}


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous_functions_however_they_are_written(name):
    function, degree, minus, plus = HOMOGENEOUS[name]
    net, x = _net(function), _points()
    found = kernels.infinite(net, x)
    assert found.error == 0
    nngp, ntk = _expected(net, x, _polar(degree, minus, plus))
    # A power of a covariance has the roundings of its factors.
    tolerance = degree * max(3e-15, eps(30))
    off_diagonal = 30 * tolerance if eps() > 1e-10 else tolerance  # angles of 0.04, in float32
    _close(np.diag(np.diag(found.ntk)), np.diag(np.diag(ntk)), tolerance)
    _close(found.nngp, nngp, tolerance)
    _close(found.ntk, ntk, off_diagonal)
    traced = jax.jit(lambda x: kernels.infinite(net, x).ntk)(x)
    _close(traced, ntk, off_diagonal)
    for twin in (_polar(degree, -minus + 0.1, plus), _polar(degree + 1, minus, plus)):  # a side, the degree
        wrong = _expected(net, x, twin)
        assert_fails(lambda wrong=wrong: _close(found.nngp, wrong[0], tolerance))
        assert_fails(lambda wrong=wrong: _close(found.ntk, wrong[1], off_diagonal))


@pytest.mark.parametrize("function", [jnp.sign, lambda z: jnp.where(z >= 0, 1.0, 0.0)])
def test_functions_that_jump_at_zero_have_a_covariance_and_no_ntk(function):
    net, x = _net(function), _points()
    found = kernels.infinite(net, x)
    below, at, above = (float(function(jnp.asarray(z))) for z in (-1.0, 0.0, 1.0))
    exact = np.array(_expected(net, x, _polar(0, below, above))[0])
    gain = exact[0, 0] / ((below**2 + above**2) / 2)
    exact[-1, :] = exact[:, -1] = gain * at * (below + above) / 2
    exact[-1, -1] = gain * at**2  # the origin stays where it is
    np.testing.assert_allclose(found.nngp, exact, rtol=max(1e-14, eps(300)), atol=eps(30))
    with pytest.raises(ValueError, match=r"the NTK of infinite width does not exist: the activation .* jumps"):
        found.ntk  # noqa: B018


@pytest.mark.parametrize(
    "function", [jnp.floor, jnp.round, lambda z: jnp.where(z > 100, z + 5, z), lambda z: jnp.round(64 * z) / 64]
)
def test_jumps_anywhere_are_found(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = kernels.infinite(_net(function), _points())
    with pytest.raises(ValueError, match="jumps"):
        found.ntk  # noqa: B018
    problem = js.Problem(_net(function), _points(), jnp.ones((9, 1)), centered=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="jumps"):
            js.solve(problem, js.InfiniteWidth(), [0.0, 1.0])


@pytest.mark.parametrize(
    "function", [lambda z: jnp.tanh(1e4 * z), lambda z: jnp.sqrt(jnp.abs(z)), jax.nn.relu6, jnp.exp]
)
def test_steep_is_no_jump(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernels.infinite(_net(function), _points()).ntk  # noqa: B018


def _panels(f, g, kinks):
    """Averages by Gauss-Legendre panels between the kinks of a function and of its derivative, inner and outer."""
    nodes, weights = np.polynomial.legendre.leggauss(12)

    def grid(breaks, width):
        edges = np.unique(np.concatenate([np.arange(-10, 10 + width, width), [b for b in breaks if abs(b) < 10]]))
        middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        z = (middle[:, None] + half[:, None] * nodes).ravel()
        return z, (half[:, None] * weights).ravel() * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    def average(covariance):
        one, two = np.sqrt(np.diag(covariance))
        if not one * two:
            return [
                h(np.zeros(1))[0] * np.sum(w * h(s * z)) for h in (f, g) for s in [one + two] for z, w in [grid([], 1)]
            ]
        rho = np.clip(covariance[0, 1] / one / two, -1, 1)
        rest = np.sqrt((1 - rho) * (1 + rho))
        if rest < 1e-7:
            z, w = grid([k / s for k in kinks for s in (one, two, -two)], 0.2)
            return [np.sum(w * h(one * z) * h(np.sign(rho) * two * z)) for h in (f, g)]
        near = [(k / two + step * rest) / rho for k in kinks for step in range(-8, 9)]
        totals = np.zeros(2)
        for z, w in zip(*grid([*(k / one for k in kinks), *near], 0.25), strict=True):
            inner, v = grid([(k / two - rho * z) / rest for k in kinks], 1.0)
            at = two * (rho * z + rest * inner)
            totals += [w * h(np.array([one * z]))[0] * np.sum(v * h(at)) for h in (f, g)]
        return list(totals)

    return average


KINKED = {
    "relu6": (jax.nn.relu6, lambda z: np.clip(z, 0, 6), lambda z: 1.0 * ((z > 0) & (z < 6)), (0, 6)),
    "hard_tanh": (jax.nn.hard_tanh, lambda z: np.clip(z, -1, 1), lambda z: 1.0 * (np.abs(z) < 1), (-1, 1)),
    "soft threshold": (
        lambda z: jnp.sign(z) * jnp.maximum(jnp.abs(z) - 0.5, 0),
        lambda z: np.sign(z) * np.maximum(np.abs(z) - 0.5, 0),
        lambda z: 1.0 * (np.abs(z) > 0.5),
        (-0.5, 0.5),
    ),
    "elu": (jax.nn.elu, lambda z: np.where(z > 0, z, np.expm1(z)), lambda z: np.where(z > 0, 1, np.exp(z)), (0,)),
    "fast sine": (lambda z: jnp.sin(9 * z), lambda z: np.sin(9 * z), lambda z: 9 * np.cos(9 * z), ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINKED)
def test_the_error_of_the_series_is_not_below_what_it_is(name):
    function, f, g, kinks = KINKED[name]
    net, x = _net(function), _points(norms=(1.0, 2.5), angles=(0.0, 0.1, 0.9))
    with pytest.warns(UserWarning, match=r"layers\[1\]\) has no closed form, and the series leaves an error of up to"):
        found = kernels.infinite(net, x)
    expected = _expected(net, x, _panels(f, g, kinks))
    largest = 0.0
    for kernel, exact in zip((found.nngp, found.ntk), expected, strict=True):
        size = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))[:-1, :-1]
        largest = max(largest, np.max(np.abs(np.asarray(kernel, np.float64) - exact)[:-1, :-1] / size))
    assert largest < found.error < 300 * largest
    traced = jax.jit(lambda x: kernels.infinite(net, x).error)(x)
    np.testing.assert_allclose(traced, found.error, rtol=1e-2)


@pytest.mark.usefixtures("as_users")
def test_smooth_functions_are_not_doubted():
    for name in ("tanh", "sigmoid", "swish", "softplus"):
        error = kernels.infinite(_net(name), _points()).error  # no warning
        assert error < (1e-7 if eps() < 1e-10 else 3e-5)
    assert kernels.infinite(_net("gelu"), _points()).error == 0


def test_one_error_per_layer_and_their_sum():
    net = mlp(jr.key(0), jax.nn.relu6, bias=False)
    with pytest.warns(UserWarning, match=r"relu6 \(layers\[") as caught:
        kernels.infinite(net, inputs(jr.key(1), 3))
    assert len({str(one.message).partition(")")[0] for one in caught}) == 2


def test_erf_and_gelu_of_large_inputs():
    """Of equal inputs to rounding, where 1 + 4 s^2 is a difference of numbers of size s^4."""
    x = jnp.array([[1e3, 0.0], [300.0, -800.0]])
    for name, exact in (
        ("erf", lambda q: 4 / np.pi / np.sqrt(1 + 4 * q)),
        ("gelu", lambda q: 0.25 + np.arctan2(q, np.sqrt(1 + 2 * q)) / (2 * np.pi) + _gelu_rest(q)),
    ):
        net = _net(name)
        found = kernels.infinite(net, x, eta=_only_first(net))
        q = (0.8 * 0.9) ** 2 * np.sum(np.asarray(x, np.float64) ** 2, axis=1)
        gain = 0.75**2 * 4 * (1.3 * 0.7) ** 2 / 0.9**2
        np.testing.assert_allclose(np.diag(found.ntk), gain * q * exact(q), rtol=max(1e-14, eps(100)))
        twin = gain * q * (exact(q / 2) if name == "erf" else 0.25)  # another variance; without the angle
        assert_fails(lambda twin=twin, f=found: np.testing.assert_allclose(np.diag(f.ntk), twin, rtol=1e-3))


def _gelu_rest(q):
    """E[z phi Phi] and E[(z phi)^2] parts of E[gelu'(u)^2]."""
    return q / np.sqrt(1 + 2 * q) / (2 * np.pi) * (1 / (1 + 2 * q) + 2 / (1 + q))


def _only_first(net):
    off = jax.tree.map(jnp.zeros_like, kernels.unit_rates(net))
    return eqx.tree_at(lambda rates: rates.weights[0], off, jnp.ones_like(off.weights[0]))


def test_a_kernel_that_is_not_known_is_not_used():
    values = nets.Scaling.ntk()
    net = nets.MLP(in_size=2, out_size=1, width_size=4, depth=1, activation=jnp.exp, scaling=values, key=jr.key(0))
    problem = lambda size: js.Problem(net, size * jnp.eye(2), jnp.ones((2, 1)), centered=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(js.NotApplicable, match="a kernel known to 10 %"):
            js.solve(problem(10.0), js.InfiniteWidth(), [0.0, 1.0])
    assert js.solve(problem(1.0), js.InfiniteWidth(), [0.0, 1.0])["loss"][1] < 0.5
