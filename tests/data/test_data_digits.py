from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.datasets import load_digits

from jaxsolve.data import digits, pca
from tests.inside import encode, labels_draw as draw


LABELS = np.array([0, 1, 2, 3, 7, 7, 9, 3])


def _test(data):
    assert data.test is not None
    return data.test


# --- tasks


def test_classes_are_one_hot():
    kept, y = encode(LABELS, "classes")
    np.testing.assert_array_equal(kept, np.arange(8))
    assert y.shape == (8, 10)
    np.testing.assert_array_equal(y.argmax(1), LABELS)
    np.testing.assert_array_equal(y.sum(1), 1)


def test_parity_is_plus_one_for_odd():
    kept, y = encode(LABELS.astype(np.uint8), "parity")
    np.testing.assert_array_equal(kept, np.arange(8))
    np.testing.assert_array_equal(y[:, 0], [-1, 1, -1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("pair", [(3, 7), [3, 7], (np.int64(3), np.int64(7))])
def test_pairs_keep_two_classes(pair):
    kept, y = encode(LABELS, pair)
    np.testing.assert_array_equal(kept, [3, 4, 5, 7])
    np.testing.assert_array_equal(y[:, 0], [-1, 1, 1, -1])
    _, swapped = encode(LABELS, (pair[1], pair[0]))
    np.testing.assert_array_equal(swapped, -y)


@pytest.mark.parametrize(
    "task", ["class", "", (3,), (3, 3), (1, 2, 3), (0, 10), (-1, 2), (True, 2), (0.0, 1.0), ("1", "2")]
)
def test_unknown_tasks_list_the_accepted_forms(task):
    with pytest.raises((ValueError, TypeError)) as caught:
        encode(LABELS, task)
    if isinstance(caught.value, ValueError):
        assert '"classes" (one-hot rows), "parity"' in str(caught.value)
        assert "pair (a, b)" in str(caught.value)
    else:  # the shape checks of the test run know that a pair holds integers
        assert not all(isinstance(c, int) for c in task)


def test_unknown_task_names_what_was_given():
    with pytest.raises(ValueError, match=r"task must be .* got str 'color'"):
        digits(task="color", n_train=5, key=jax.random.key(0))


# --- splits


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), available=st.sampled_from([1, 2, 40]), data=st.data())
def test_splits_are_disjoint_complete_and_deterministic(seed, available, data):
    first = data.draw(st.integers(1, available))
    second = data.draw(st.none() | st.integers(0, available - first))
    key = jax.random.key(seed)
    a, b = (np.asarray(i) for i in draw(key, available, (first, second), "samples"))
    assert len(a) == first
    assert len(b) == (available - first if second is None else second)
    both = np.concatenate([a, b])
    assert len(np.unique(both)) == len(both)
    assert both.min() >= 0
    assert both.max() < available
    a_again, b_again = draw(key, available, (first, second), "samples")
    np.testing.assert_array_equal(a, a_again)
    np.testing.assert_array_equal(b, b_again)


def test_asking_for_too_much_tells_how_many_there_are():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="6 samples were requested, but there are 5 things; request fewer"):
        draw(key, 5, (6, None), "things")
    with pytest.raises(ValueError, match=r"3 \+ 3 = 6 samples were requested, but there are 5 things"):
        draw(key, 5, (3, 3), "things")
    with pytest.raises(ValueError, match=r"1798 samples were requested, but there are 1797 samples of handwritten"):
        digits(n_train=1798, key=key)
    with pytest.raises(ValueError, match=r"there are 357 samples of handwritten digits with task=\(3, 8\)"):
        digits(task=(3, 8), n_train=358, key=key)


# --- digits


def test_digits_are_those_of_scikit_learn():
    data = digits(n_train=1000, key=jax.random.key(0))
    assert data.x.shape == (1000, 64)
    assert _test(data)[0].shape == (797, 64)
    assert data.x.dtype == data.y.dtype == jnp.result_type(float)
    bunch: Any = load_digits()
    ours = np.concatenate([np.concatenate(data.train, axis=1), np.concatenate(_test(data), axis=1)])
    theirs = np.concatenate([bunch.data / 16, np.eye(10)[bunch.target]], axis=1)
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])  # nothing lost, none twice
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert "1000 training and 797 test samples" in data.source


def test_digits_depend_on_the_key_alone():
    a, b, c = (digits(n_train=50, n_test=20, key=jax.random.key(s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(_test(a)[0], _test(b)[0])
    assert not np.array_equal(a.x, c.x)
    np.testing.assert_array_equal(a.x, digits(n_train=50, n_test=20, key=jax.random.PRNGKey(0)).x)


def test_digits_tasks():
    parity = digits(task="parity", n_train=200, pca=10, key=jax.random.key(0))
    assert parity.x.shape == (200, 10)
    assert parity.y.shape == (200, 1)
    assert set(np.unique(parity.y)) == {-1.0, 1.0}
    classes = digits(n_train=200, pca=10, key=jax.random.key(0))
    np.testing.assert_array_equal(parity.x, classes.x)
    np.testing.assert_array_equal(parity.y[:, 0], 2 * (classes.y.argmax(1) % 2) - 1)
    pair = digits(task=(4, 9), n_train=100, key=jax.random.key(0))
    assert len(pair.y) + len(_test(pair)[1]) == 181 + 180
    assert (pair.y == -1).sum() + (_test(pair)[1] == -1).sum() == 181


def test_digits_without_test_set():
    assert digits(n_train=10, n_test=0, key=jax.random.key(0)).test is None
    assert digits(n_train=1797, key=jax.random.key(0)).test is None


def test_digits_pca_is_the_transform():
    key = jax.random.key(0)
    short = digits(n_train=200, pca=7, key=key)
    long = digits(n_train=200, key=key).transform(pca(7))
    np.testing.assert_array_equal(short.x, long.x)
    np.testing.assert_array_equal(_test(short)[0], _test(long)[0])
    np.testing.assert_allclose(short.x.T @ short.x / 200, np.eye(7), atol=1e-4)


def test_digits_under_jit_and_vmap_over_the_key():
    def make(key):
        return digits(task="parity", n_train=100, n_test=30, pca=5, key=key)

    keys = jax.random.split(jax.random.key(3), 2)
    many: Any = jax.jit(jax.vmap(make))(keys)
    for i in range(2):
        one = make(keys[i])
        np.testing.assert_allclose(many.x[i], one.x, atol=2e-4)
        np.testing.assert_allclose(many.x_test[i], _test(one)[0], atol=2e-4)
        np.testing.assert_array_equal(many.y[i], one.y)


def test_digits_bad_arguments():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="n_train must be an integer >= 1, got 0"):
        digits(n_train=0, key=key)
    with pytest.raises(ValueError, match="n_test must be an integer >= 0, got -1"):
        digits(n_train=10, n_test=-1, key=key)
    with pytest.raises(ValueError, match="k must be an integer >= 1, got 0"):
        digits(n_train=10, pca=0, key=key)
    with pytest.raises(ValueError, match="have rank 9; ask for 9 or fewer"):
        digits(n_train=10, pca=20, key=key)
    with pytest.raises(TypeError):
        digits(n_train=10, key=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        digits(n_train="10", key=key)  # pyright: ignore[reportArgumentType]
