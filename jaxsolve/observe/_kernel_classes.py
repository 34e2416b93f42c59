"""Observables of the eta-weighted kernel by class.

The class of a sample is the largest column of its target, or the sign of a single column (0 counts as negative).
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from .. import kernels
from .._checks import concrete
from .._core import Problem, Quantity, View
from ._observable import Observable


def _classes(problem: Problem) -> tuple[Int[Array, " n"], int]:
    y = problem.y
    if jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError("kernels by class need one class for each sample, not a label at every position")
    if y.shape[1] == 1:
        return (y[:, 0] > 0).astype(jnp.int32), 2
    return jnp.argmax(y, axis=1).astype(jnp.int32), y.shape[1]


def _require_classes(problem: Problem) -> None:
    labels, classes = _classes(problem)
    known = concrete(labels)
    empty = [] if known is None else sorted({*range(classes)} - {*known.tolist()})
    if empty:
        raise ValueError(
            f"kernels by class need a sample of each of {classes} classes, but no target is of class {empty[0]}; leave "
            "its column out, or observe kernel()"
        )


def _class_kernel(view: View):
    return kernels.class_kernel(view.kernel, *_classes(view.problem))


def _within(view: View):
    return kernels.class_means(view.kernel, *_classes(view.problem)).within


def _between(view: View):
    return kernels.class_means(view.kernel, *_classes(view.problem)).between


_UNIT = "output^2 / (loss time)"


def kernel_by_class() -> Observable:
    """The mean kernel between the samples of two classes, averaged over outputs (`js.kernels.class_kernel`).

    Shape (classes, classes). A class without a sample raises ValueError; under a trace, as in a sweep, it gives NaN.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.kernel_by_class()(view).shape
        (2, 2)
    """
    return Observable(
        "kernel_by_class", _class_kernel, Quantity.KERNEL, ("class", "class_2"), _UNIT, require=_require_classes
    )


def kernel_within_class() -> Observable:
    """The mean kernel over pairs of distinct samples of each class (`js.kernels.class_means`), shape (classes,).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.kernel_within_class()(view).shape
        (2,)
    """
    return Observable("kernel_within_class", _within, Quantity.KERNEL, ("class",), _UNIT, require=_require_classes)


def kernel_between_classes() -> Observable:
    """The mean kernel over pairs of samples of two classes, shape (classes, classes); NaN on the diagonal.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.kernel_between_classes()(view).shape
        (2, 2)
    """
    return Observable(
        "kernel_between_classes", _between, Quantity.KERNEL, ("class", "class_2"), _UNIT, require=_require_classes
    )
