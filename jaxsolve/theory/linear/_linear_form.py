"""What all solutions of linear networks share: the kind of a problem is checked before its numbers are read."""

import abc

import equinox as eqx

from ..._core import AbstractRandomAccess, Assumption, NotApplicable, Problem, Validity
from ._linear_flow import structure_fits


class AbstractLinearForm(AbstractRandomAccess):
    """A solution for networks of one kind, under assumptions about their numbers."""

    asymptotic: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        """Assumptions about the kind of problem (network, loss, shapes), which hold or fail whatever its numbers."""

    @abc.abstractmethod
    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        """Assumptions about the weights, rates and data of a problem of the right kind, measured."""

    def check(self, problem: Problem) -> Validity:
        assumptions = self.structural_assumptions(problem)
        if structure_fits(assumptions):
            assumptions = [*assumptions, *self.numerical_assumptions(problem)]
        return Validity(tuple(assumptions), asymptotic=self.asymptotic)

    def require_kind(self, problem: Problem) -> None:
        """Raises NotApplicable if the problem is of another kind."""
        validity = Validity(tuple(self.structural_assumptions(problem)))
        if validity.structural:
            raise NotApplicable(f"{self.name} does not solve this problem: it needs {validity.missed()}")
