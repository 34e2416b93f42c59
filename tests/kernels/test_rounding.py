"""Fixed kernels in single precision: small eigenvalues are learnt late, and what rounding hides is said."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from sklearn.datasets import load_digits

import jaxsolve as js
from jaxsolve import kernels


TIMES = (1.0, 1e2, 1e4, 1e6, 1e8, np.inf)


def _losses(kernel, y, ts, least=0.0):
    """The loss under a kernel by NumPy in float64; eigenvalues up to `least` count as 0."""
    values, vectors = np.linalg.eigh(np.asarray(kernel, np.float64))
    shares = np.sum((vectors.T @ np.asarray(y, np.float64)) ** 2, axis=1) / (2 * len(y))
    rates = np.where(values > least, 2 * values / len(y), 0)
    return np.array([np.sum(shares * (rates <= 0 if np.isinf(t) else np.exp(-rates * t))) for t in ts])


def _line_kernel(points):
    """The NTK of an infinitely wide relu layer with biases, weights of 1.5 and biases of .05, in float64."""
    w, b = 1.5**2, 0.05**2
    first = w * np.outer(points, points) + b
    size = np.sqrt(np.diag(first))
    cosine = np.clip(first / np.outer(size, size), -1, 1)
    angle = np.arccos(cosine)
    second = w * np.outer(size, size) * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi) + b
    return second + w * first * (np.pi - angle) / (2 * np.pi)


def test_a_relu_network_learns_all_digits_in_single_precision():
    """From t = 1e4 on, what is left of 1,400 digits lies on eigenvalues below n eps times the largest."""
    digits, n = load_digits(), 1400
    x = jnp.asarray(digits.data[:n] / 16, jnp.float32)  # pyright: ignore[reportAttributeAccessIssue]
    y = jnp.asarray(np.where(digits.target[:n] % 2, 1.0, -1.0)[:, None], jnp.float32)  # pyright: ignore[reportAttributeAccessIssue]
    scaling = js.nets.Scaling.ntk()
    net = js.nets.MLP(
        in_size=64,
        out_size=1,
        width_size=256,
        depth=1,
        activation="relu",
        scaling=scaling,
        key=jr.key(0),
        dtype=jnp.float32,
    )
    ts = [1e4, 1e5, 1e6, np.inf]
    run = js.solve(js.Problem(net, x, y, centered=True), js.FrozenKernel(), ts)
    kernel = np.asarray(js.kernels.empirical(net, x, trace=True).ntk)
    own = _losses(kernel, y, ts)
    np.testing.assert_allclose(run["loss"], own, rtol=1e-4, atol=1e-9)
    assert run.certificate is not None
    assert run.certificate.trust > 4
    largest = np.linalg.eigvalsh(kernel.astype(np.float64))[-1]
    cut = _losses(kernel, y, ts, least=n * float(np.finfo(np.float32).eps) * largest)
    assert np.all(np.abs(cut - own)[1:] > 0.02)


def test_a_network_on_a_line_learns_in_single_precision():
    points = np.linspace(-10 * np.pi, 10 * np.pi, 100)
    kernel = _line_kernel(points)
    y = (np.sin(points) + np.sin(2 * points))[:, None]
    flow = kernels.linearized(jnp.asarray(kernel, jnp.float32), jnp.asarray(y, jnp.float32))
    assert int(flow.rank) == 100
    late = (1e4, 1e6, 1e8, np.inf)
    found = np.array([0.5 * np.mean((np.asarray(flow.outputs(t), np.float64) - y) ** 2) for t in late])
    start, *true = _losses(kernel, y, (0.0, *late))
    share = [float(flow.unresolved(t)) for t in late]
    assert found[-1] < 1e-11
    assert np.all(np.abs(found - true) <= start * np.array(share) + 1e-9), (found, true, share)
    assert max(share) < 0.01


@pytest.mark.parametrize("scale", [1.0, 0.2, 0.05])
def test_what_rounding_hides_bounds_the_error(scale, getkey):
    """Smooth kernels, whose eigenvalues fall through the rounding of float32, beside the same ones in float64."""
    points = np.sort(np.asarray(jr.uniform(getkey(), (150,), minval=-1, maxval=1), np.float64))
    kernel = np.exp(-((points[:, None] - points[None, :]) ** 2) / (2 * scale**2))
    y = np.asarray(jr.normal(getkey(), (150, 2)), np.float64)
    flow = kernels.linearized(jnp.asarray(kernel, jnp.float32), jnp.asarray(y, jnp.float32))
    true, exceeds = _losses(kernel, y, TIMES), False
    for t, loss in zip(TIMES, true, strict=True):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = 0.5 * np.sum((np.asarray(flow.outputs(t), np.float64) - y) ** 2) / len(y)
        share, error = float(flow.unresolved(t)), abs(found - loss) / (0.5 * np.sum(y**2) / len(y))
        assert error <= share + 1e-5, (t, error, share)
        assert bool(said) == (share > 0.01)
        exceeds |= error > 0.01
    assert exceeds  # without the bound, the test would fail


def test_the_null_space_of_a_clear_rank_is_nothing_to_warn_of(getkey):
    """A linear network's kernel has the rank of its inputs: what lies outside is never learnt, in any precision."""
    x, y = jr.normal(getkey(), (200, 5), jnp.float32), jr.normal(getkey(), (200, 1), jnp.float32)
    net = js.nets.TwoLayerLinear(
        in_size=5, width_size=300, scaling=js.nets.Scaling.ntk(), key=getkey(), dtype=jnp.float32
    )
    run = js.solve(js.Problem(net, x, y, centered=True), js.FrozenKernel(), [1e3, jnp.inf])
    x64, y64 = np.asarray(x, np.float64), np.asarray(y, np.float64)
    left = y64 - x64 @ np.linalg.lstsq(x64, y64)[0]
    np.testing.assert_allclose(run["loss"][-1], 0.5 * np.mean(left**2), rtol=1e-5)
    assert run.certificate is not None
    assert run.certificate.spectral_error < 1e-5


