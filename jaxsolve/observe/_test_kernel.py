"""Observables of the eta-weighted neural tangent kernel on test inputs."""

from jaxtyping import Array, Float

from .. import kernels
from .._core import Problem, Quantity, View
from ._observable import Observable


def test_inputs(problem: Problem) -> Array:
    """The inputs of the test set; raises ValueError if there is none."""
    if problem.x_test is None:
        raise ValueError("this problem has no test set; give Problem(..., test=(x, y))")
    return problem.x_test


def require_test_set(problem: Problem) -> None:
    """Raises ValueError if a problem has no test set."""
    test_inputs(problem)


def _kernel(view: View) -> Float[Array, "m out m out"]:
    return view.problem.kernel(view.params, test_inputs(view.problem))


def _cross(view: View) -> Float[Array, "m out n out"]:
    problem = view.problem
    return problem.kernel(view.params, test_inputs(problem), problem.x)


def _initial(view: View) -> Float[Array, "m out m out"]:
    problem = view.problem
    # A view stores the initial kernel of the training set only, so the one of the test set is recomputed.
    return problem.kernel(problem.params, test_inputs(problem))


def _distance(view: View):
    return kernels.distance(_kernel(view), _initial(view))


def _change(view: View):
    return kernels.relative_change(_kernel(view), _initial(view))


def test_kernel() -> Observable:
    """The kernel among the test inputs, shape (m, c, m, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> run = js.solve(problem, js.GradientFlow(), jnp.array([0.0, 1.0]), observe=js.observe.test_kernel())
        >>> run["test_kernel"].shape
        (2, 3, 1, 3, 1)
    """
    dims = ("test_sample", "output", "test_sample_2", "output_2")
    return Observable("test_kernel", _kernel, Quantity.PARAMS, dims, "output^2 / (loss time)", require=require_test_set)


def cross_kernel() -> Observable:
    """The eta-weighted kernel between test and training points, shape (m, c, n, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.cross_kernel()(view).shape
        (3, 1, 2, 1)
    """
    dims = ("test_sample", "output", "sample", "output_2")
    return Observable("cross_kernel", _cross, Quantity.PARAMS, dims, "output^2 / (loss time)", require=require_test_set)


def test_kernel_distance() -> Observable:
    """`kernel_distance` on the test inputs: 1 - <K, K_0>/(|K||K_0|).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> bool(abs(js.observe.test_kernel_distance()(view)) < 1e-6)  # at the start
        True
    """
    return Observable("test_kernel_distance", _distance, Quantity.PARAMS, require=require_test_set)


def test_kernel_change() -> Observable:
    """`kernel_change` on the test inputs: |K - K_0|/|K_0| (Geiger et al., section 5).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> bool(abs(js.observe.test_kernel_change()(view)) < 1e-6)  # at the start
        True
    """
    return Observable("test_kernel_change", _change, Quantity.PARAMS, require=require_test_set)
