from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxsolve.data import gaussian, line, teacher_student


def _eps():
    return float(jnp.finfo(jnp.result_type(float)).eps)


def _cubic(x):
    return x[0] ** 3 - x[1]


def _line(**options):
    return line(6, 4, **({"n_test": 3, "key": jax.random.key(0)} | options))


def _gaussian(**options):
    return gaussian(6, 4, **({"n_test": 3, "key": jax.random.key(0)} | options))


def _teacher_student(**options):
    return teacher_student(_cubic, 4, 6, **({"n_test": 3, "key": jax.random.key(0)} | options))


def _test(data):
    assert data.test is not None
    return data.test


SOURCES = pytest.mark.parametrize("source", [_line, _gaussian, _teacher_student])


@SOURCES
def test_shapes_dtype_and_source(source):
    data = source()
    assert data.x.shape == (6, 4)
    assert data.y.shape == (6, 1)
    assert data.x_test.shape == (3, 4)
    assert data.y_test.shape == (3, 1)
    assert all(a.dtype == jnp.result_type(float) for a in jax.tree.leaves(data))
    assert "6 training and 3 test samples in 4 dimensions" in data.source


@SOURCES
def test_no_test_samples_means_no_test_set_and_the_same_training_set(source):
    alone = source(n_test=0)
    assert alone.test is None
    for a, b in zip(alone.train, source(n_test=50).train, strict=True):
        np.testing.assert_array_equal(a, b)


@SOURCES
def test_same_key_same_data_new_and_legacy(source):
    np.testing.assert_array_equal(source().x, source().x)
    assert not np.any(source().x == source(key=jax.random.key(1)).x)
    np.testing.assert_array_equal(source().x, source(key=jax.random.PRNGKey(0)).x)


@SOURCES
def test_training_and_test_samples_differ(source):
    data = source(noise=1.0)
    assert not np.intersect1d(np.asarray(data.x), np.asarray(data.x_test)).size
    assert not np.intersect1d(np.asarray(data.y), np.asarray(data.y_test)).size


@pytest.mark.slow
@SOURCES
def test_under_jit_and_vmap_over_the_key_and_the_noise(source):
    keys = jax.random.split(jax.random.key(5), 3)
    noises = jnp.asarray([0.0, 0.5, 1.0])
    many = eqx.filter_jit(eqx.filter_vmap(lambda k, s: source(key=k, noise=s)))(keys, noises)
    assert many.x.shape == (3, 6, 4)
    one = source(key=keys[1], noise=0.5)
    for name in ("x", "y", "x_test", "y_test"):
        np.testing.assert_allclose(getattr(many, name)[1], getattr(one, name), rtol=1e2 * _eps(), atol=1e2 * _eps())
    still = source(key=keys[0])  # noise 0 draws nothing, and gives what a draw times 0 gives
    np.testing.assert_allclose(many.y[0], still.y, rtol=1e2 * _eps(), atol=1e2 * _eps())


@SOURCES
def test_noise_is_standard_normal_times_its_size(source):
    clean, noisy = source(), source(noise=0.5)
    np.testing.assert_array_equal(clean.x, noisy.x)
    slope = jax.jit(jax.jacfwd(lambda s: source(noise=s)))(0.3)
    np.testing.assert_allclose(noisy.y - clean.y, 0.5 * slope.y, rtol=1e3 * _eps(), atol=1e2 * _eps())
    np.testing.assert_allclose(noisy.y_test - clean.y_test, 0.5 * slope.y_test, rtol=1e3 * _eps(), atol=1e2 * _eps())


@SOURCES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_test": -1}, "n_test must be an integer >= 0, got -1"),
        ({"noise": -0.1}, "noise must be one finite number >= 0, got -0.1"),
        ({"noise": float("nan")}, "noise must be one finite number >= 0, got nan"),
    ],
)
def test_bad_options(source, options, message):
    with pytest.raises(ValueError, match=message):
        source(**options)


@SOURCES
def test_bad_types(source):
    for options in ({"n_test": 1.5}, {"n_test": True}, {"key": 0}, {"key": jnp.zeros(2)}):
        with pytest.raises(TypeError):
            source(**options)
    for options in ({"noise": jnp.zeros(2)}, {"key": jax.random.split(jax.random.key(0), 2)}):
        with pytest.raises((ValueError, TypeError)):
            source(**options)