@pytest.mark.parametrize("loss", [js.losses.MSE(), js.losses.Logistic()])
def test_a_run_says_what_rounding_hides(loss, getkey):
    """Closed forms and marches alike, and in a sweep by `trust`."""
    x = jnp.linspace(-1, 1, 60, dtype=jnp.float32)[:, None]
    y = jnp.sign(jr.normal(getkey(), (60, 1), jnp.float32))
    net = js.nets.MLP(
        in_size=1,
        out_size=1,
        width_size=400,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=getkey(),
        dtype=jnp.float32,
    )
    problem = js.Problem(net, x, y, loss=loss, centered=True)
    flow = js.FrozenKernel()
    early = js.solve(problem, flow, [1.0])
    assert early.certificate is not None
    assert early.certificate.spectral_error < 1e-3
    last = jnp.inf if isinstance(loss, js.losses.MSE) else 1e7
    with pytest.warns(UserWarning, match=r"spectral error .*earlier time, or take float64"):
        late = js.solve(problem, flow, [last])
    assert late.certificate is not None
    assert late.certificate.trust < 2


def test_double_precision_is_used_within_programs(getkey):
    """Under jit, vmap and grad, too, whether x64 is on or not."""
    basis = np.linalg.qr(np.asarray(jr.normal(getkey(), (40, 40))))[0]
    wanted = np.logspace(-7, 0, 40)
    kernel = jnp.asarray((basis * wanted) @ basis.T, jnp.float32)
    exact = np.linalg.eigvalsh(np.tril(np.asarray(kernel, np.float64)) + np.tril(np.asarray(kernel, np.float64), -1).T)
    rates = lambda k: kernels.linearized(k, jnp.ones((40, 1), jnp.float32)).modes.values
    for found in (rates(kernel), jax.jit(rates)(kernel), jax.vmap(rates)(kernel[None])[0]):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, exact, rtol=4e-7)
    single = np.asarray(jnp.linalg.eigvalsh(kernel), np.float64)
    assert np.max(np.abs(single / exact - 1)) > 1e-3


@pytest.mark.parametrize(("ridge", "warned"), [(1e-4, True), (1.0, False)])
def test_rounding_of_test_outputs_is_expected_where_coefficients_cancel(ridge, warned, getkey):
    """The error of float32 is .05 to 1 times what `rounding` expects, and said where it takes the third digit."""
    x = jnp.sort(jax.random.uniform(getkey(), (300,), jnp.float32, -3, 3))
    near = lambda a, b: jnp.exp(-((a[:, None] - b[None]) ** 2) / 2)
    kernel, cross, y = near(x, x), near(x[:40] + 0.01, x), jnp.sign(jnp.sin(9 * x))[:, None]
    fit = js.kernels.regression(kernel, y, ridge=ridge / 300)
    with pytest.warns(UserWarning, match="coefficients of small modes") if warned else contextlib.nullcontext():
        found = np.asarray(fit.predict(cross), np.float64)
    wide = [np.asarray(a, np.float64) for a in (kernel, cross, y)]
    right = wide[1] @ np.linalg.solve(wide[0] + ridge * np.eye(300), wide[2])
    error, expected = np.max(np.abs(found - right)), float(jnp.max(fit.rounding(cross)))
    assert 0.05 * expected < error < expected
