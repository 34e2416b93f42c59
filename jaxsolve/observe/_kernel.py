"""Observables of the eta-weighted neural tangent kernel on the training set, which drives f."""

from .. import kernels
from .._core import Quantity, View
from .._numerics import norm
from ._observable import Observable


def _kernel(view: View):
    return view.kernel


def _norm(view: View):
    return norm(view.kernel)


def _distance(view: View):
    return kernels.distance(view.kernel, view.initial_kernel)


def _change(view: View):
    return kernels.relative_change(view.kernel, view.initial_kernel)


def _target_alignment(view: View):
    return kernels.target_alignment(view.kernel, view.problem.target_rows)


def _centered_distance(view: View):
    return kernels.centered_distance(view.kernel, view.initial_kernel)


def _centered_alignment(view: View):
    return kernels.centered_target_alignment(view.kernel, view.problem.target_rows)


def kernel() -> Observable:
    """The kernel, shape (n, c, n, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.array([0.0, 1.0]), observe=js.observe.kernel())
        >>> run["kernel"].shape
        (2, 2, 1, 2, 1)
    """
    return Observable(
        "kernel", _kernel, Quantity.KERNEL, ("sample", "output", "sample_2", "output_2"), "output^2 / (loss time)"
    )


def kernel_norm() -> Observable:
    """The Frobenius norm |K| over samples and outputs.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(js.observe.kernel_norm()(view) <= js.observe.kernel_trace()(view)))
        True
    """
    return Observable("kernel_norm", _norm, Quantity.KERNEL, unit="output^2 / (loss time)")


def kernel_distance() -> Observable:
    """1 - <K, K_0>/(|K||K_0|): how far the kernel has turned from its start (Kunin et al.). Float32 resolves 1e-12.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> bool(abs(js.observe.kernel_distance()(view)) < 1e-6)  # at the start
        True
    """
    return Observable("kernel_distance", _distance, Quantity.KERNEL)


def kernel_change() -> Observable:
    """|K - K_0|/|K_0|: how far the kernel has moved. Kernel regime: below 0.1 at the end. Float32 resolves 1e-6.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> bool(abs(js.observe.kernel_change()(view)) < 1e-6)  # at the start
        True
    """
    return Observable("kernel_change", _change, Quantity.KERNEL)


def kernel_alignment() -> Observable:
    """y^T K y/(|K||y|^2): how much of the kernel lies on the target (Atanasov et al.).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> found = js.observe.kernel_alignment()(view)
        >>> print(bool(jnp.allclose(found, js.kernels.target_alignment(view.kernel, problem.y))))
        True
    """
    return Observable("kernel_alignment", _target_alignment, Quantity.KERNEL)


def kernel_centered_distance() -> Observable:
    """1 - CKA of the kernel and the initial kernel: how far the kernel of mean-free features has turned.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> bool(abs(js.observe.kernel_centered_distance()(view)) < 1e-6)  # at the start
        True
    """
    return Observable("kernel_centered_distance", _centered_distance, Quantity.KERNEL)


def kernel_centered_alignment() -> Observable:
    """The share of the centered kernel that lies on the centered target (`js.kernels.centered_target_alignment`).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(f"{js.observe.kernel_centered_alignment()(view):.3f}")  # two samples have one direction only
        1.000
    """
    return Observable("kernel_centered_alignment", _centered_alignment, Quantity.KERNEL)
