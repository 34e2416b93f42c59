"""Choosing the closed form that solves a problem."""

from .._dynamics import AbstractRandomAccess, NotApplicable
from .._problem import Problem
from ._two_layer_line import TwoLayerLine


def exact(problem: Problem) -> AbstractRandomAccess:
    """The first closed form whose `check` says that it solves this problem exactly. For concrete problems.

    Raises:
        NotApplicable: none does; names every form, the assumptions it misses and by how much.
    """
    forms = (TwoLayerLine(),)
    missed = []
    for form in forms:
        validity = form.check(problem)
        if not validity.structural and bool(validity.exact):
            return form
        missed.append(f"{form.name} needs {validity.missed()}")
    raise NotApplicable("no closed form solves this problem exactly:\n  " + "\n  ".join(missed))
