"""From the cells of a group to their problems."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array

from .._checks import describe
from .._problem import Problem
from ._axes import Group


Cells = dict[str, np.ndarray]
"""Traced arguments by name, one row per lane of a group."""


class Leaves(NamedTuple):
    """The arrays of a problem, in lists: those that depend on the cell, and those that all lanes share, as the data."""

    own: Any
    shared: Any


class Builder:
    """Makes the problems of a group, whose function is traced once.

    Arguments:
        problem_fn: of the sweep.
        group: whose cells are meant; only the shapes of its arguments matter.

    Raises:
        TypeError: problem_fn returns something else than a Problem.
    """

    def __init__(self, problem_fn: Callable[..., Problem], group: Group):
        parts: list[Any] = []  # the problem's structure and what is no array in it, filled while tracing

        def build(cell: dict[str, Array]) -> list[Array]:
            problem = require_problem(problem_fn(**group.static, **cell))
            arrays, static = eqx.partition(problem, eqx.is_array)
            parts[:] = [jax.tree.structure(arrays), static]
            return jax.tree.leaves(arrays)

        example = {name: jax.ShapeDtypeStruct(values.shape[1:], values.dtype) for name, values in group.cells.items()}
        closed = jax.make_jaxpr(build)(example)
        self._run = jaxpr_as_fun(closed)
        self._structure, self._static = parts
        self._depends = _depends_on_input(closed.jaxpr)
        self.shape = self._combine([jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.out_avals])

    def leaves(self, cell: dict[str, Array]) -> Leaves:
        """The arrays of a cell's problem."""
        found = [jnp.asarray(leaf) for leaf in self._run(*jax.tree.leaves(cell))]
        own = [leaf for leaf, depends in zip(found, self._depends, strict=True) if depends]
        return Leaves(own, [leaf for leaf, depends in zip(found, self._depends, strict=True) if not depends])

    def problem(self, leaves: Leaves) -> Problem:
        """The problem of these arrays."""
        own, shared = iter(leaves.own), iter(leaves.shared)
        return self._combine([next(own) if depends else next(shared) for depends in self._depends])

    def _combine(self, leaves: list[Any]) -> Problem:
        return eqx.combine(jax.tree.unflatten(self._structure, leaves), self._static)


def require_problem(problem: Any) -> Problem:
    """Raises TypeError for what is no Problem."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem_fn must return a jaxsolve.Problem, got {describe(problem)}")
    return problem


def _depends_on_input(jaxpr: Any) -> list[bool]:
    """Which outputs depend on an input."""
    dependent = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(variable in dependent for variable in equation.invars if not hasattr(variable, "val")):
            dependent.update(equation.outvars)
    return [not hasattr(variable, "val") and variable in dependent for variable in jaxpr.outvars]
