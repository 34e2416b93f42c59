"""Modules in compiled functions: carried by loops, and with methods that `jax.jit` accepts."""

import functools
from collections.abc import Callable
from typing import Any, cast, TypeVar

import equinox as eqx
import jax


class HeldModule(eqx.Module):
    """A module, such as a problem, as a pytree whose leaves are only its arrays."""

    arrays: Any
    rest: Any = eqx.field(static=True)  # functions and plain numbers

    def __init__(self, module: Any):
        self.arrays, self.rest = eqx.partition(module, eqx.is_array)

    @property
    def module(self) -> Any:
        """The module."""
        return eqx.combine(self.arrays, self.rest)


Method = TypeVar("Method", bound=Callable)


class _Hashable:
    """A method that `jax.jit` accepts: bound, it is a pytree as in Equinox, but hashed by identity."""

    def __init__(self, function: Callable):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, instance: Any, *args: Any, **options: Any) -> Any:
        return self.function(instance, *args, **options)

    def __get__(self, instance: Any, owner: Any = None) -> Callable:
        # Equinox hashes a bound method by its instance, whose arrays have no hash, and `jax.jit` needs one.
        return self.function if instance is None else jax.tree_util.Partial(self.function, instance)


def hashable(method: Method) -> Method:
    """Makes a method acceptable to `jax.jit`."""
    return cast(Method, _Hashable(method))
