import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxsolve.data import Affine, partial_whiten, pca, standardize, whiten


def _eps():
    return float(jnp.finfo(jnp.result_type(float)).eps)


def _inputs(n=60, d=5, rank=None, seed=0, offset=3.0):
    """Inputs with falling variances; of lower rank (before the offset) if asked."""
    rng = np.random.default_rng(seed)
    rank = d if rank is None else rank
    mixing = np.linalg.qr(rng.normal(size=(d, d)))[0][:rank]
    x = rng.normal(size=(n, rank)) * 2.0 ** -np.arange(rank) @ mixing + offset
    return jnp.asarray(x)


def _second_moment(x):
    x = np.asarray(x, np.float64)
    return x.T @ x / len(x)


# --- Affine


@pytest.mark.usefixtures("as_users")
def test_affine_maps_are_of_real_numbers():
    with pytest.raises(TypeError, match="mean must be an array of real numbers"):
        Affine(np.array([None]), jnp.eye(1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"shapes \(d,\) and \(d, k\), got \(2,\) and \(3, 3\)"):
        Affine(jnp.zeros(2), jnp.eye(3))


def test_affine_acts_on_one_sample_and_on_many(getkey):
    affine = Affine(jnp.asarray([1.0, 2.0]), jnp.asarray([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]]))
    x = jax.random.normal(getkey(), (4, 2))
    by_hand = np.stack([[a - 1, 3 * (b - 2), 2 * (a - 1) + (b - 2)] for a, b in np.asarray(x)])
    np.testing.assert_allclose(affine(x), by_hand, rtol=20 * _eps(), atol=20 * _eps())
    np.testing.assert_allclose(jax.vmap(affine)(x), affine(x), rtol=20 * _eps(), atol=20 * _eps())
    np.testing.assert_allclose(eqx.filter_jit(affine)(x), affine(x), rtol=20 * _eps(), atol=20 * _eps())
    np.testing.assert_allclose(jax.jacobian(affine)(x[0]), affine.matrix.T)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 2)])
def test_affine_refuses_other_shapes(shape):
    affine = Affine(jnp.zeros(2), jnp.eye(2))
    with pytest.raises(ValueError, match=r"takes inputs of shape \(2,\) or \(n, 2\), got"):
        affine(jnp.zeros(shape))


# --- pca


def test_pca_agrees_with_scikit_learn():
    from sklearn.decomposition import PCA

    x = _inputs()
    theirs = PCA(3).fit(np.asarray(x, np.float64))
    ours = pca(3, standardize=False).fit(x)
    np.testing.assert_allclose(ours.mean, theirs.mean_, rtol=100 * _eps())
    signs = np.sign(np.sum(np.asarray(ours.matrix).T * theirs.components_, axis=1))
    np.testing.assert_allclose(ours.matrix.T, signs[:, None] * theirs.components_, atol=100 * _eps())
    # scikit-learn divides by n - 1
    std = np.sqrt(theirs.explained_variance_ * 59 / 60)
    np.testing.assert_allclose(pca(3).fit(x).matrix, ours.matrix / std[None, :], rtol=1e-4, atol=100 * _eps())


def test_pca_standardizes_unless_told_not_to():
    x = _inputs()
    z = pca(4).fit(x)(x)
    np.testing.assert_allclose(_second_moment(z), np.eye(4), atol=1e3 * _eps())
    raw = _second_moment(pca(4, standardize=False).fit(x)(x))
    variances = np.linalg.eigvalsh(np.cov(np.asarray(x, np.float64).T, ddof=0))[::-1][:4]
    np.testing.assert_allclose(raw, np.diag(variances), atol=1e3 * _eps())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_pca_signs_are_fixed(seed, d):
    x = _inputs(20, d, seed=seed)
    matrix = np.asarray(pca(d, standardize=False).fit(x).matrix)
    size = np.abs(matrix)
    first = np.argmax(size >= (1 - 1e-4) * size.max(0), axis=0)
    assert np.all(matrix[first, np.arange(d)] > 0)
    # reversing the samples or the sign of the centered inputs turns no component around
    np.testing.assert_allclose(pca(d, standardize=False).fit(x[::-1]).matrix, matrix, atol=1e4 * _eps())
    np.testing.assert_allclose(pca(d, standardize=False).fit(-x).matrix, matrix, atol=1e4 * _eps())


def test_pca_of_equal_entries_does_not_let_rounding_choose_the_sign():
    a = jnp.linspace(-1, 1, 11)
    for flip in (1, -1):
        x = flip * jnp.stack([a, -a], axis=1)
        np.testing.assert_allclose(pca(1, standardize=False).fit(x).matrix[:, 0], [0.5**0.5, -(0.5**0.5)], rtol=1e-6)


def test_pca_with_fewer_samples_than_features():
    x = _inputs(6, 20, offset=0.0)
    z = pca(5).fit(x)(x)
    np.testing.assert_allclose(_second_moment(z), np.eye(5), atol=1e4 * _eps())


