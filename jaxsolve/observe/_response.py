r"""The linear response of an optimizer near a minimum: one rate per parameter.

With the second moments of Adam and its variants frozen at the values that the next step uses, the step is linear in the
gradient g and the momentum m: $m' = \beta m + a g$, $\Delta\theta_i = -A_i g_i - B_i m_i$. Along an eigenvector of
curvature h the iteration of $(\theta, m)$ has the eigenvalue -1 at $h\,(A - a B/(1 + \beta)) = 2$. So $r_i = A_i - a
B_i/(1 + \beta)$ takes the place of eta: steps are stable while $\lambda_{max}(\sqrt r H \sqrt r) < 2$. r is eta for
SGD, eta/(1 + beta) with heavy-ball momentum, eta (1 + 2 beta)/(1 + beta) with Nesterov momentum, and $\eta (1 -
\beta_1)/((1 + \beta_1)(\sqrt{\hat\nu} + \epsilon))$ for Adam (Cohen et al. 2021 and 2022).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._checks import attempt
from .._numerics import norm
from ..dynamics._internal import Optimizer
from ._optimizers import Slope


# Optax states that hold momentum or second moments of the gradient, by name: not every version has every class.
_MEMORY = {"TraceState": "trace"} | dict.fromkeys(
    ("ScaleByAdamState", "ScaleByAmsgradState", "ScaleByBeliefState"), "mu"
)
_SQUARES = (
    "ScaleByAdamState",
    "ScaleByAmsgradState",
    "ScaleByBeliefState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
)


class Response(NamedTuple):
    """The rates of an optimizer.

    Attributes:
        rates: shaped like the parameters, including the network's eta; None if they are unknown.
        adaptive: whether the rates depend on second moments.
        why: in words, why the rates are unknown; empty if they are known.
    """

    rates: PyTree
    adaptive: bool
    why: str


def response(eta: PyTree, optimizer: Optimizer, params: PyTree, state: Any, slope: Slope) -> Response:
    """The effective rates of an optimizer in a given state, after one or more steps.

    Arguments:
        eta: the network's rates.
        optimizer: the optimizer of a `Descent`.
        params, state, slope: the current parameters, optimizer state, and loss with its gradient.
    """
    why = not_linear(state)
    if why:
        return Response(None, False, why)
    rates, error = attempt(linear_rates, eta, optimizer, params, state, slope)
    if error is not None:  # an optimizer may do anything with a gradient of 0
        return Response(None, False, f"its step at a small gradient cannot be followed ({type(error).__name__})")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(rates)]
    if all(np.all(leaf <= 0) for leaf in leaves) and any(np.any(leaf) for leaf in leaves):
        return Response(None, False, "its steps go up the gradient, not down")
    if not all(np.all(np.isfinite(leaf) & (leaf >= 0)) for leaf in leaves) or not any(np.any(leaf) for leaf in leaves):
        return Response(
            None,
            False,
            "its steps are not in proportion to a small gradient, as those of signs, or the first one of Adam",
        )
    return Response(rates, bool(_squares(state)), "")


def not_linear(state: Any) -> str:
    """Why steps of an optimizer with this state are not linear in the gradient and one momentum; empty if they are."""
    kinds = [type(node).__name__ for node in _nodes(state)]  # a bare array goes by the name of its class
    known = _MEMORY.keys() | set(_SQUARES)
    strange = [kind for kind in kinds if kind not in known]
    named = [kind for kind, node in zip(kinds, _nodes(state), strict=True) if not eqx.is_array(node)]
    named += ["arrays"] if len(named) < len(kinds) else []
    # The derivation in the module docstring has one momentum.
    if strange or sum(kind in _MEMORY for kind in kinds) > 1:
        return f"its state ({', '.join(named)}) is not one whose steps are linear in the gradient"
    return ""


def _is_node(node: Any) -> bool:
    """True if a part of a state is of a type known to hold momentum or second moments, not a plain container."""
    return hasattr(node, "_fields") and type(node).__name__ in _MEMORY.keys() | set(_SQUARES)


def _nodes(state: Any) -> list[Any]:
    """The parts of a state that remember gradients, and all other real arrays."""
    parts = jax.tree.leaves(state, is_leaf=_is_node)
    # Counts and rates, which are integers or scalars, do not remember gradients.
    real = lambda part: eqx.is_inexact_array(part) and part.ndim > 0
    return [part for part in parts if _is_node(part) or real(part)]


def _squares(state: Any) -> list[Any]:
    """The parts with second moments."""
    return [node for node in _nodes(state) if type(node).__name__ in _SQUARES]


def _with_memory(state: Any, memory: PyTree) -> Any:
    put = lambda part: part._replace(**{_MEMORY[type(part).__name__]: memory})
    has = lambda part: _is_node(part) and type(part).__name__ in _MEMORY
    return jax.tree.map(lambda part: put(part) if has(part) else part, state, is_leaf=_is_node)


def _memory(state: Any) -> PyTree:
    has = lambda part: _is_node(part) and type(part).__name__ in _MEMORY
    found = [part for part in jax.tree.leaves(state, is_leaf=_is_node) if has(part)]
    return getattr(found[0], _MEMORY[type(found[0]).__name__]) if found else None


@eqx.filter_jit
def linear_rates(eta: PyTree, optimizer: Optimizer, params: PyTree, state: Any, slope: Slope) -> PyTree:
    """The rates of `response`, unchecked."""
    filled = lambda tree, value: jax.tree.map(lambda leaf: jnp.full_like(leaf, value), tree)
    (zero, one), (empty, full) = ((filled(tree, 0), filled(tree, 1)) for tree in (params, _memory(state)))
    advance = lambda gradient, state: optimizer.update(gradient, state, params, slope.value)[1]
    still = _squares_of_next(state, advance, slope.gradient, zero, empty)

    def step(gradient, memory):
        updates, new = optimizer.update(gradient, _with_memory(still, memory), params, slope.value)
        return jax.tree.map(lambda u, p: -u.astype(p.dtype), updates, params), _memory(new)

    # In the notation of the module docstring: A and a, then B and beta. Steps act on each entry separately, so one jvp
    # with a tangent of ones gives all entries.
    by_gradient, taken_up = jax.jvp(step, (zero, empty), (one, empty))[1]
    by_memory, kept = jax.jvp(step, (zero, empty), (zero, full))[1]
    rates = by_gradient
    if kept is not None:
        # beta and a are the same for all parameters.
        first = lambda tree: jax.tree.leaves(tree)[0].ravel()[0]
        beta, share = first(kept), first(taken_up)
        rates = jax.tree.map(lambda a, b: a - share * b / (1 + beta), by_gradient, by_memory)
        rates = jax.tree.map(lambda rate: rate * _debiased(state, beta), rates)
    # A parameter that has not had a gradient yet would get the rate 1/epsilon.
    masked = lambda node: isinstance(node, optax.MaskedNode)
    for node in _squares(state):
        # Leaf by leaf, because the optimizer's state may hold the parameters in a different tree.
        leaves, structure = jax.tree.flatten(rates)
        moments = jax.tree.leaves(node.nu, is_leaf=masked)
        known = lambda rate, nu: rate if masked(nu) else jnp.where(nu > 0, rate, 0)
        rates = jax.tree.unflatten(structure, [known(rate, nu) for rate, nu in zip(leaves, moments, strict=True)])
    return jax.tree.map(jnp.multiply, eta, rates)


def _squares_of_next(
    state: Any, advance: Callable[[PyTree, Any], Any], gradient: PyTree, zero: PyTree, empty: PyTree
) -> Any:
    """The state whose step at gradient 0 uses the second moments of the next step, with the current gradient included.

    At gradient 0 a step multiplies the moments by their decay, so they are divided by it in advance.
    """
    has = lambda part: _is_node(part) and type(part).__name__ in _SQUARES
    ones = lambda part: part._replace(nu=jax.tree.map(jnp.ones_like, part.nu)) if has(part) else part
    with jax.numpy_dtype_promotion("standard"):
        after = _squares(advance(gradient, state))
        # At gradient 0, second moments of 1 become their decay. AdaBelief adds the square of gradient minus momentum,
        # so the momentum is set to 0, too.
        decays = _squares(advance(zero, _with_memory(jax.tree.map(ones, state, is_leaf=_is_node), empty)))
    moments = iter([jax.tree.map(jnp.divide, a.nu, decay.nu) for a, decay in zip(after, decays, strict=True)])
    put = lambda part: part._replace(nu=next(moments)) if has(part) else part
    return jax.tree.map(put, state, is_leaf=_is_node)


def _debiased(state: Any, beta: Any) -> Any:
    """1 - beta^(t + 1) for a momentum with bias correction, which inflates later steps less and less; else 1."""
    for node in _nodes(state):
        if type(node).__name__ in _SQUARES and type(node).__name__ in _MEMORY:
            return 1 - beta ** (jnp.asarray(node.count, beta.dtype) + 1)
    return jnp.ones((), beta.dtype)


def rate_exponent(optimizer: Optimizer, params: PyTree, state: PyTree, slope: Slope) -> float | None:
    """p in |update| ~ |gradient|^p at a state: 1 for SGD, 0 for Adam and its variants; None without a finite update."""
    one, two = map(float, _sizes_of_updates(optimizer, params, state, slope))
    if not 0 < one < np.inf or not np.isfinite(two):
        return None
    # Doubling the gradient multiplies the update by 2^p.
    return float(np.log2(two / one)) if two > 0 else 0.0


@eqx.filter_jit
def _sizes_of_updates(optimizer: Optimizer, params: PyTree, state: PyTree, slope: Slope) -> list[Array]:
    """The norms of the updates for the gradient and for twice the gradient."""
    scaled = lambda scale: jax.tree.map(lambda g: scale * g, slope.gradient)
    update = lambda scale: optimizer.update(scaled(scale), state, params, slope.value)[0]
    return [norm(ravel_pytree(update(scale))[0]) for scale in (1.0, 2.0)]
