"""Shared by observables of an optimizer's steps: the optimizer's state at a view, and its next step."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from .._core import Problem, View
from .._numerics import all_finite
from ..dynamics._internal import Optimizer


class StaticOptimizer:
    """An optimizer as a static part of a program: optimizers built alike are equal, so they compile once.

    Attributes:
        held: the optimizer as a pytree.
    """

    def __init__(self, transformation: optax.GradientTransformation):
        self.held = Optimizer(transformation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticOptimizer) and bool(eqx.tree_equal(self.held, other.held))

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self.held))


def state_of(view: View, optimizer: Optimizer, *, linear: bool = False) -> PyTree:
    """The optimizer's state at a view, or its initial state if steps do not depend on earlier ones.

    Arguments:
        view: the view.
        optimizer: the optimizer.
        linear: whether to use the initial state even if it holds momentum.

    Raises:
        ValueError: the view has no state, and steps depend on earlier ones.
    """
    if view.optimizer_state is not None:
        return _as_state_of(view.optimizer_state, optimizer, view.params)
    state = optimizer.init(view.params)
    is_trace = lambda node: linear and isinstance(node, optax.TraceState)
    if any(not is_trace(part) for part in jax.tree.leaves(state, is_leaf=is_trace)):
        raise ValueError(
            f"the steps of {optimizer.name} depend on earlier steps, but this view has no state of the optimizer: "
            "take js.Descent(..., keep_state=True), or give the state to a monitor, as in monitor(step, params, "
            "opt_state)"
        )
    return state


def _as_state_of(given: PyTree, optimizer: Optimizer, params: PyTree) -> PyTree:
    """The state in optax's tree structure: other libraries keep its arrays in different trees."""
    wanted, leaves = jax.eval_shape(optimizer.init, params), jax.tree.leaves(given)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    if shapes != [leaf.shape for leaf in jax.tree.leaves(wanted)]:
        raise ValueError(
            f"the state of the optimizer that was given is not one of {optimizer.name} for this network: it has "
            f"{len(shapes)} arrays, of shapes {shapes[:6]}, expected {len(jax.tree.leaves(wanted))}, of shapes "
            f"{[leaf.shape for leaf in jax.tree.leaves(wanted)][:6]}. Give observables the optimizer that trains"
        )
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves)


class Slope(NamedTuple):
    """The training loss and its gradient: all that an optimizer receives from a problem."""

    value: Float[Array, ""]
    gradient: PyTree


@eqx.filter_jit
def slope_at(problem: Problem, params: PyTree) -> Slope:
    """The training loss and its gradient, in a separate program, so that programs of optimizers compile fast."""
    return Slope(*jax.value_and_grad(problem.objective)(params))


@eqx.filter_jit
def next_update(eta: PyTree, optimizer: Optimizer, params: PyTree, state: PyTree, slope: Slope) -> PyTree:
    """The optimizer's next update, as added to the parameters; eta holds the network's rates."""
    updates = optimizer.update(slope.gradient, state, params, slope.value)[0]
    return jax.tree.map(lambda rate, u, p: rate * u.astype(p.dtype), eta, updates, params)


def step_at(view: View, optimizer: Optimizer) -> tuple[Slope, PyTree]:
    """The loss and its gradient at a view, and the optimizer's next step from there."""
    problem, params, state = view.problem, view.params, state_of(view, optimizer)
    slope = slope_at(problem, params)
    return slope, next_update(problem.eta, optimizer, params, state, slope)


def is_step(update: PyTree) -> Bool[Array, ""]:
    """True if an update is finite and not 0."""
    return jnp.any(jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(update)])) & all_finite(update)
