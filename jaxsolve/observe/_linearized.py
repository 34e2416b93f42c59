"""Observables of the network linearized at its start, and of where its residual lies on the kernel."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import kernels
from .._core import Problem, Quantity, View
from .._numerics import nonzero, norm
from ._lanczos import largest_eigenvalue, MOST
from ._observable import Observable


@eqx.filter_jit
def missed_share(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """|f_t - f_lin|/|f_t - f_0|, by one jvp at the start, along the displacement; 0 where nothing has moved."""
    start = problem.params
    direction = jax.tree.map(jnp.subtract, params, start)
    f_start, linear = jax.jvp(problem.outputs, (start,), (direction,))
    moved = problem.outputs(params) - f_start
    # At the start outputs may differ by the rounding of two programs, which would be all of the change.
    any_change = jnp.any(ravel_pytree(direction)[0] != 0)
    return jnp.where(any_change, norm(moved - linear) / nonzero(norm(moved)), 0)


@eqx.filter_jit
def position(problem: Problem, params: PyTree, eta: PyTree, products: int = MOST) -> Float[Array, ""]:
    """r^T K r/(|r|^2 lambda_1), r = dL/df, by one vjp and the largest eigenvalue of the kernel with rates eta."""
    f, pull = jax.vjp(problem.outputs, params)
    now = problem.loss.gradient(f, problem.y)
    one = now / nonzero(norm(now))
    net, by_sample = problem.of_sample(params, eta)
    operator = kernels.NTKOperator(net, problem.x, eta=by_sample)
    if problem.state is None:
        # r^T K r = sum_l eta_l |J_l^T r|^2
        on_residual = sum(jax.tree.leaves(jax.tree.map(lambda rate, b: rate * jnp.sum(b**2), eta, pull(one)[0])))
    else:  # what pulls back goes through the statistics, and the kernel does not
        on_residual = jnp.vdot(one, operator.mv(one))
    return on_residual / nonzero(largest_eigenvalue(operator.mv, now, products))


def nonlinearity() -> Observable:
    """|f - f_lin|/|f - f_0|, f_lin = f_0 + J_0 (theta - theta_0): what the linearized network misses. 0 at the start.

    Below 0.08 the kernel has moved by less than 0.1 in the networks that docs/diagnose.md tells of.

    Source: Chizat, Oyallon and Bach 2019, "On lazy training in differentiable programming".

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 1.0], observe=js.observe.nonlinearity())
        >>> print(bool(run["nonlinearity"][0] == 0 < run["nonlinearity"][1] < 1))
        True
    """
    return Observable("nonlinearity", _nonlinearity, Quantity.PARAMS)


def residual_position() -> Observable:
    """r^T K r/(|r|^2 lambda_1), r = dL/df: where on the kernel's spectrum that lies which is still to be learnt.

    1 on the first eigenvector, which is learnt fastest, and near 0 where only slow directions are left. 0 without a
    residual. It costs 20 products with the kernel or more.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(0 <= js.observe.residual_position()(view) <= 1))
        True
    """
    return Observable("residual_position", _position, Quantity.PARAMS)


def _position(view: View) -> Float[Array, ""]:
    return position(view.problem, view.params, view.problem.eta)


def _nonlinearity(view: View) -> Float[Array, ""]:
    return missed_share(view.problem, view.params)
