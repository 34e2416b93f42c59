"""The error of kernel regression: against Monte Carlo in NumPy, its limits, and the paper's statements on transfer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings, strategies as st

from jaxsolve.theory import kernel_regression_error, transfer_error
from tests.cases import assert_fails, eps


@jax.jit
def predicted(lam, coefficients, samples, ridge):
    return kernel_regression_error(lam, coefficients, samples, ridge=ridge)


@jax.jit
def transferred(samples, feature, alignment, ridge):
    return transfer_error(40, samples, feature=feature, alignment=alignment, ridge=ridge)


def monte_carlo(lam, coefficients, samples, ridge, *, draws=300, seed=0):
    """Mean error and its standard error: ridge regression with K = sum_k lambda_k x_k x'_k on x ~ N(0, I).

    The predictor is linear, so its error over fresh inputs is the squared distance of two vectors.
    """
    x = np.random.default_rng(seed).normal(size=(draws, samples, len(lam)))
    target, found = x @ coefficients, np.zeros((draws, len(lam)))
    if ridge == 0 and samples > np.count_nonzero(lam):  # K is singular; ridge -> 0 gives least squares in its span
        used = x[:, :, lam > 0]
        gram = np.einsum("dpk,dpl->dkl", used, used, optimize=True)
        found[:, lam > 0] = np.linalg.solve(gram, np.einsum("dpk,dp->dk", used, target)[..., None])[..., 0]
    else:
        kernel = np.einsum("dpk,k,dqk->dpq", x, lam, x, optimize=True) + ridge * np.eye(samples)
        dual = np.linalg.solve(kernel, target[..., None])
        found = lam * np.einsum("dpk,dp->dk", x, dual[..., 0], optimize=True)
    errors = np.sum((found - coefficients) ** 2, axis=1)
    return errors.mean(), errors.std() / np.sqrt(draws)


D = 100
POWER = np.arange(1.0, D + 1) ** -1.2
ALIGNED = np.r_[4.0, np.ones(D - 1)]  # the kernel of appendix E with A = 3
SPREAD = np.ones(D) / np.sqrt(D)
HALF = np.r_[0.5, np.sqrt(0.75), np.zeros(D - 2)]
TEN_LOST = np.r_[np.ones(D - 10), np.zeros(10)]

CASES = {
    "isotropic, few samples": (np.ones(D), SPREAD, 25, 0.0),
    "aligned kernel": (ALIGNED, HALF, 30, 0.0),
    "aligned kernel with ridge": (ALIGNED, HALF, 60, 5.0),
    "power law": (POWER, POWER / np.linalg.norm(POWER), 20, 0.0),
    "power law with ridge": (POWER, SPREAD, 50, 0.1),
    "more samples than modes, ridge": (POWER, SPREAD, 150, 0.5),
    "more samples than modes, none": (TEN_LOST, SPREAD, 150, 0.0),
    "modes that the kernel lacks": (TEN_LOST, SPREAD, 40, 0.3),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_monte_carlo(case):
    lam, coefficients, samples, ridge = CASES[case]
    mean, error_of_mean = monte_carlo(lam, coefficients, samples, ridge)
    theory = predicted(lam, coefficients, samples, ridge)

    def close(value):
        # Finite size: of the order 1/D. Measured: at most 3.6 standard errors, 3 %.
        assert abs(float(value) - mean) < 3 * error_of_mean + 0.01 * mean

    close(theory.error)
    if float(theory.kappa) > 0:  # as printed, without kappa^2
        assert_fails(lambda: close(theory.error / theory.kappa**2))
    np.testing.assert_allclose(jnp.sum(theory.modes), theory.error, rtol=1e-12)


def test_formulas_without_a_factor_fail():
    """Averaged over the signs of the coefficients, the error hardly varies between draws, so the tolerance is small."""
    lam, samples, ridge, draws = np.repeat([1.0, 3.0], 100), 50, 1.0, 60
    x = np.random.default_rng(0).normal(size=(draws, samples, 200))
    kernel = np.einsum("dpk,k,dqk->dpq", x, lam, x, optimize=True) + ridge * np.eye(samples)
    missed = np.eye(200) - lam[:, None] * np.swapaxes(x, 1, 2) @ np.linalg.solve(kernel, x)
    errors = np.mean(np.sum(missed**2, axis=1), axis=1)
    theory = predicted(lam, np.ones(200) / np.sqrt(200), samples, ridge)

    def close(value):
        np.testing.assert_allclose(value, errors.mean(), rtol=2e-3)  # measured 2.2e-4

    close(theory.error)
    assert_fails(lambda: close(theory.error * (1 - theory.gamma)))  # without the amplification
    assert_fails(lambda: close(theory.error / theory.kappa**2))  # as printed


def by_hand(lam, coefficients, samples, ridge):
    """Equation (46) with its kappa^2, kappa by SciPy."""

    def excess(log_kappa):
        return 1 - ridge / np.exp(log_kappa) - np.sum(lam / (lam * samples + np.exp(log_kappa)))

    low = np.log(max(ridge, 1e-12 * np.sum(lam))) - 1
    high = np.log(ridge + np.sum(lam)) + 1
    kappa = np.exp(scipy.optimize.root_scalar(excess, bracket=(low, high), xtol=1e-14, rtol=1e-15).root)
    gamma = samples * np.sum(lam**2 / (lam * samples + kappa) ** 2)
    return kappa, gamma, kappa**2 / (1 - gamma) * np.sum(coefficients**2 / (lam * samples + kappa) ** 2)


MODES = 12
exponents = st.floats(-4, 3)
spectra = st.lists(exponents, min_size=MODES, max_size=MODES).map(lambda e: 10 ** np.array(e))


@pytest.mark.x64_only
@settings(max_examples=30, deadline=None)
@given(spectra, st.floats(0, 40), exponents.map(lambda e: 10.0**e), st.integers(0, MODES - 1), st.booleans())
def test_equals_the_equations_written_out(lam, samples, ridge, zeros, no_ridge):
    lam = np.where(np.arange(MODES) < zeros, 0, lam)
    ridge = 0.0 if no_ridge and samples < 0.9 * (MODES - zeros) else ridge
    coefficients = np.linspace(1, 2, MODES)
    kappa, gamma, error = by_hand(lam, coefficients, samples, ridge)
    theory = predicted(lam, coefficients, samples, ridge)
    np.testing.assert_allclose(theory.kappa, kappa, rtol=5e-14)  # measured 6e-15
    np.testing.assert_allclose(theory.gamma, gamma, atol=1.5e-14)  # measured 1.7e-15
    np.testing.assert_allclose(theory.error, error, rtol=5e-14 / (1 - gamma))  # measured 6e-15
    if abs(kappa - 1) > 1e-3:  # as printed
        assert_fails(lambda: np.testing.assert_allclose(theory.error, error / kappa**2, rtol=1e-4))


@pytest.mark.x64_only
@settings(max_examples=20, deadline=None)
@given(spectra, st.floats(0.1, 30), exponents.map(lambda e: 10.0**e), exponents.map(lambda e: 10.0**e))
def test_the_unit_of_the_kernel_does_not_matter(lam, samples, ridge, unit):
    coefficients = np.linspace(-1, 1, MODES)
    one = predicted(lam, coefficients, samples, ridge)
    two = predicted(unit * lam, coefficients, samples, unit * ridge)
    np.testing.assert_allclose(two.error, one.error, rtol=1e-11)
    np.testing.assert_allclose(two.kappa, unit * one.kappa, rtol=1e-11)


# --- limits ---


def test_no_samples_and_no_kernel():
    lam, coefficients = np.array([2.0, 0.5, 0.0]), np.array([1.0, -2.0, 0.5])
    for ridge in (0.0, 1.0):
        assert float(predicted(lam, coefficients, 0.0, ridge).error) == pytest.approx(5.25, rel=eps(50))
        nothing = predicted(0 * lam, coefficients, 7.0, ridge)
        assert (float(nothing.error), float(nothing.kappa)) == pytest.approx((5.25, ridge), rel=eps(50))


def test_enough_samples_without_ridge():
    """Ordinary least squares: exact within its span, and noise amplified by 1/(1 - rank/P)."""
    lam, coefficients = np.array([2.0, 0.5, 1e-9, 0.0]), np.array([1.0, -2.0, 3.0, 0.5])
    ols = predicted(lam, coefficients, 10.0, 0.0)
    np.testing.assert_allclose(ols.modes, [0, 0, 0, 0.25 / 0.7], rtol=eps(50))
    assert (float(ols.kappa), float(ols.gamma)) == (0.0, pytest.approx(0.3, rel=eps(50)))
    peak = predicted(lam, coefficients, 3.0, 0.0)
    assert float(peak.error) == np.inf
    np.testing.assert_array_equal(peak.modes[:3], 0)
    assert float(predicted(lam[:3], coefficients[:3], 3.0, 0.0).error) == 0


@pytest.mark.x64_only
@pytest.mark.parametrize("ridge", [1e-300, 1e-30, 1e-16])
@pytest.mark.parametrize("samples", [5.0, 9.0, 11.0, 20.0])
def test_a_vanishing_ridge_is_no_ridge(ridge, samples):
    lam, coefficients = np.r_[10.0 ** -np.arange(10), 0.0], np.ones(11)
    with_ridge, without = predicted(lam, coefficients, samples, ridge), predicted(lam, coefficients, samples, 0.0)
    loss = 1e-12 + 1e10 * ridge  # the smallest eigenvalue is 1e-9
    np.testing.assert_allclose(with_ridge.error, without.error, rtol=loss)
    np.testing.assert_allclose(with_ridge.gamma, without.gamma, rtol=loss)


@pytest.mark.x64_only
def test_at_the_peak_the_effective_ridge_is_a_root():
    """P = modes: kappa^2 = ridge P/sum_k 1/(lambda_k P) for ridge -> 0, far below the rounding of 1 - gamma."""
    lam = np.array([1.0, 0.3, 0.01])
    for ridge in (1e-20, 1e-200):
        kappa = np.sqrt(ridge) * np.sqrt(3 / np.sum(1 / (3 * lam)))
        np.testing.assert_allclose(predicted(lam, np.ones(3), 3.0, ridge).kappa, kappa, rtol=1e-8)


# --- transfer ---


@pytest.mark.x64_only
def test_transfer_is_the_display_below_equation_48():
    D, P, A, alpha, ridge = 40, 15, 2.5, 0.6, 0.2
    theory = transferred(P, A, alpha, ridge)
    kappa = float(theory.kappa)
    big, one = (1 + A) * P + kappa, P + kappa
    np.testing.assert_allclose(kappa, ridge + kappa * ((1 + A) / big + (D - 1) / one), rtol=1e-13)
    gamma = P * ((1 + A) ** 2 / big**2 + (D - 1) / one**2)
    printed = (alpha**2 / big**2 + (1 - alpha**2) / one**2) / (1 - gamma)
    np.testing.assert_allclose(theory.error, kappa**2 * printed, rtol=1e-12)
    mean, error_of_mean = monte_carlo(np.r_[1 + A, np.ones(D - 1)], np.r_[alpha, 0.8, np.zeros(D - 2)], P, ridge)
    assert abs(float(theory.error) - mean) < 3 * error_of_mean + 0.01 * mean
    assert abs(printed - mean) > 0.9 * mean


transfers = st.tuples(st.floats(1, 80), st.floats(0.01, 10), st.sampled_from([0.0, 1e-3, 1.0, 30.0]))


@pytest.mark.x64_only
@settings(max_examples=30, deadline=None)
@given(transfers)
def test_features_help_on_the_old_task_and_an_aligned_task_is_the_easiest(case):
    samples, A, ridge = case
    error = lambda feature, alignment: float(transferred(samples, feature, alignment, ridge).error)
    less, more = error(A, 1.0), error(1.5 * A, 1.0)
    if ridge > 0 or samples < 39:
        assert more < less < error(0.0, 1.0)
        assert less < error(A, 0.9) < error(A, 0.0)
        np.testing.assert_allclose(error(A, -1.0), less, rtol=1e-12)
    elif samples >= 40:
        assert more == less == 0
    np.testing.assert_allclose(error(0.0, 0.3), error(0.0, 1.0), rtol=1e-12, atol=1e-14)


# --- transformations ---


@pytest.mark.x64_only
@pytest.mark.parametrize(("samples", "ridge"), [(3.0, 0.0), (3.0, 0.1), (12.0, 0.1), (12.0, 0.0)])
def test_gradients_agree_with_finite_differences(samples, ridge):
    lam, coefficients = np.array([2.0, 1.0, 0.5, 0.3, 0.1, 0.0]), np.array([1.0, -0.5, 0.3, 0.8, 0.2, 0.4])
    point, h = (lam, coefficients, samples, ridge), 1e-5
    gradients = jax.jit(jax.grad(lambda *args: predicted(*args).error, argnums=(0, 1, 2, 3)))(*point)

    def numeric(argnum, index):
        def moved(step):
            args = [np.array(value) for value in point]
            args[argnum][index] += step
            return float(predicted(*args).error)

        if argnum == 3 and ridge == 0:  # one-sided, of second order
            return (4 * moved(h) - moved(2 * h) - 3 * moved(0)) / (2 * h)
        return (moved(h) - moved(-h)) / (2 * h)

    for argnum, gradient in enumerate(gradients):
        # The eigenvalue 0 is an edge: it changes the number of modes.
        indices = [()] if argnum > 1 else [(i,) for i in range(5 if argnum == 0 else 6)]
        np.testing.assert_allclose(
            [gradient[i] for i in indices], [numeric(argnum, i) for i in indices], rtol=1e-6, atol=1e-8
        )


def test_vmap_over_samples_equals_a_loop():
    samples = jnp.array([0.0, 1.0, 5.5, 12.0, 40.0])
    lam, coefficients = jnp.linspace(0.0, 2.0, MODES), jnp.ones(MODES)
    for ridge in (0.0, 0.3):
        curve = jax.vmap(lambda P, r=ridge: predicted(lam, coefficients, P, r).error)(samples)
        looped = [float(predicted(lam, coefficients, P, ridge).error) for P in samples]
        np.testing.assert_allclose(curve, looped, rtol=1e-12)


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    lam, coefficients = POWER.astype(np.float32), SPREAD.astype(np.float32)
    for samples, ridge in [(20, 0.0), (50, 0.1), (150, 0.01), (1000, 0.0)]:
        fine, rough = predicted(POWER, SPREAD, samples, ridge), predicted(lam, coefficients, samples, ridge)
        assert rough.error.dtype == jnp.float32
        np.testing.assert_allclose(rough.error.astype(float), fine.error, rtol=1e-5)
        np.testing.assert_allclose(rough.kappa.astype(float), fine.kappa, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, -1.0], [1.0, 1.0], 3.0, 0.0), "eigenvalues must be finite and >= 0"),
        (([1.0, 1.0], [1.0, np.nan], 3.0, 0.0), "coefficients holds 1 value"),
        (([1.0, 1.0], [1.0], 3.0, 0.0), "one shape"),
        (([], [], 3.0, 0.0), "at least one mode"),
        (([1.0], [1.0], -1.0, 0.0), "samples must be"),
        (([1.0], [1.0], [1.0, 2.0], 0.0), "samples must be one finite number >= 0, got list .* use jax.vmap"),
        (([1.0], [1.0], 1.0, -1.0), "ridge must be"),
    ],
)
def test_bad_arguments_are_refused(as_users, arguments, message):
    lam, coefficients, samples, ridge = arguments
    with pytest.raises(ValueError, match=message):
        kernel_regression_error(np.asarray(lam), np.asarray(coefficients), samples, ridge=ridge)


def test_bad_transfers_are_refused(as_users):
    for changes, message in [({"feature": -1.0}, "feature"), ({"alignment": 1.1}, "cosine")]:
        with pytest.raises(ValueError, match=message):
            transfer_error(5, 2.0, **({"feature": 1.0, "alignment": 0.5} | changes))
    with pytest.raises(ValueError, match="dimension must be >= 2"):
        transfer_error(1, 2.0, feature=1.0, alignment=1.0)
    with pytest.raises(TypeError, match="dimension"):
        transfer_error(2.5, 2.0, feature=1.0, alignment=1.0)  # pyright: ignore[reportArgumentType]
