"""Modules inside of loops, which carry nothing but arrays."""

from typing import Any

import equinox as eqx


class Held(eqx.Module):
    """A module, such as a problem, whose leaves are its arrays only."""

    arrays: Any
    rest: Any = eqx.field(static=True)  # functions and plain numbers

    def __init__(self, module: Any):
        self.arrays, self.rest = eqx.partition(module, eqx.is_array)

    @property
    def module(self) -> Any:
        """The module."""
        return eqx.combine(self.arrays, self.rest)
