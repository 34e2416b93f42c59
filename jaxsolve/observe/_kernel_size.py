"""Observables of the size of the tangent kernel, and of its part between test and training points."""

import jax.numpy as jnp

from .._dynamics import Quantity, View
from ._observable import Observable


def _norm(view: View):
    return jnp.linalg.norm(view.kernel)


def _cross_kernel(view: View):
    problem = view.problem
    if problem.x_test is None:
        raise ValueError("this problem has no test set; give Problem(..., test=(x, y))")
    return problem.kernel(view.params, problem.x_test, problem.x)


def kernel_norm() -> Observable:
    """|K| (Frobenius), over samples and outputs.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(js.observe.kernel_norm()(view) <= js.observe.kernel_trace()(view)))
        True
    """
    return Observable("kernel_norm", _norm, Quantity.KERNEL, unit="output^2 / (loss time)")


def cross_kernel() -> Observable:
    """The eta-weighted kernel between test and training points, shape (m, c, n, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.cross_kernel()(view).shape
        (3, 1, 2, 1)
    """
    dims = ("test_sample", "output", "sample", "output_2")
    return Observable("cross_kernel", _cross_kernel, Quantity.PARAMS, dims, "output^2 / (loss time)")