def test_pca_refuses_more_components_than_the_rank():
    with pytest.raises(ValueError, match=r"pca\(k=3\): the 60 x 5 training inputs, centered, have rank 2; ask for 2"):
        pca(3).fit(_inputs(rank=2))
    with pytest.raises(ValueError, match=r"pca\(k=6\): .* have rank 5; ask for 5 or fewer"):
        pca(6).fit(_inputs())
    with pytest.raises(ValueError, match="all zero up to rounding"):
        pca(1).fit(jnp.full((5, 2), 0.1))
    with pytest.raises(ValueError, match="k must be an integer >= 1, got 0"):
        pca(0)
    with pytest.raises(TypeError):
        pca(2.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        whiten("all")  # pyright: ignore[reportArgumentType]


# --- whiten


@pytest.mark.x64_only
@pytest.mark.parametrize("center", [True, False])
def test_whitening_is_exact(center):
    x = _inputs()
    z = whiten(center=center).fit(x)(x)
    assert z.shape == x.shape
    assert np.abs(_second_moment(z) - np.eye(5)).max() < 1e-12
    if center:
        assert np.abs(z.mean(0)).max() < 1e-12


@pytest.mark.x64_only
def test_whitening_without_the_scales_or_the_mean_would_be_noticed():
    x = _inputs()
    affine = whiten().fit(x)
    unscaled = pca(5, standardize=False).fit(x)
    assert np.abs(_second_moment(unscaled(x)) - np.eye(5)).max() > 1e-2
    uncentered = Affine(jnp.zeros_like(affine.mean), affine.matrix)
    assert np.abs(_second_moment(uncentered(x)) - np.eye(5)).max() > 1e-2


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 30), d=st.integers(1, 6), rank=st.integers(1, 6))
def test_whitening_finds_the_rank(seed, n, d, rank):
    rank = min(rank, d)
    x = _inputs(n, d, rank, seed=seed)
    z = whiten().fit(x)(x)
    r = min(rank, n - 1)
    assert z.shape == (n, r)
    np.testing.assert_allclose(_second_moment(z), np.eye(r), atol=1e6 * _eps())


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.x64_only)])
@pytest.mark.parametrize(("n", "d", "rank"), [(1000, 64, 5), (40, 300, 20), (20000, 30, 2), (90, 90, 60)])
def test_rounding_is_not_a_direction(dtype, n, d, rank):
    rng = np.random.default_rng(1)
    # the product and the offset are rounded, so that null directions hold noise
    x = rng.normal(size=(n, rank)).astype(dtype) @ rng.normal(size=(rank, d)).astype(dtype) + dtype(10)
    affine = whiten().fit(jnp.asarray(x))
    assert affine.matrix.shape == (d, rank)
    assert affine.matrix.dtype == affine.mean.dtype == x.dtype


def test_whiten_to_a_rank_is_standardized_pca():
    x = _inputs()
    np.testing.assert_array_equal(whiten(2).fit(x).matrix, pca(2).fit(x).matrix)
    with pytest.raises(ValueError, match=r"whiten\(rank=3\): the 60 x 5 training inputs, centered, have rank 2"):
        whiten(3).fit(_inputs(rank=2))
    with pytest.raises(ValueError, match="rank must be an integer >= 1, got -1"):
        whiten(-1)
    with pytest.raises(ValueError, match=r"the 4 x 3 training inputs are all zero"):
        whiten(center=False).fit(jnp.zeros((4, 3)))


def test_without_centering_the_mean_is_a_direction():
    x = _inputs(rank=2)
    assert whiten(center=False).fit(x).matrix.shape == (5, 3)
    assert jnp.all(whiten(center=False).fit(x).mean == 0)


# --- partial whitening


@settings(deadline=None, max_examples=20)
@given(power=st.floats(0, 1), center=st.booleans())
def test_partial_whitening_takes_singular_values_to_a_power(power, center):
    x = _inputs()
    z = partial_whiten(power, center=center).fit(x)(x)

    def singular_values(a):
        a = np.asarray(a, np.float64)
        return np.linalg.svd((a - a.mean(0) if center else a) / np.sqrt(len(a)), compute_uv=False)

    expected = singular_values(x) ** (1 - power)
    np.testing.assert_allclose(singular_values(z), expected, rtol=1e4 * _eps())
    wrong = singular_values(x) ** -power  # without the singular values of the inputs themselves
    assert not np.allclose(singular_values(z), wrong, rtol=1e4 * _eps())


def test_partial_whitening_ends():
    x = _inputs()
    np.testing.assert_allclose(partial_whiten(0.0, center=False).fit(x)(x), x, rtol=1e3 * _eps())
    np.testing.assert_allclose(partial_whiten(0).fit(x)(x), x - x.mean(0)[None], atol=1e3 * _eps())
    np.testing.assert_allclose(_second_moment(partial_whiten(1).fit(x)(x)), np.eye(5), atol=1e4 * _eps())


def test_partial_whitening_projects_null_directions_out():
    x = _inputs(rank=2)
    for power in (0.0, 0.5, 1.0):
        matrix = partial_whiten(power).fit(x).matrix
        assert np.linalg.matrix_rank(np.asarray(matrix, np.float64), tol=1e-4) == 2
    z = partial_whiten(1.0).fit(x)(x)
    moment = _second_moment(z)
    np.testing.assert_allclose(moment @ moment, moment, atol=1e4 * _eps())  # a projection
    np.testing.assert_allclose(np.trace(moment), 2, rtol=1e4 * _eps())