def test_bad_sizes():
    key = jax.random.key(0)
    for make in (
        lambda n, d: line(n, d, key=key),
        lambda n, d: gaussian(n, d, key=key),
        lambda n, d: teacher_student(_cubic, d, n, key=key),
    ):
        with pytest.raises(ValueError, match="n_train must be an integer >= 1, got 0"):
            make(0, 2)
        with pytest.raises(ValueError, match="in_size must be an integer >= 1, got 0"):
            make(2, 0)


# --- line


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 10))
def test_line_lies_on_its_unit_direction(seed, scale):
    u = np.array([3.0, 0.0, -4.0]) / 5
    data = line(5, 3, direction=10 * u, scale=scale, target=lambda a: a**2, key=jax.random.key(seed))
    a = np.asarray(data.x) @ u
    np.testing.assert_allclose(data.x, a[:, None] * u[None], atol=10 * _eps() * scale)
    np.testing.assert_allclose(data.y[:, 0], a**2, rtol=1e2 * _eps(), atol=1e2 * _eps())
    unit = line(5, 3, direction=u, key=jax.random.key(seed))
    np.testing.assert_allclose(data.x, scale * unit.x, rtol=1e2 * _eps(), atol=1e2 * _eps())


def test_line_draws_a_direction():
    data = line(5, 3, n_test=2, key=jax.random.key(0))
    assert np.linalg.matrix_rank(np.concatenate([data.x, _test(data)[0]]), tol=1e-5) == 1
    np.testing.assert_allclose(jnp.linalg.norm(data.x, axis=1), jnp.abs(data.y[:, 0]), rtol=1e2 * _eps())


def test_line_coordinate_and_noise_have_the_sizes_asked_for():
    data = line(20000, 1, target=jnp.zeros_like, scale=2.0, noise=0.7, key=jax.random.key(0))
    for sample, size in ((np.asarray(data.x), 2.0), (np.asarray(data.y), 0.7)):
        np.testing.assert_allclose(sample.mean(), 0, atol=0.03 * size)
        np.testing.assert_allclose(sample.std(), size, rtol=0.03)
        np.testing.assert_allclose((sample**4).mean(), 3 * size**4, rtol=0.15)  # as of a normal distribution
    assert abs(np.corrcoef(data.x[:, 0], data.y[:, 0])[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (lambda a: jnp.stack([a, -a]), lambda a: np.stack([a, -a], 1)),
        (lambda a: 2.0, lambda a: np.full((len(a), 1), 2.0)),
        (lambda a: a > 0, lambda a: (a > 0)[:, None].astype(float)),
    ],
    ids=["vector", "constant", "boolean"],
)
def test_line_targets_of_any_kind(target, expected):
    direction = jnp.asarray([1.0, 0.0])
    data = line(6, 2, target=target, direction=direction, n_test=4, key=jax.random.key(0))
    np.testing.assert_allclose(data.y, expected(np.asarray(data.x[:, 0])), rtol=10 * _eps())
    np.testing.assert_allclose(_test(data)[1], expected(np.asarray(_test(data)[0][:, 0])), rtol=10 * _eps())


def test_line_differentiates_in_scale_and_maps_over_it():
    def f(scale):
        return jnp.sum(_line(scale=scale, target=lambda a: a**2, n_test=0).y)

    scales = jnp.asarray([0.5, 2.0])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(f)))(scales)
    np.testing.assert_allclose(values, f(1.0) * scales**2, rtol=1e2 * _eps())
    np.testing.assert_allclose(slopes, 2 * values / scales, rtol=1e2 * _eps())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be one finite number > 0, got 0.0"),
        ({"scale": float("inf")}, "scale must be one finite number > 0, got inf"),
        ({"direction": jnp.ones(3)}, r"direction must be a nonzero vector of shape \(4,\), got .*\(3,\)"),
        ({"direction": jnp.zeros(4)}, r"direction must be a nonzero vector of shape \(4,\), got .* of zeros"),
        ({"direction": jnp.full(4, jnp.nan)}, "direction holds 4 value"),
        ({"target": lambda a: jnp.ones((2, 2))}, r"target must return a scalar .* for one sample, got \(2, 2\)"),
        ({"target": lambda a: jnp.log(-(a**2))}, "y holds 6 value.*NaN or infinite"),
    ],
)
def test_line_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        _line(**options)


