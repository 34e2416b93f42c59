"""The sharpness of the loss, and how far gradient descent is from the edge of stability."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, PyTree

from .. import kernels
from .._checks import real_numbers, require_size
from .._core import Problem, View
from ._lanczos import largest_eigenvalue
from ._observable import Observable
from ._optimizers import slope_at, state_of, StaticOptimizer
from ._response import linear_rates, not_linear


class _WeighedHessian(kernels.AbstractSymmetricOperator):
    """sqrt(r) H sqrt(r), where H is the Hessian of the training loss: symmetric, with the eigenvalues of r H.

    Attributes:
        rates: r, a number or an array for each parameter array.
    """

    problem: Problem
    params: PyTree
    rates: PyTree

    @property
    def structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.params)

    @property
    def positive(self) -> bool:
        return False

    def mv(self, v: PyTree) -> PyTree:
        """The product with a pytree shaped like the parameters."""
        weigh = lambda tree: jax.tree.map(lambda rate, leaf: jnp.sqrt(rate) * leaf, self.rates, tree)
        return weigh(jax.jvp(jax.grad(self.problem.objective), (self.params,), (weigh(v),))[1])


@eqx.filter_custom_jvp
def _largest(hessian: _WeighedHessian) -> Float[Array, ""]:
    return largest_eigenvalue(hessian.mv, hessian.params)


@_largest.def_jvp
def _largest_jvp(primals, tangents):
    # The derivative v^T dH v needs the eigenvector, which Lanczos does not keep; a slower method finds it on demand.
    exact = lambda hessian: kernels.top_eigenpairs(hessian, 1, key=jr.key(0)).values[0]
    return eqx.filter_jvp(exact, primals, tangents)


def _eigenvalues(problem: Problem, params: PyTree, rates: PyTree, count: int | None) -> Float[Array, "..."]:
    hessian = _WeighedHessian(problem, params, rates)
    # A fixed key makes results repeatable; almost every start leads to the same eigenvalues.
    return _largest(hessian) if count is None else kernels.top_eigenpairs(hessian, count, key=jr.key(0)).values


@eqx.filter_jit
def sharpness_ratio(problem: Problem, params: PyTree, rates: PyTree, products: int) -> Float[Array, ""]:
    """lambda_max(sqrt(r) H sqrt(r))/2 with a rate r per parameter: above 1 the steps are unstable."""
    return largest_eigenvalue(_WeighedHessian(problem, params, rates).mv, params, products) / 2


@dataclasses.dataclass(frozen=True)
class _Sharpness:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    count: int | None

    def __call__(self, view: View):
        return _eigenvalues(view.problem, view.params, view.problem.eta, self.count)


@dataclasses.dataclass(frozen=True)
class _Stability:
    optimizer: StaticOptimizer
    count: int | None

    def __call__(self, view: View):
        problem, params, optimizer = view.problem, view.params, self.optimizer.held
        state = state_of(view, optimizer, linear=True)
        if why := not_linear(state):
            raise ValueError(
                f"the stability of {optimizer.name} is not known: {why}; observe.critical_rate(optimizer) works for "
                "any optimizer"
            )
        rates = linear_rates(problem.eta, optimizer, params, state, slope_at(problem, params))
        # If steps go up the gradient or are not proportional to it, the stability limit is unknown.
        least, most = (jnp.stack([of(leaf) for leaf in jax.tree.leaves(rates)]) for of in (jnp.min, jnp.max))
        known = jnp.all((least >= 0) & (most < jnp.inf)) & jnp.any(most > 0)
        rates = jax.tree.map(lambda rate: jnp.where(known, rate, 1), rates)
        return jnp.where(known, _eigenvalues(problem, params, rates, self.count) / 2, jnp.nan)


def _dims(count: int | None) -> tuple[str, ...]:
    return () if count is None else ("eigenvalue",)


def sharpness(*, count: int | None = None) -> Observable:
    """The largest eigenvalue of sqrt(eta) H sqrt(eta), where H is the Hessian of the training loss, in 1/time.

    It is the largest rate of the gradient flow theta_l' = -eta_l dL/dtheta_l, linearized at the current parameters.
    Steps of gradient descent are stable along all eigenvectors while rate * sharpness < 2 (Cohen et al. 2021,
    arXiv:2103.00065). With eta = 1 it is the sharpness of that paper. NaN where the parameters are NaN.

    The Hessian is never formed. Lanczos multiplies it with vectors until four more products change the value by less
    than a share eps^(3/4). After 200 products it returns its estimate, which is a lower bound. The derivative, and the
    eigenvalues if `count` is given, come from `js.kernels.top_eigenpairs`.

    Arguments:
        count: how many of the largest eigenvalues, descending, shape (count,); None for the largest alone, a scalar.

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
    count = None if count is None else require_size(count, "count")
    return Observable("sharpness", _Sharpness(count), dims=_dims(count), unit="1 / time")


