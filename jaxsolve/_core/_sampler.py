"""The function that draws samples, as a pytree."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Key, PyTree

from ._closures import closed, opened


class Sampler(eqx.Module):
    """A function of a key and a size that returns that many inputs and targets; arrays that it holds are leaves.

    Arguments:
        sample: the function, a `functools.partial` of one, or a callable module.
    """

    parts: PyTree

    def __init__(self, sample: Callable[..., Any]):
        is_partial = isinstance(sample, functools.partial)
        self.parts = opened((sample.func, sample.args, sample.keywords) if is_partial else (sample, (), {}))

    def __call__(self, key: Key[Array, ""], size: int) -> Any:
        """The inputs and targets of `size` samples."""
        sample, args, keywords = closed(self.parts)
        return sample(*args, key, size, **keywords)
