"""Problems inside of loops, which carry nothing but arrays."""

import equinox as eqx

from .._problem import Problem


class Held(eqx.Module):
    """A problem whose leaves are its arrays only."""

    arrays: Problem
    rest: Problem = eqx.field(static=True)  # functions and plain numbers

    def __init__(self, problem: Problem):
        self.arrays, self.rest = eqx.partition(problem, eqx.is_array)

    @property
    def problem(self) -> Problem:
        """The problem."""
        return eqx.combine(self.arrays, self.rest)
