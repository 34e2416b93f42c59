"""The sharpness of the loss, and the distance of descent on it from its edge of stability."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, Float, PyTree

from .. import kernels
from .._checks import concrete, describe, is_real, real_numbers, require_size
from .._core import Problem, View
from ._observable import Observable


class _BatchHessian(kernels.AbstractSymmetricOperator):
    """sqrt(eta) H sqrt(eta) of a network with state, whose samples depend on each other and cannot be batched."""

    problem: Problem
    params: PyTree

    @property
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.params)

    def mv(self, v: PyTree) -> PyTree:
        """The product with a pytree shaped like the parameters."""
        weigh = lambda tree: jax.tree.map(lambda rate, leaf: jnp.sqrt(rate) * leaf, self.problem.eta, tree)
        return weigh(jax.jvp(jax.grad(self.problem.objective), (self.params,), (weigh(v),))[1])


def _hessian(view: View) -> kernels.AbstractSymmetricOperator:
    problem, net = view.problem, view.net
    if problem.state is not None:
        return _BatchHessian(problem, view.params)
    f, loss = view.outputs, problem.loss
    return kernels.HessianOperator(
        net, problem.x, loss.gradient(f, problem.y), loss.hessian(f, problem.y), eta=problem.eta
    )


@dataclasses.dataclass(frozen=True)
class _Eigenvalues:
    # A class, not a closure: equal for equal arguments, so that a fresh observable does not recompile.
    count: int | None
    limit: float = 1.0

    def __call__(self, view: View):
        # A fixed key, so that results repeat: almost every start leads to the same eigenvalues.
        values = kernels.top_eigenpairs(_hessian(view), self.count or 1, key=jr.key(0)).values / self.limit
        return values[0] if self.count is None else values

    @property
    def dims(self) -> tuple[str, ...]:
        return () if self.count is None else ("eigenvalue",)


def sharpness(*, count: int | None = None) -> Observable:
    """The largest eigenvalue of sqrt(eta) H sqrt(eta), H the Hessian of the training loss, in 1/time.

    It is the largest rate of the gradient flow linearized where it stands, theta_l' = -eta_l dL/dtheta_l, and steps of
    gradient descent are stable along all eigenvectors while rate * sharpness < 2 (Cohen et al. 2021,
    arXiv:2103.00065). With eta = 1 it is the sharpness of that paper. NaN where the parameters are.

    No Hessian is formed: LOBPCG (`js.kernels.top_eigenpairs`) multiplies it with vectors until the residual is about
    eps^(3/4) of the eigenvalue, whose own error is its square over the gap to the next one; after 200 iterations it
    gives what it has, which is never too large.

    Arguments:
        count: how many of the largest eigenvalues, descending: shape (count,). None for the first alone, a number.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(js.observe.sharpness()(view) > 0))
        True

    Raises:
        ValueError: count is below 1; when used, if the network has fewer weights.
        TypeError: count is not an integer.
    """
    read = _Eigenvalues(None if count is None else require_size(count, "count"))
    return Observable("sharpness", read, dims=read.dims, unit="1 / time")


def stability(rate: Float[ArrayLike, ""], *, momentum: float = 0.0, count: int | None = None) -> Observable:
    """rate * sharpness/(2 (1 + momentum)): below 1 the steps of gradient descent are stable, above 1 they are not.

    A run at the edge of stability hovers at or just above 1 (Cohen et al. 2021, arXiv:2103.00065, section 2). It is
    for `js.Descent(optax.sgd(rate, momentum=...))` on the full batch: Nesterov's momentum has the limit
    2 (1 + beta)/((1 + 2 beta) rate), Adam that of a Hessian with its preconditioner. A rate that varies inside a sweep
    cannot be stored in an observable: record `sharpness` there and multiply.

    Arguments:
        rate: the learning rate, > 0.
        momentum: heavy-ball momentum beta in [0, 1).
        count: how many eigenvalues, as for `sharpness`: those above 1 are unstable directions.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> sharpness, share = js.observe.sharpness()(view), js.observe.stability(0.1)(view)
        >>> print(bool(jnp.allclose(share, 0.1 * sharpness / 2)))
        True

    Raises:
        ValueError: rate is not one finite number > 0, momentum is not in [0, 1), or count as for `sharpness`.
        TypeError: rate is traced, or count not an integer.
    """
    known = concrete(rate)
    if known is None:
        raise TypeError(
            "rate of observe.stability must be a known number; observe.sharpness() times rate/2 is the same"
        )
    if not is_real(known):
        raise TypeError(f"rate must be one finite number > 0, got {describe(rate)}")
    if not (known.ndim == 0 and np.isfinite(known) and known > 0):
        raise ValueError(f"rate must be one finite number > 0, got {describe(rate)}")
    known_momentum = concrete(momentum)
    if known_momentum is None or known_momentum.ndim or not is_real(known_momentum):
        raise TypeError(f"momentum must be one number in [0, 1), got {describe(momentum)}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
    # The largest stable curvature of heavy-ball descent: 2 (1 + beta)/rate.
    limit = 2 * (1 + float(momentum)) / float(known)
    read = _Eigenvalues(None if count is None else require_size(count, "count"), limit)
    return Observable("stability", read, dims=read.dims)


def edge_time(
    ts: Float[ArrayLike, " times"], stability: Float[ArrayLike, "*lanes times"]
) -> Float[np.ndarray, "*lanes"]:
    """The time at which runs reach the edge of stability: the first one where `stability` is 1; inf if it never is.

    Interpolated linearly between two times. For a run that starts beyond the edge it is the first of the times.

    Arguments:
        ts: times, shape (times,), ascending.
        stability: what the observable `stability` has measured at them, along the last axis. NaN, where a run has
            diverged, reaches nothing.

    Example:
        >>> ts, stability = jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.5, 0.75, 1.25], [0.1, 0.2, 0.3]])
        >>> print(js.observe.edge_time(ts, stability))
        [1.5 inf]

    Raises:
        ValueError: the shapes do not match, there is no time, or times are not sorted.
        TypeError: an argument is no array of real numbers.
    """
    times, values = real_numbers(ts, "ts"), real_numbers(stability, "stability")
    if times.ndim != 1 or times.size == 0 or values.shape[-1:] != times.shape or not np.all(np.diff(times) >= 0):
        raise ValueError(
            "need times and stability, (times,) in rising order and (..., times): got shapes "
            f"{times.shape} and {values.shape}"
        )
    reached = values >= 1
    after = np.argmax(reached, axis=-1)
    before = np.maximum(after - 1, 0)
    take = lambda index: np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
    low, high = take(before), take(after)
    rises = high > low
    # A run that starts beyond the edge has both at the first time, and none is in between.
    share = np.where(rises, (1 - low) / np.where(rises, high - low, 1), 1.0)
    time = times[before] + share * (times[after] - times[before])
    return np.where(np.any(reached, axis=-1), time, np.inf)
