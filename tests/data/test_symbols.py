"""Strings of symbols: the Random Hierarchy Model and addition modulo a number."""

import jax
import jax.random as jr
import numpy as np
import pytest

from jaxsolve.data import modular_addition, random_hierarchy
from tests import cases
from tests.inside import memory


def _texts(x, symbols):
    return np.asarray(x).reshape(len(x), -1, symbols).argmax(-1)


def test_all_strings_of_a_small_grammar():
    """Two levels of two synonyms: every class has 2^3 strings, all different, written by four symbols of two tuples."""
    data = random_hierarchy(16, classes=2, levels=2, synonyms=2, symbols=4, key=jr.key(3))
    texts, labels = _texts(data.x, 4), np.asarray(data.y).argmax(-1)
    assert len(np.unique(texts, axis=0)) == 16
    np.testing.assert_array_equal(np.bincount(labels), [8, 8])
    pairs = texts.reshape(16, 2, 2) @ [1, 4]
    for label in range(2):
        # Two synonyms of the class, each of 2 x 2 strings: all combinations of their halves.
        squares = _squares(pairs[labels == label])
        assert len(squares) <= 2
        assert sum(len(first) * len(second) for first, second in squares) == 8
        assert all(len(first) % 2 == len(second) % 2 == 0 for first, second in squares)


def _squares(rows):
    """The products {a, a'} x {b, b'} that make up pairs."""
    by_first = {}
    for first, second in rows:
        by_first.setdefault(first, set()).add(second)
    found = {}
    for first, seconds in by_first.items():
        found.setdefault(frozenset(seconds), set()).add(first)
    return [(firsts, set(seconds)) for seconds, firsts in found.items()]


def test_strings_are_drawn_once_and_the_key_decides():
    data = random_hierarchy(600, n_test=200, key=jr.key(0))
    assert data.x.shape == (600, 64)
    texts = np.concatenate([_texts(data.x, 8), _texts(data.x_test, 8)])
    assert len(np.unique(texts, axis=0)) == 800
    labels = np.asarray(data.y).argmax(-1)
    assert np.all(np.abs(np.bincount(labels, minlength=8) - 75) < 5 * np.sqrt(75))
    other = random_hierarchy(600, n_test=200, key=jr.key(1))
    assert np.any(np.asarray(other.x) != np.asarray(data.x))
    jitted = jax.jit(lambda key: random_hierarchy(600, key=key).x)(jr.key(0))
    np.testing.assert_array_equal(jitted, random_hierarchy(600, key=jr.key(0)).x)


def test_one_level_is_a_table():
    """Each class is one of its synonyms, so that a class of n tuples is known after all of them were seen."""
    data = random_hierarchy(12, classes=3, levels=1, synonyms=4, tuple_size=2, symbols=4, key=jr.key(2))
    codes, labels = _texts(data.x, 4) @ [1, 4], np.asarray(data.y).argmax(-1)
    assert len(np.unique(codes)) == 12
    np.testing.assert_array_equal(np.bincount(labels), [4, 4, 4])


def test_addition():
    data = modular_addition(7, 20, key=jr.key(0))
    assert data.x_test is not None
    for x, y in ((data.x, data.y), (data.x_test, data.y_test)):
        a, b, equals = np.asarray(x).argmax(-1).T
        np.testing.assert_array_equal(np.asarray(y).argmax(-1), (a + b) % 7)
        np.testing.assert_array_equal(equals, 7)
        cases.assert_fails(lambda y=y, a=a, b=b: np.testing.assert_array_equal(np.asarray(y).argmax(-1), (a * b) % 7))
    every = np.concatenate([np.asarray(data.x), np.asarray(data.x_test)]).argmax(-1)[:, :2]
    assert len(np.unique(every, axis=0)) == 49
    assert modular_addition(3, 9, key=jr.key(0)).x_test is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda key: random_hierarchy(10, synonyms=9, key=key), "8 symbols make 64 tuples of 2; there must be 9"),
        (lambda key: random_hierarchy(10**6, key=key), "these rules write 131072 strings"),
        (lambda key: random_hierarchy(10, levels=5, key=key), "at most 67108864"),
        (lambda key: random_hierarchy(10, symbols=1000, tuple_size=3, key=key), "at most 67108864 in all"),
        (lambda key: random_hierarchy(10, levels=10**9, key=key), "1000000000 levels of 2 symbols make strings longer"),
        (lambda key: random_hierarchy(10, tuple_size=10**9, key=key), "tuples of 1000000000"),
        (lambda key: random_hierarchy(10, tuple_size=1, key=key), "tuple_size must be an integer >= 2, got 1"),
        (lambda key: modular_addition(5, 26, key=key), "n_train must be at most 25"),
        (lambda key: modular_addition(1, 1, key=key), "modulus must be an integer >= 2, got 1"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(jr.key(0))


def test_the_room_of_strings_is_that_of_their_dtype(monkeypatch):
    """4e7 numbers: 160 MB in float32."""
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    options = {"classes": 1000, "levels": 1, "synonyms": 100, "symbols": 1000}
    with jax.enable_x64(False), pytest.raises(MemoryError, match="this dataset needs 160 MB, and 0 bytes are free"):
        random_hierarchy(20_000, **options, key=jr.key(0))
