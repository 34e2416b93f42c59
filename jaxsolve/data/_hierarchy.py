"""The Random Hierarchy Model: classes written as strings of symbols, through several levels of random rules."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from .._checks import require_key, require_size
from .._numerics import require_room
from ._dataset import Dataset


MOST = 2**26  # strings that a grammar may have: the draw without replacement permutes the numbers of all of them


def random_hierarchy(
    n_train: int,
    *,
    n_test: int = 0,
    classes: int = 8,
    levels: int = 3,
    synonyms: int = 4,
    tuple_size: int = 2,
    symbols: int = 8,
    key: PRNGKeyArray,
) -> Dataset:
    """Strings of symbols whose class is hidden behind several levels of synonyms.

    Each class can be written as any of `synonyms` tuples of symbols of the level below, each of these symbols again as
    one of `synonyms` tuples, and so on down to the inputs. All tuples of a level differ, so a string has one class.
    Rules are drawn uniformly, and strings uniformly without replacement.

    Args:
        n_train: number of training samples, at least 1.
        key: random key, new style or legacy, for the rules and the samples.

    Other Arguments:
        n_test: number of test samples, none of them in the training set; 0 for no test set.
        classes: n_c.
        levels: L, the number of levels of rules.
        synonyms: m, the number of tuples for each symbol.
        tuple_size: s, the number of symbols in a tuple.
        symbols: v, the size of each level's alphabet.

    Returns:
        A Dataset of concatenated one-hot symbols, x of shape `(n, s**L * v)`, and one-hot classes, y of shape
        `(n, n_c)`.

    Example:
        >>> data = js.data.random_hierarchy(20, n_test=5, key=jax.random.key(0))
        >>> data.x.shape, data.y.shape, bool(jnp.all(data.x.reshape(20, 8, 8).sum(-1) == 1))
        ((20, 64), (20, 8), True)

    Reference:
        @article{cagnetta2024how, author={Francesco Cagnetta and Leonardo Petrini and Umberto M. Tomasini and
          Alessandro Favero and Matthieu Wyart}, title={How deep neural networks learn compositional data: the random
          hierarchy model}, journal={Phys. Rev. X}, year={2024}}

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: an argument is outside its range, there are fewer tuples than the rules of a level need, or there
            are fewer strings than samples.
    """
    require_size(n_train, "n_train")
    require_size(n_test, "n_test", least=0)
    for name, value in {"classes": classes, "synonyms": synonyms, "symbols": symbols, "levels": levels}.items():
        require_size(value, name)
    require_size(tuple_size, "tuple_size", least=2)
    require_key(key)
    tuples, length = _power(symbols, tuple_size), _power(tuple_size, levels)
    if max(classes, symbols if levels > 1 else 0) * synonyms > tuples or tuples > MOST:
        raise ValueError(
            f"{symbols} symbols make {_said(tuples)} tuples of {tuple_size}; there must be {synonyms} different ones "
            f"for each of the {classes} classes and {symbols} symbols, and at most {MOST} in all"
        )
    if length > MOST:
        raise ValueError(f"{levels} levels of {tuple_size} symbols make strings longer than {MOST}; give fewer levels")
    # A string uses rules 1 + s + ... + s^(L - 1) = (s^L - 1)/(s - 1) times, each time by one of m synonyms.
    strings = classes * _power(synonyms, (length - 1) // (tuple_size - 1))
    wanted = n_train + n_test
    if not wanted <= strings <= MOST:
        raise ValueError(
            f"these rules write {_said(strings)} strings; there must be at least n_train + n_test = {wanted} of them, "
            f"and at most {MOST}"
        )
    require_room(wanted * length * symbols * jnp.result_type(float).itemsize, "this dataset", key)
    of_rules, of_strings = jax.random.split(key)
    rules = [
        _rules(one, symbols if level else classes, synonyms, tuple_size, symbols)
        for level, one in enumerate(jax.random.split(of_rules, levels))
    ]
    # Each number is one string: its class in base n_c first, then the choices of synonyms as digits in base m.
    number = jax.random.permutation(of_strings, strings)[:wanted]
    labels, texts = number % classes, _write(number // classes, number % classes, rules, synonyms)
    dtype = jnp.result_type(float)
    x = jax.nn.one_hot(texts, symbols, dtype=dtype).reshape(wanted, -1)
    y = jax.nn.one_hot(labels, classes, dtype=dtype)
    test = (x[n_train:], y[n_train:]) if n_test else ()
    source = f"random hierarchy: {levels} levels of {synonyms} synonyms, {n_train} training and {n_test} test strings"
    return Dataset(x[:n_train], y[:n_train], *test, source=source)


def _rules(key: PRNGKeyArray, parents: int, synonyms: int, size: int, symbols: int) -> Int[Array, "parents m s"]:
    """The tuples that each symbol may be written as, all different."""
    chosen = jax.random.permutation(key, symbols**size)[: parents * synonyms]
    # A number below v^s stands for the tuple of its digits in base v, so different numbers are different tuples.
    powers = symbols ** np.arange(size)[None, :]
    return (chosen[:, None] // powers % symbols).reshape(parents, synonyms, size)


def _write(number: Int[Array, " n"], label: Int[Array, " n"], rules: list[Array], synonyms: int) -> Int[Array, "n d"]:
    """The string of each label, with the choices of synonyms given by the digits of `number` in base `synonyms`."""
    text, used = label[:, None], 0
    for rule in rules:
        # Each level uses the next digits, one for each symbol of the text so far.
        powers = synonyms ** np.arange(used, used + text.shape[1])[None, :]
        used += text.shape[1]
        text = rule[text, number[:, None] // powers % synonyms].reshape(
            len(number), math.prod(text.shape[1:]) * rule.shape[2]
        )
    return text


def _power(base: int, exponent: int) -> int:
    """A power, capped at 2**64: much larger ones would take too long to compute."""
    return min(base ** min(exponent, 64), 2**64)


def _said(number: int) -> str:
    return str(number) if number < 2**64 else "2**64 or more"
