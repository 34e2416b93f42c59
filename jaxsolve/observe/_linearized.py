"""Observables of the network linearized at its start, and of where its residual lies in the kernel's spectrum."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from .. import kernels
from .._core import Problem, Quantity, View
from .._numerics import nonzero, norm, safe_sqrt, samples_in
from ._lanczos import largest_eigenvalue, MOST
from ._observable import Observable


# Outside a trace each of these functions is a separate program. Networks are slow to compile, so each kind of pass
# through a network is compiled once, however its result is used.


@eqx.filter_jit
def outputs_at(problem: Problem, params: PyTree) -> Float[Array, "n out"]:
    """The outputs on the training set."""
    return problem.outputs(params)


@eqx.filter_jit
def linear_change(problem: Problem, params: PyTree) -> Float[Array, "n out"]:
    """J_0 (theta - theta_0), by one jvp at the start."""
    start = problem.params
    return jax.jvp(problem.outputs, (start,), (jax.tree.map(jnp.subtract, params, start),))[1]


@eqx.filter_jit
def seen_size(problem: Problem, params: PyTree, eta: PyTree, slope: Float[Array, "n out"]) -> Float[Array, ""]:
    """|sqrt(eta) J^T r|, by one vjp: the size of the parameters' gradient for a slope r in the outputs."""
    seen = jax.vjp(problem.outputs, params)[1](slope)[0]
    return norm(ravel_pytree(jax.tree.map(lambda rate, g: safe_sqrt(rate) * g, eta, seen))[0])


@eqx.filter_jit
def kernel_size(problem: Problem, params: PyTree, eta: PyTree, products: int = MOST) -> Float[Array, ""]:
    """The largest eigenvalue of the kernel with rates eta, by at most `products` products."""
    like = jnp.zeros((samples_in(problem.x), problem.out_size), problem.dtype)
    return largest_eigenvalue(_kernel(problem, params, eta).mv, like, products)


def on_kernel(problem: Problem, params: PyTree, eta: PyTree, v: Float[Array, "n out"]) -> Float[Array, ""]:
    """v^T K v, where K is the kernel with rates eta."""
    if problem.state is None:
        return seen_size(problem, params, eta, v) ** 2
    # A vjp would differentiate through the batch statistics, which the kernel holds fixed.
    return _on_operator(problem, params, eta, v)


@eqx.filter_jit
def _on_operator(problem: Problem, params: PyTree, eta: PyTree, v: Float[Array, "n out"]) -> Float[Array, ""]:
    return jnp.vdot(v, _kernel(problem, params, eta).mv(v))


def _kernel(problem: Problem, params: PyTree, eta: PyTree) -> kernels.NTKOperator:
    net, by_sample = problem.of_sample(params, eta)
    return kernels.NTKOperator(net, problem.x, eta=by_sample)


def missed_share(moved: Float[Array, "n out"], linear: Float[Array, "n out"]) -> Float[Array, ""]:
    """|f_t - f_lin|/|f_t - f_0|, from f_t - f_0 and f_lin - f_0."""
    return norm(moved - linear) / nonzero(norm(moved))


def nonlinearity() -> Observable:
    """|f - f_lin|/|f - f_0|, f_lin = f_0 + J_0 (theta - theta_0): the share that linearization misses. 0 at the start.

    In the networks of docs/diagnose.md, a value below 0.08 means that the kernel has moved by less than 0.1.

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
    """r^T K r/(|r|^2 lambda_1), r = dL/df: where the residual lies in the kernel's spectrum.

    1 if it lies on the first eigenvector, which is learned fastest; near 0 if only slow directions are left; 0 if there
    is no residual. It costs at least 8 products with the kernel.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(0 <= js.observe.residual_position()(view) <= 1))
        True
    """
    return Observable("residual_position", _position, Quantity.PARAMS)


def _position(view: View) -> Float[Array, ""]:
    problem, params, eta = view.problem, view.params, view.problem.eta
    slope = problem.loss.gradient(view.outputs, problem.y)
    return on_kernel(problem, params, eta, slope / nonzero(norm(slope))) / nonzero(kernel_size(problem, params, eta))


def _nonlinearity(view: View) -> Float[Array, ""]:
    problem, params = view.problem, view.params
    moved = view.outputs - outputs_at(problem, problem.params)
    return jnp.where(is_start(view), 0, missed_share(moved, linear_change(problem, params)))


def is_start(view: View) -> Bool[Array, ""]:
    """True at the start, where the outputs of two programs may differ by rounding, which must not count as a change."""
    return jnp.all(ravel_pytree(jax.tree.map(jnp.equal, view.params, view.problem.params))[0])
