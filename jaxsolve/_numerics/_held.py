"""Modules inside compiled loops, which can carry only arrays."""

from typing import Any

import equinox as eqx


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
