"""Methods of modules that `jax.jit` takes: it asks for a hash, which arrays do not have."""

import functools
from collections.abc import Callable
from typing import Any, cast, TypeVar

import jax


Method = TypeVar("Method", bound=Callable)


class _Hashable:
    """A method that `jax.jit` takes: bound, it is a pytree like those of Equinox, but hashed by identity."""

    def __init__(self, function: Callable):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, instance: Any, *args: Any, **options: Any) -> Any:
        return self.function(instance, *args, **options)

    def __get__(self, instance: Any, owner: Any = None) -> Callable:
        return self.function if instance is None else jax.tree_util.Partial(self.function, instance)


def hashable(method: Method) -> Method:
    """Makes a method one that `jax.jit` takes."""
    return cast(Method, _Hashable(method))
