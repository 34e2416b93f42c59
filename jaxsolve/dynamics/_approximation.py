"""Stand-ins for the training of a network under assumptions, such as infinite width."""

import abc

from .._core import AbstractChoice, Assumption, Problem, Validity
from .._results import RESULTS


class AbstractApproximation(AbstractChoice):
    """A choice that describes only some problems."""

    @abc.abstractmethod
    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """The assumptions made about a problem, whatever its loss."""

    def check(self, problem: Problem) -> Validity:
        """Returns the assumptions as a `Validity`, with how far each is violated, whatever the loss."""
        return Validity(self.assumptions(problem))

    def judged(self, problem: Problem, result: RESULTS) -> RESULTS:
        """The result of a run, or "not applicable" where an assumption fails, which may depend on traced values."""
        result = RESULTS.where(self.check(problem).applies, result, RESULTS.not_applicable)
        return RESULTS.where(problem.valid, result, RESULTS.invalid)