# --- gaussian


def test_gaussian_targets_are_linear():
    teacher = jnp.arange(8.0).reshape(4, 2)
    data = _gaussian(teacher=teacher)
    np.testing.assert_allclose(data.y, data.x @ teacher, rtol=1e2 * _eps(), atol=1e2 * _eps())
    np.testing.assert_allclose(_test(data)[1], _test(data)[0] @ teacher, rtol=1e2 * _eps(), atol=1e2 * _eps())
    drawn = gaussian(8, 4, 3, key=jax.random.key(0))
    assert drawn.y.shape == (8, 3)
    _, residual, rank, _ = np.linalg.lstsq(np.asarray(drawn.x), np.asarray(drawn.y))
    assert rank == 4
    assert np.all(residual < 1e2 * _eps())


def test_gaussian_teacher_has_variance_one_over_d():
    data = gaussian(64, 64, 400, key=jax.random.key(7))
    teacher = np.linalg.solve(np.asarray(data.x, np.float64), np.asarray(data.y, np.float64))
    np.testing.assert_allclose(teacher.var(), 1 / 64, rtol=0.03)


def test_gaussian_has_the_covariance_asked_for():
    eigenvalues = jnp.asarray([4.0, 1.0, 0.0])
    x = gaussian(40000, 3, n_test=40000, covariance=eigenvalues, key=jax.random.key(7))
    for sample in (x.x, _test(x)[0]):
        np.testing.assert_allclose(sample.T @ sample / 40000, np.diag(eigenvalues), atol=0.1)
    assert jnp.all(x.x[:, 2] == 0)
    matrix = jnp.asarray([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 1.0]])
    x = gaussian(40000, 3, n_test=40000, covariance=matrix, key=jax.random.key(7))
    for sample in (x.x, _test(x)[0]):
        np.testing.assert_allclose(sample.T @ sample / 40000, matrix, atol=0.06)


@pytest.mark.parametrize("covariance", [np.array([4.0, 2.0, 1.0, 0.5]), np.eye(4) + 0.2], ids=["vector", "matrix"])
def test_gaussian_covariance_may_be_traced(covariance):
    def f(covariance):
        data = _gaussian(covariance=covariance, teacher=jnp.ones((4, 1)), n_test=0)
        return jnp.sum(data.y**2), data

    (value, traced), slope = jax.jit(jax.value_and_grad(f, has_aux=True))(jnp.asarray(covariance))
    np.testing.assert_allclose(traced.x, f(covariance)[1].x, rtol=1e3 * _eps(), atol=1e2 * _eps())
    # f is quadratic in x, so it has degree one in the covariance: Euler's relation
    np.testing.assert_allclose(np.sum(slope * covariance), value, rtol=1e3 * _eps())


def test_gaussian_differentiates_in_the_teacher():
    x = _gaussian().x
    slope = jax.jit(jax.jacfwd(lambda w: _gaussian(teacher=w).y))(jnp.ones((4, 1)))
    np.testing.assert_allclose(slope[:, 0, :, 0], x, rtol=10 * _eps())


@pytest.mark.x64_only
@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 5), (12, 5)])
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_whitened_gaussian_is_exactly_white(n, d, seed):
    x = np.asarray(gaussian(n, d, whitened=True, key=jax.random.key(seed)).x)
    assert np.abs(x.T @ x / n - np.eye(d)).max() < 1e-12
    plain = np.asarray(gaussian(n, d, key=jax.random.key(seed)).x)
    assert np.abs(plain.T @ plain / n - np.eye(d)).max() > 1e-6


