import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve.data import Dataset, pca, standardize


def _arrays(n=4, m=3):
    x = jnp.arange(2.0 * n).reshape(n, 2) + jnp.asarray([[0.0, 1.0]])
    return x, jnp.ones((n, 1)), x[:m] + 1, jnp.zeros((m, 1))


def test_train_and_test_pairs():
    x, y, x_test, y_test = _arrays()
    data = Dataset(x, y, x_test, y_test)
    assert data.train[0] is data.x
    assert data.train[1] is data.y
    assert data.test is not None
    assert data.test[0] is data.x_test
    assert data.test[1] is data.y_test
    assert Dataset(x, y).test is None


def test_integers_and_booleans_become_floats():
    data = Dataset(np.array([[0, 1], [2, 3]]), np.array([[True], [False]]))
    assert data.x.dtype == data.y.dtype == jnp.result_type(float)
    half = Dataset(jnp.ones((2, 2), jnp.float16), np.array([[1], [2]]))
    assert half.y.dtype == jnp.float16


def test_repr_tells_shapes_dtypes_and_source_but_not_values():
    x, y, x_test, y_test = (jnp.asarray(a, jnp.float32) for a in _arrays())
    text = repr(Dataset(x, y, x_test, y_test, source="a test"))
    assert text == "Dataset(train: x f32[4,2], y f32[4,1]; test: x f32[3,2], y f32[3,1]; source: a test)"
    assert "test: none; source: arrays given by the user" in repr(Dataset(x, y))
    hollow = jax.tree.map(lambda _: None, Dataset(x, y))  # as eqx.partition leaves behind
    assert "x None" in repr(hollow)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": jnp.ones((5, 1))}, r"x has 4 samples and y has 5 .*equally many"),
        ({"y_test": jnp.ones((2, 1))}, r"x_test has 3 samples and y_test has 2"),
        ({"x": jnp.ones(4)}, r"x must have shape \(n, d\) or \(n, \*shape\), got \(4,\); .*x\[:, None\]"),
        ({"y": jnp.ones(4)}, r"y must have shape \(n, c\), got \(4,\); .*y\[:, None\].*one_hot"),
        ({"x": jnp.ones((0, 2))}, r"x is empty: its shape is \(0, 2\)"),
        ({"x_test": jnp.ones((3, 0))}, r"x_test is empty"),
        ({"x_test": None}, r"y_test was given without x_test; give both, or neither"),
        ({"y_test": None}, r"x_test was given without y_test"),
        ({"x_test": jnp.ones((3, 5))}, r"one sample of x has shape \(2,\) but one of x_test has shape \(5,\)"),
        ({"y_test": jnp.ones((3, 2))}, r"one sample of y has shape \(1,\) but one of y_test has shape \(2,\)"),
        ({"x": jnp.ones((4, 2)).at[1, 0].set(jnp.nan)}, r"x holds 1 value.*NaN or infinite.*\(1, 0\)"),
        ({"y": jnp.ones((4, 1)).at[2, 0].set(jnp.inf)}, r"y holds 1 value.*NaN or infinite.*\(2, 0\)"),
        ({"x_test": jnp.full((3, 2), jnp.nan)}, r"x_test holds 6 value"),
        ({"y_test": jnp.full((3, 1), -jnp.inf)}, r"y_test holds 3 value"),
        ({"y": jnp.ones((4, 1), jnp.float16)}, r"x has dtype float\d\d but y has dtype float16; .*astype"),
        ({"x": jnp.ones((4, 2), complex)}, r"x must hold real numbers, got .*complex"),
    ],
)
def test_bad_arrays_are_refused_by_name(change, message):
    arrays = dict(zip(("x", "y", "x_test", "y_test"), _arrays(), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        Dataset(**arrays)


def test_shapes_are_checked_under_jit_but_values_pass():
    x, y, *_ = _arrays()
    made = eqx.filter_jit(lambda x, y: Dataset(x, y))(x.at[0, 0].set(jnp.nan), y)
    assert jnp.isnan(made.x[0, 0])
    with pytest.raises(ValueError, match="x has 4 samples and y has 3"):
        eqx.filter_jit(lambda x, y: Dataset(x, y))(x, y[:3])


def test_is_a_pytree_of_its_arrays():
    data = Dataset(*_arrays(), source="kept")
    assert len(jax.tree.leaves(data)) == 4
    doubled = jax.tree.map(lambda a: 2 * a, data)
    assert doubled.source == "kept"
    np.testing.assert_array_equal(doubled.x, 2 * data.x)
    stacked = jax.vmap(lambda s: Dataset(s * data.x, data.y))(jnp.arange(3.0))
    assert stacked.x.shape == (3, 4, 2)


def test_transform_is_fitted_on_the_training_inputs_alone(getkey):
    x = jax.random.normal(getkey(), (50, 3)) + 5
    far = 100 + jax.random.normal(getkey(), (7, 3))
    data = Dataset(x, x[:, :1], far, far[:, :1], source="here")
    new = data.transform(standardize())
    affine = standardize().fit(x)
    np.testing.assert_array_equal(new.x, affine(x))
    np.testing.assert_array_equal(new.x_test, affine(far))
    np.testing.assert_allclose(new.x.mean(0), 0, atol=1e-5)
    assert new.x_test is not None
    assert jnp.all(new.x_test > 50)  # a fit on the test inputs too would have centered them
    np.testing.assert_array_equal(new.y, data.y)
    np.testing.assert_array_equal(new.y_test, data.y_test)
    assert new.source == "here; Standardize()"
    assert Dataset(x, x).transform(pca(2)).test is None


def test_transform_needs_flat_inputs():
    data = Dataset(jnp.ones((5, 1, 2, 2)), jnp.ones((5, 1)))
    with pytest.raises(ValueError, match=r"flat inputs of shape \(n, d\), got \(5, 1, 2, 2\); use x.reshape"):
        data.transform(pca(1))


def test_large_integers_do_not_wrap_round():
    with jax.enable_x64(False):
        found = Dataset(np.array([[3_000_000_000]]), np.array([[1]]))
    assert float(found.x[0, 0]) == 3e9
