"""Observables of the spectrum of the eta-weighted kernel on the training set, and of the target on its modes."""

import dataclasses

from jaxtyping import Array, Float

from .. import kernels
from .._checks import require_size
from .._core import Quantity, View
from ._observable import Observable


def _trace(view: View):
    return kernels.trace(view.kernel)


def _effective_rank(view: View):
    return kernels.effective_rank(view.kernel)


def _participation_ratio(view: View):
    return kernels.participation_ratio(view.kernel)


def _entropy(view: View):
    return kernels.entropy(view.kernel)


MANY = 10  # eigenvalues, by default


def _first(values: Float[Array, " size"], top: int | None) -> Float[Array, " top"]:
    if top is not None and top > values.size:
        raise ValueError(f"this kernel has {values.size} eigenvalues, but top is {top}")
    return values[: MANY if top is None else top]


@dataclasses.dataclass(frozen=True)
class _ReadSpectrum:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    top: int | None

    def __call__(self, view: View):
        return _first(kernels.spectrum(view.kernel), self.top)


@dataclasses.dataclass(frozen=True)
class _ReadTargetPower:
    top: int | None

    def __call__(self, view: View):
        return _first(kernels.target_power(view.kernel, view.problem.target_rows).cumulative, self.top)


def kernel_trace() -> Observable:
    """The trace tr K over samples and outputs.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(jnp.allclose(js.observe.kernel_trace()(view), js.observe.kernel_spectrum(2)(view).sum())))
        True
    """
    return Observable("kernel_trace", _trace, Quantity.KERNEL, unit="output^2 / (loss time)")


def kernel_effective_rank() -> Observable:
    """The exponential of `kernel_entropy`: how many directions the kernel has (`js.kernels.effective_rank`).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(1 <= js.observe.kernel_effective_rank()(view) <= 2))
        True
    """
    return Observable("kernel_effective_rank", _effective_rank, Quantity.KERNEL)


def kernel_participation_ratio() -> Observable:
    """(tr K)^2/|K|^2: how many directions carry the kernel, dominated by its large eigenvalues.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(1 <= js.observe.kernel_participation_ratio()(view) <= 2))
        True
    """
    return Observable("kernel_participation_ratio", _participation_ratio, Quantity.KERNEL)


def kernel_entropy() -> Observable:
    """The von Neumann entropy of K/tr K.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(0 <= js.observe.kernel_entropy()(view) <= jnp.log(2.0)))
        True
    """
    return Observable("kernel_entropy", _entropy, Quantity.KERNEL, unit="nat")


def kernel_spectrum(top: int | None = None) -> Observable:
    """The largest eigenvalues of the kernel, descending, shape (top,); None takes 10, or all if there are fewer.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.kernel_spectrum(2)(view).shape
        (2,)

    Raises:
        ValueError: top is below 1, or (when used) above the kernel's size n c.
        TypeError: top is not an integer.
    """
    read = _ReadSpectrum(None if top is None else require_size(top, "top"))
    return Observable("kernel_spectrum", read, Quantity.KERNEL, ("mode",), "output^2 / (loss time)")


def kernel_target_power(top: int | None = None) -> Observable:
    """The share of |y|^2 on the first 1, 2, ..., top eigenvectors of the kernel, shape (top,).

    None takes 10, or all if there are fewer.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(f"{js.observe.kernel_target_power(2)(view)[-1]:.3f}")
        1.000

    Raises:
        ValueError: top is below 1, or (when used) above the kernel's size n c.
        TypeError: top is not an integer.
    """
    read = _ReadTargetPower(None if top is None else require_size(top, "top"))
    return Observable("kernel_target_power", read, Quantity.KERNEL, ("mode",))