def test_whitened_gaussian_is_uniformly_distributed():
    keys = jax.random.split(jax.random.key(0), 4000)
    data: Any = jax.jit(jax.vmap(lambda k: gaussian(2, 2, n_test=1, whitened=True, key=k)))(keys)
    q = np.asarray(data.x) / np.sqrt(2)
    np.testing.assert_allclose(np.swapaxes(q, 1, 2) @ q, np.tile(np.eye(2), (4000, 1, 1)), atol=20 * _eps())
    # over the orthogonal group every entry has mean 0 and mean square 1/2; determinants are +1 and -1 equally often
    np.testing.assert_allclose(q.mean(0), 0, atol=0.06)
    np.testing.assert_allclose((q**2).mean(0), 0.5, atol=0.04)
    np.testing.assert_allclose(np.linalg.det(q).mean(), 0, atol=0.08)
    # test inputs are plain Gaussian
    np.testing.assert_allclose(data.x_test.var(0), 1, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"covariance": jnp.ones(3)},
            r"must be eigenvalues of shape \(4,\) or a matrix .* got shape \(3,\)",
        ),
        ({"covariance": jnp.asarray([1.0, 1.0, 1.0, -2.0])}, "negative eigenvalue, -2.0"),
        ({"covariance": jnp.full(4, jnp.inf)}, "covariance holds 4 value"),
        ({"covariance": jnp.ones((4, 4))}, "must be positive definite.*zeros included"),
        ({"covariance": jnp.eye(4).at[0, 1].set(0.5)}, "covariance must be symmetric; .* by 0.5"),
        ({"covariance": jnp.ones(4), "whitened": True}, "give it without covariance="),
        ({"teacher": jnp.ones(4)}, r"teacher must be a matrix of shape \(4, c\) .* got shape \(4,\)"),
        ({"teacher": jnp.ones((3, 2))}, r"teacher must be a matrix of shape \(4, c\) .* got shape \(3, 2\)"),
        ({"teacher": jnp.ones((4, 2)), "out_size": 3}, r"of shape \(4, 3\) .* got shape \(4, 2\)"),
        ({"teacher": jnp.full((4, 1), jnp.nan)}, "teacher holds 4 value"),
        ({"out_size": 0}, "out_size must be an integer >= 1, got 0"),
    ],
)
def test_gaussian_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        _gaussian(**options)


def test_whitening_needs_enough_samples():
    with pytest.raises(ValueError, match="n_train >= in_size .* got n_train=3 and in_size=4"):
        gaussian(3, 4, whitened=True, key=jax.random.key(0))


# --- teacher and student


def test_teacher_labels_each_sample():
    data = _teacher_student()
    for x, y in ((data.x, data.y), (_test(data)[0], _test(data)[1])):
        np.testing.assert_allclose(y[:, 0], x[:, 0] ** 3 - x[:, 1], rtol=1e2 * _eps(), atol=10 * _eps())


def test_teacher_may_be_a_module():
    net = eqx.nn.Linear(4, 2, key=jax.random.key(1))
    data = teacher_student(net, 4, 6, key=jax.random.key(0))
    np.testing.assert_allclose(data.y, jax.vmap(net)(data.x), rtol=1e2 * _eps(), atol=1e2 * _eps())


def test_teacher_student_on_the_sphere():
    x = teacher_student(_cubic, 3, 20000, n_test=10, sphere=True, key=jax.random.key(7))
    np.testing.assert_allclose(jnp.linalg.norm(x.x, axis=1), 1, rtol=10 * _eps())
    np.testing.assert_allclose(jnp.linalg.norm(_test(x)[0], axis=1), 1, rtol=10 * _eps())
    # uniform on the sphere in three dimensions: each coordinate is uniform on [-1, 1]
    np.testing.assert_allclose(x.x.mean(0), 0, atol=0.03)
    np.testing.assert_allclose((x.x**2).mean(0), 1 / 3, atol=0.02)
    np.testing.assert_allclose((x.x**4).mean(0), 1 / 5, atol=0.02)
    assert "on the unit sphere" in x.source


def test_teacher_student_inputs_are_standard_normal():
    x = teacher_student(_cubic, 3, 20000, key=jax.random.key(7)).x
    np.testing.assert_allclose(x.T @ x / 20000, np.eye(3), atol=0.06)


def test_teacher_student_differentiates_in_the_teacher():
    def f(w):
        return teacher_student(lambda x: w * jnp.sum(x**2), 3, 5, key=jax.random.key(0)).y.sum()

    np.testing.assert_allclose(jax.jit(jax.grad(f))(2.0), f(2.0) / 2, rtol=1e2 * _eps())


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (lambda x: x[:, None], r"teacher must return a scalar .* got \(3, 1\)"),
        (lambda x: jnp.inf * x[0], "y holds 5 value"),
    ],
)
def test_teacher_student_bad_teachers(teacher, message):
    with pytest.raises(ValueError, match=message):
        teacher_student(teacher, 3, 5, key=jax.random.key(0))