def test_partial_whitening_power_may_be_traced():
    x = _inputs()
    powers = jnp.asarray([0.0, 0.3, 1.0])
    many = jax.jit(jax.vmap(lambda p: partial_whiten(p).fit(x)(x)))(powers)
    for p, z in zip(powers, many, strict=True):
        np.testing.assert_allclose(z, partial_whiten(p).fit(x)(x), rtol=1e3 * _eps(), atol=1e3 * _eps())

    def size(p):
        return jnp.sum(partial_whiten(p).fit(x)(x) ** 2) / 60

    s2 = np.linalg.eigvalsh(np.cov(np.asarray(x, np.float64).T, ddof=0))
    slope = -np.sum(s2**0.6 * np.log(s2))  # d/dp of sum s^(2 - 2p) at p = 0.4
    np.testing.assert_allclose(jax.jit(jax.grad(size))(0.4), slope, rtol=1e4 * _eps())


@pytest.mark.parametrize("power", [-0.1, 1.5, np.nan])
def test_partial_whitening_refuses_other_powers(power):
    with pytest.raises(ValueError, match=rf"power must be a scalar in \[0, 1\].*got {power}"):
        partial_whiten(power)


def test_partial_whitening_refuses_several_powers():
    with pytest.raises((ValueError, TypeError)):
        partial_whiten(jnp.asarray([0.1, 0.2]))


# --- standardize


def test_standardize_gives_unit_variance_and_silences_constants():
    x = jnp.concatenate([_inputs(), jnp.full((60, 1), 0.1)], axis=1)
    affine = standardize().fit(x)
    z = affine(x)
    assert z.shape == x.shape
    np.testing.assert_allclose(z[:, :5].mean(0), 0, atol=1e3 * _eps())
    np.testing.assert_allclose(z[:, :5].var(0), 1, rtol=1e3 * _eps())
    np.testing.assert_array_equal(z[:, 5], 0)
    np.testing.assert_array_equal(affine(x + 1)[:, 5], 0)


def test_standardize_recognizes_a_long_constant_column():
    # a plain sum over so many samples rounds the mean by far more than one unit
    x = jnp.stack([jnp.full(200_000, 0.1), jnp.arange(200_000) / 1000], axis=1)
    assert standardize().fit(x).matrix[0, 0] == 0


# --- under transformations of JAX


@pytest.mark.parametrize(
    "rule", [pca(3), pca(3, standardize=False), whiten(4), whiten(2, center=False), partial_whiten(0.5), standardize()]
)
def test_fit_under_jit_and_vmap(rule):
    def fitted(x):
        return rule.fit(x)(x)

    xs = jnp.stack([_inputs(seed=1), _inputs(seed=2)])
    tolerance = 1e4 * _eps()
    np.testing.assert_allclose(jax.jit(fitted)(xs[0]), fitted(xs[0]), atol=tolerance)
    for z, x in zip(jax.vmap(fitted)(xs), xs, strict=True):
        np.testing.assert_allclose(z, fitted(x), atol=tolerance)


@pytest.mark.x64_only
def test_fit_can_be_differentiated():
    x, direction = _inputs(), _inputs(seed=3)

    @jax.jit
    def f(t):
        return jnp.sum(pca(3).fit(x + t * direction)(x[0]) ** 3)

    h = 1e-5
    np.testing.assert_allclose(jax.jit(jax.grad(f))(0.0), (f(h) - f(-h)) / (2 * h), rtol=1e-6)


def test_traced_inputs_of_too_small_a_rank_give_nan():
    affine = jax.jit(pca(3).fit)(_inputs(rank=2))
    assert jnp.all(jnp.isfinite(affine.matrix[:, :2]))
    assert jnp.all(jnp.isnan(affine.matrix[:, 2]))


def test_traced_inputs_need_a_given_rank():
    with pytest.raises(ValueError, match=r"cannot be fitted inside jit or vmap; give rank="):
        jax.jit(whiten().fit)(_inputs())
    with pytest.raises(ValueError, match="have rank at most 5; ask for 5 or fewer"):
        jax.jit(pca(6).fit)(_inputs())


def test_float32_inputs_stay_float32():
    x = jnp.asarray(_inputs(), jnp.float32)
    for rule in (pca(2), whiten(), partial_whiten(0.5), standardize()):
        assert rule.fit(x)(x).dtype == jnp.float32
    z = whiten().fit(x)(x)
    np.testing.assert_allclose(_second_moment(z), np.eye(5), atol=1e-4)


def test_bad_inputs():
    with pytest.raises(ValueError, match=r"flat inputs of shape \(n, d\), got \(4, 2, 2\)"):
        standardize().fit(jnp.ones((4, 2, 2)))
    with pytest.raises(ValueError, match="at least one sample"):
        whiten().fit(jnp.ones((0, 2)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        pca(1).fit(jnp.full((4, 2), jnp.nan))
