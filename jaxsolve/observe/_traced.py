"""Observables of the kernel traced over outputs."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .. import nets
from .._checks import describe, require_size
from .._core import Problem, Quantity, View
from ..kernels._internal import Trace
from ._observable import Observable


@dataclasses.dataclass(frozen=True)
class _Traced:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    observable: Observable
    projections: int | None = None
    seed: int = 0  # a seed rather than a key, because arrays are not hashable

    def __call__(self, view: View):
        now, start, problem = view.given_kernel, view.given_initial_kernel, view.problem
        # The trace of a full kernel is exact: against it, a projection's noise would count as movement.
        alike = self.projections is None or (now is not None and start is not None)
        known = lambda kernel: kernel if kernel.ndim == 2 else kernel.trace(axis1=1, axis2=3) if alike else None
        now, start = (None if kernel is None else known(kernel) for kernel in (now, start))
        now = self.kernel(problem, view.net) if now is None else now
        # If the dynamics gives no initial kernel, it is computed from the problem's network.
        start = self.kernel(problem, problem.net) if start is None else start
        places = lambda view: (view.given_kernel, view.given_initial_kernel)
        return self.observable(eqx.tree_at(places, view, (now, start), is_leaf=lambda leaf: leaf is None))

    def kernel(self, problem: Problem, net: object) -> Float[Array, "n n"]:
        of_sample = problem.of_sample(nets.partition(net)[0], problem.eta)
        return Trace(self.projections, jax.random.key(self.seed))(*of_sample, problem.x)


@eqx.filter_jit
def shared_kernel(observables: Sequence[Observable], problem: Problem) -> Array | None:
    """Returns the initial kernel that serves all of these observables; None if no single kernel does."""
    kinds = [item.fn for item in observables if isinstance(item.fn, _Traced)]
    if len(kinds) < len(observables):
        return problem.kernel(problem.params, problem.x)
    if len({(kind.projections, kind.seed) for kind in kinds}) > 1:
        return None
    return kinds[0].kernel(problem, problem.net)


def traced(observable: Observable, *, projections: int | None = None, seed: int = 0) -> Observable:
    """The same observable of the kernel traced over outputs, K_ij = sum_c K_icjc, as in `js.diagnose`.

    With c outputs, the traced kernel has c^2 times fewer entries and is about c times cheaper to compute.

    Arguments:
        observable: an observable of the kernel on the training set that also accepts shape (n, n), such as
            `kernel_change()`, `kernel_distance()`, `kernel_centered_alignment()` and `kernel_effective_rank()`.
        projections: the number of random projections that replace the outputs if there are many, as for a sequence (see
            `js.kernels.Projected`); None takes all outputs.
        seed: the seed of the projections' signs.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> one, other = js.observe.kernel_norm(), js.observe.traced(js.observe.kernel_norm())
        >>> print(bool(jnp.allclose(one(view), other(view))))  # one output
        True

    Raises:
        TypeError: observable is not an observable, or projections or seed is not an integer.
        ValueError: it is not an observable of the kernel; when used, if the network has a state.
    """
    if not isinstance(observable, Observable):
        raise TypeError(f"traced takes an observable such as js.observe.kernel_change(), got {describe(observable)}")
    if observable.needs is not Quantity.KERNEL or len(observable.dims) > 1:
        raise ValueError(f"traced takes an observable of the kernel, such as kernel_change(); got {observable.name!r}")
    count = None if projections is None else require_size(projections, "projections")
    seed = require_size(seed, "seed", least=0) if count else 0
    return Observable(
        observable.name,
        _Traced(observable, count, seed),
        Quantity.KERNEL,
        observable.dims,
        observable.unit,
        observable.require,
    )
