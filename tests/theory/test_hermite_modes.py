"""Kernels on data of a known covariance: exact spectra of Gaussian kernels, quadrature, and kernel regression."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.theory import hermite_eigenvalues, hermite_functions, hermite_modes, level_coefficients
from tests.cases import assert_fails, eps


def gauss_levels(width, levels, total=1.0):
    return np.exp(-total / width**2) * width ** (-2.0 * np.arange(levels))


def gauss_kernel(a, b, width):
    squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None] - 2 * a @ b.T
    return np.exp(-squares / (2 * width**2))


def gauss_eigenvalues(degrees, variances, width):
    """Exact: of a product of kernels of one dimension each, on Gaussian inputs (Zhu et al. 1998)."""
    a, b = 1 / (4 * variances), 1 / (2 * width**2)
    total = a + b + np.sqrt(a**2 + 2 * a * b)
    return np.prod(np.sqrt(2 * a / total)) * np.prod((b / total) ** degrees, axis=1)


def power_law(dimensions, exponent):
    variances = np.arange(1.0, dimensions + 1) ** -exponent
    return variances / variances.sum()


def test_modes_are_the_largest_of_all():
    variances, levels = np.array([0.1, 0.7, 0.0, 0.4]), np.array([0.3, 0.9, 0.0, 2.0, 1.0])
    degrees = hermite_modes(variances, levels, 40)
    everything = np.array([alpha for alpha in itertools.product(range(5), repeat=4) if sum(alpha) < 5])
    sizes = np.sort(levels[everything.sum(1)] * np.prod(variances**everything, axis=1))[::-1]
    found = hermite_eigenvalues(degrees, variances, levels)
    assert len({tuple(alpha) for alpha in degrees}) == np.count_nonzero(sizes) == 29
    np.testing.assert_allclose(found, sizes[:29], rtol=eps(20))
    np.testing.assert_array_equal(degrees[:2], [[0, 3, 0, 0], [0, 1, 0, 0]])


def test_errors_fall_like_one_over_the_effective_dimension():
    """By an exact spectrum: -3 R^2/2d of the first eigenvalue and 2 gamma/w^2 for each degree, with R = 1/w^2."""

    def errors(dimensions, width, factor=1.0):
        variances = np.full(dimensions, 1 / dimensions)
        degrees = np.zeros((3, dimensions), int)
        degrees[1, 0], degrees[2, 1] = 1, 3
        found = hermite_eigenvalues(degrees, variances, factor * gauss_levels(width, 4))
        return np.asarray(found) / gauss_eigenvalues(degrees, variances, width) - 1

    def check(width, factor):
        for dimensions in (1000, 2000):
            first = -3 / (2 * width**4 * dimensions)
            said = first + 2 / (dimensions * width**2) * np.array([0, 1, 3])
            # What is left is of second order; in float32 rounding is.
            np.testing.assert_allclose(errors(dimensions, width, factor), said, rtol=0.02, atol=eps(100))

    for width in (1.0, 2.0):
        check(width, 1.0)
        assert_fails(functools.partial(check, width, np.exp(0.01)))


@pytest.mark.x64_only  # to 1e-12
def test_functions_are_orthonormal():
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    z = np.array(list(itertools.product(nodes, repeat=2)))
    weights = np.prod(list(itertools.product(weights / np.sqrt(2 * np.pi), repeat=2)), axis=1)
    degrees = hermite_modes(np.array([1.0, 0.9]), np.ones(8), 36)
    values = np.asarray(hermite_functions(z, degrees))
    np.testing.assert_allclose(values.T @ (weights[:, None] * values), np.eye(36), atol=1e-12)
    by_numpy = np.polynomial.hermite_e.hermeval(z[:, 0], np.eye(8)[5]) / np.sqrt(120)
    column = np.flatnonzero((degrees == [5, 0]).all(1))
    np.testing.assert_allclose(values[:, column[0]], by_numpy, rtol=1e-11, atol=1e-11)


def relu_tangents(s, square=4.0):
    """The NTK of a hidden layer of relu on a sphere of this squared radius, without factors of scaling."""
    cosine = s / square
    rest = jnp.pi - jnp.arccos(cosine)
    return square / (2 * jnp.pi) * (jnp.sqrt((1 - cosine) * (1 + cosine)) + 2 * rest * cosine)


def test_levels_of_relu_by_quadrature():
    """NNGP and NTK are sum_k a_k^2 rho^k over the Hermite coefficients of relu and of its step (Mehler)."""
    step = 1e-3
    z = np.arange(step / 2, 12, step)
    weights = np.exp(-(z**2) / 2) * step / np.sqrt(2 * np.pi)
    norms = np.sqrt([1, 1, 2, 6, 24, 120])
    hermite = np.stack([np.polynomial.hermite_e.hermeval(z, row) for row in np.eye(6)]) / norms[:, None]
    relu, slope = hermite @ (weights * z), hermite @ weights
    series = 4 * (relu**2 + np.concatenate([[0], slope[:-1] ** 2]))  # rho to the k, at squared norms of 4
    levels = series * norms**2 / 4.0 ** np.arange(6)

    def check(wanted):
        np.testing.assert_allclose(level_coefficients(relu_tangents, 6), wanted, rtol=2e-5, atol=1e-6)

    check(levels)
    assert_fails(lambda: check(series))


def test_levels_of_a_network():
    scaling = js.nets.Scaling([1.0, 1.0], sigma=[1.0, 1.0], eta=[1.0, 1.0])
    net = js.nets.MLP(
        in_size=2, out_size=1, width_size=1, depth=1, activation="relu", scaling=scaling, key=jax.random.key(0)
    )

    def kernel(s):
        cosine = s / 4
        points = 2 * jnp.stack([jnp.ones_like(s), jnp.zeros_like(s)]), 2 * jnp.stack([cosine, jnp.sqrt(1 - cosine**2)])
        return js.kernels.infinite(net, points[0][None], points[1][None]).ntk[0, 0]

    found, wanted = level_coefficients(kernel, 3), level_coefficients(relu_tangents, 3)
    np.testing.assert_allclose(found / found[0], wanted / wanted[0], rtol=1e-5)  # the same but for a factor


def test_gaussian_samples_have_these_eigenvalues():
    """A sampled kernel matrix of relu, whose sampling error is below what is allowed; modes of degrees 0 to 2."""
    variances, samples = power_law(60, 0.5), 1500
    z = np.asarray(jax.random.normal(jax.random.key(0), (samples, 60)), np.float64)
    x = z * np.sqrt(variances)
    norms = np.linalg.norm(x, axis=1)
    cosines = np.clip(x @ x.T / np.outer(norms, norms), -1, 1)
    angles = np.arccos(cosines)
    kernel = np.outer(norms, norms) / (2 * np.pi) * (np.sin(angles) + 2 * (np.pi - angles) * cosines)
    levels = level_coefficients(lambda s: relu_tangents(s, 1.0), 5)
    degrees = hermite_modes(variances, levels, 61)
    functions = np.asarray(hermite_functions(z, degrees), np.float64)
    off_diagonal = kernel - np.diag(np.diag(kernel))
    # <h K h> over pairs of different samples, which no sampling biases.
    measured = np.einsum("nk,nm,mk->k", functions, off_diagonal, functions) / (samples * (samples - 1))
    found = np.asarray(hermite_eigenvalues(degrees, variances, levels))
    assert degrees.sum(1).tolist() == [0] + [1] * 60

    def check(found):
        sums = [(part[0], part[1:].sum()) for part in (measured, found)]  # of degree 0, and of all of degree 1
        np.testing.assert_allclose(*sums, rtol=0.05)

    check(found)
    assert_fails(lambda: check(1.1 * found))


def _regression(samples, *, dimensions, draws, width=2.0, ridge=1e-3, known=200):
    """Errors of kernel regression on Gaussian samples over draws of task and data, and what is predicted."""
    variances, levels = power_law(dimensions, 0.5), gauss_levels(width, 6)
    degrees = hermite_modes(variances, levels, 2000)
    eigenvalues = np.asarray(hermite_eigenvalues(degrees, variances, levels))
    power = np.zeros(len(degrees))
    power[:known] = 1 / np.arange(1.0, known + 1)
    power /= power.sum()
    predicted = js.theory.kernel_regression_error(
        eigenvalues, np.sqrt(power), samples, ridge=ridge + 1 - eigenvalues.sum()
    ).error
    rng, errors = np.random.default_rng(0), []
    for _ in range(draws):
        z = rng.normal(size=(samples + 1000, dimensions))
        target = np.sqrt(power[:known]) * rng.choice([-1.0, 1.0], known)
        y = np.asarray(hermite_functions(z, degrees[:known])) @ target
        x = z * np.sqrt(variances)
        train, test = x[:samples], x[samples:]
        gram = gauss_kernel(train, train, width) + ridge * np.eye(samples)
        outputs = gauss_kernel(test, train, width) @ np.linalg.solve(gram, y[:samples])
        errors.append(np.mean((outputs - y[samples:]) ** 2))
    return np.mean(errors), np.std(errors, ddof=1) / np.sqrt(draws), float(predicted)


@pytest.mark.slow
@pytest.mark.x64_only
def test_learning_curves_of_kernel_regression():
    for samples in (30, 100, 300):
        mean, error_of_mean, predicted = _regression(samples, dimensions=200, draws=30)
        check = lambda value, m=mean, e=error_of_mean: np.testing.assert_array_less(abs(m - value), 3 * e)
        check(predicted)  # measured: |z| of 1.5, 0.4 and 1.5
        assert_fails(functools.partial(check, 1.2 * predicted))


def test_traced_and_mapped():
    variances, levels = jnp.asarray(power_law(5, 1.0)), jnp.asarray(gauss_levels(1.5, 4))
    degrees = hermite_modes(variances, levels, 12)
    plain = hermite_eigenvalues(degrees, variances, levels)
    np.testing.assert_allclose(
        jax.jit(lambda v, c: hermite_eigenvalues(degrees, v, c))(variances, levels), plain, rtol=eps(8)
    )
    mapped = jax.vmap(lambda c: hermite_eigenvalues(degrees, variances, c))(jnp.stack([levels, 2 * levels]))
    np.testing.assert_allclose(mapped, jnp.stack([plain, 2 * plain]), rtol=eps(8))
    # d log lambda / d log gamma_i = alpha_i, and a variance of 0 has a finite derivative.
    jacobian = jax.jacobian(lambda log: jnp.log(hermite_eigenvalues(degrees, jnp.exp(log), levels)))(jnp.log(variances))
    np.testing.assert_allclose(jacobian, degrees, atol=eps(20))
    at_zero = jax.jacobian(lambda v: hermite_eigenvalues(degrees, v, levels))(variances.at[4].set(0.0))
    assert jnp.all(jnp.isfinite(at_zero))
    width = jax.grad(lambda w: level_coefficients(lambda s: jnp.exp((s - 1) / w**2), 3)[2])(2.0)
    np.testing.assert_allclose(width, np.exp(-0.25) * (2 / 2**7 - 4 / 2**5), rtol=eps(20))


@pytest.mark.usefixtures("as_users")
def test_refused():
    variances, levels = np.array([0.5, 0.5]), np.ones(3)
    for bad, said in (([0.5, -0.5], "variances must be >= 0"), ([[0.5]], "one axis"), ([np.nan], "variances")):
        with pytest.raises(ValueError, match=said):
            hermite_modes(np.array(bad), levels, 3)
    with pytest.raises(TypeError, match="must be known here"):
        jax.jit(lambda v: hermite_modes(v, levels, 3))(jnp.asarray(variances))
    with pytest.raises(TypeError, match="count"):
        hermite_modes(variances, levels, 2.5)  # pyright: ignore[reportArgumentType]
    degrees = hermite_modes(variances, levels, 6)
    with pytest.raises(ValueError, match="levels"):
        hermite_eigenvalues(degrees, variances, levels[:2])
    with pytest.raises(ValueError, match=r"degrees must be integers >= 0 of the shape \(modes, 3\)"):
        hermite_functions(np.zeros((4, 3)), degrees)
    with pytest.raises(TypeError, match="degrees must be known"):
        jax.jit(lambda degrees: hermite_functions(np.zeros((4, 2)), degrees))(degrees)
    with pytest.raises(ValueError, match=r"z must have the shape \(n, d\)"):
        hermite_functions(np.zeros(2), degrees)
    with pytest.raises(ValueError, match="return one number"):
        level_coefficients(lambda s: jnp.stack([s, s]), 2)