def stability(optimizer: optax.GradientTransformation, *, count: int | None = None) -> Observable:
    """The sharpness over the largest sharpness at which the optimizer's steps are stable: above 1 they are unstable.

    lambda_max(sqrt(r) H sqrt(r))/2, where r is the optimizer's effective rate near a minimum: eta for gradient descent,
    eta/(1 + beta) with heavy-ball momentum, eta (1 + 2 beta)/(1 + beta) with Nesterov momentum, and for Adam one rate
    per parameter, eta (1 - beta_1)/((1 + beta_1)(sqrt(nu) + eps)). A run at the edge of stability hovers at or just
    above 1 (Cohen et al. 2021, arXiv:2103.00065, and 2022, arXiv:2207.14484). H is the full-batch Hessian, and r
    includes the network's eta. NaN where steps are not proportional to a small gradient, as in Adam's first step.

    An observable cannot hold a rate that varies inside a sweep: record `sharpness` there and multiply.

    Arguments:
        optimizer: the optax transformation: SGD with or without momentum, Adam and its variants, RMSProp, or chains of
            these. If its state is more than momentum, the run must provide that state, as `js.Descent(...,
            keep_state=True)` and `js.Monitor` do.
        count: how many eigenvalues, as for `sharpness`: those above 1 belong to unstable directions.

    Example:
        >>> import optax
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> sharpness, share = js.observe.sharpness()(view), js.observe.stability(optax.sgd(0.1))(view)
        >>> print(bool(jnp.allclose(share, 0.1 * sharpness / 2)))
        True

    Raises:
        TypeError: optimizer is not an optax transformation, or count is not an integer.
        ValueError: count as for `sharpness`; when used, if the optimizer's steps are not linear in the gradient and one
            momentum, or the view lacks the optimizer's state.
    """
    held, count = StaticOptimizer(optimizer), None if count is None else require_size(count, "count")
    return Observable("stability", _Stability(held, count), dims=_dims(count))


def edge_time(
    ts: Float[ArrayLike, " times"], stability: Float[ArrayLike, "*lanes times"]
) -> Float[np.ndarray, "*lanes"]:
    """The time at which runs reach the edge of stability: the first time at which `stability` is 1, or inf.

    Linearly interpolated between two times. For a run that starts beyond the edge, it is the first time.

    Arguments:
        ts: times, shape (times,), ascending.
        stability: values of the observable `stability` at these times, along the last axis. NaN, as in a run that has
            diverged, does not count as reaching the edge.

    Example:
        >>> ts, stability = jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.5, 0.75, 1.25], [0.1, 0.2, 0.3]])
        >>> print(js.observe.edge_time(ts, stability))
        [1.5 inf]

    Raises:
        ValueError: the shapes do not match, ts is empty, or the times are not sorted.
        TypeError: an argument is not an array of real numbers.
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
    # For a run that starts beyond the edge both indices are 0, and there is nothing to interpolate.
    share = np.where(rises, (1 - low) / np.where(rises, high - low, 1), 1.0)
    time = times[before] + share * (times[after] - times[before])
    return np.where(np.any(reached, axis=-1), time, np.inf)
