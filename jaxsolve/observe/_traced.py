"""Observables of the kernel summed over equal outputs."""

import dataclasses

import equinox as eqx
from jaxtyping import Array, Float

from .. import kernels
from .._checks import describe
from .._core import Problem, Quantity, View
from ._observable import Observable


@dataclasses.dataclass(frozen=True)
class _Traced:
    # A class, not a closure: equal for equal arguments, so that a fresh observable does not recompile.
    observable: Observable

    def __call__(self, view: View):
        known = lambda kernel: kernel if kernel is None or kernel.ndim == 2 else kernel.trace(axis1=1, axis2=3)
        now, start = known(view.given_kernel), known(view.given_initial_kernel)
        problem = view.problem
        now = traced_kernel(problem, view.net) if now is None else now
        # Of a dynamics without a kernel of its own at the start it is that of the problem's network.
        start = traced_kernel(problem, problem.net) if start is None else start
        places = lambda view: (view.given_kernel, view.given_initial_kernel)
        return self.observable(eqx.tree_at(places, view, (now, start), is_leaf=lambda leaf: leaf is None))


def traced_kernel(problem: Problem, net: object) -> Float[Array, "n n"]:
    """sum_c K_icjc: the kernel summed over equal outputs, of networks without state."""
    if problem.state is not None:
        raise ValueError("observe.traced is for networks without state: take the whole kernel's observable")
    return kernels.empirical(net, problem.x, eta=problem.eta, trace=True).ntk


def is_traced(observable: Observable) -> bool:
    """True if an observable is one of `traced`."""
    return isinstance(observable.fn, _Traced)


def traced(observable: Observable) -> Observable:
    """The same observable of the kernel summed over equal outputs, K_ij = sum_c K_icjc, as `js.diagnose` has it.

    With c outputs that kernel is c^2 times smaller and takes about c times less to compute.

    Arguments:
        observable: one of a kernel on the training set that reads it by samples, such as `kernel_change()`,
            `kernel_distance()`, `kernel_centered_alignment()` and `kernel_effective_rank()`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> one, other = js.observe.kernel_norm(), js.observe.traced(js.observe.kernel_norm())
        >>> print(bool(jnp.allclose(one(view), other(view))))  # one output
        True

    Raises:
        TypeError: observable is none.
        ValueError: it is none of the kernel; when used, if the network has a state.
    """
    if not isinstance(observable, Observable):
        raise TypeError(f"traced takes an observable such as js.observe.kernel_change(), got {describe(observable)}")
    if observable.needs is not Quantity.KERNEL or len(observable.dims) > 1:
        raise ValueError(f"traced takes an observable of the kernel, such as kernel_change(); got {observable.name!r}")
    return Observable(
        observable.name, _Traced(observable), Quantity.KERNEL, observable.dims, observable.unit, observable.require
    )
