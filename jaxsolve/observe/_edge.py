"""Averages over an oscillation at the edge of stability, as `CentralFlow` and `RodFlow` know it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core import View
from ._observable import Observable


def _given(view: View, name: str) -> Float[Array, " k"]:
    known = view.given(name)
    if known is None:
        which = "CentralFlow, EdgeFlow and RodFlow" if name == "oscillation" else "CentralFlow and EdgeFlow"
        raise ValueError(f"{name} is known to {which} only; observe.stability(optimizer) is measured in any run")
    return known


def _averaged_loss(view: View) -> Array:
    known = view.given("averaged_loss")
    return view.loss if known is None else known


def _averaged_squared_gradient(view: View) -> Array:
    known = view.given("averaged_squared_gradient")
    if known is not None:
        return known
    gradient = jax.grad(view.problem.objective)(view.params)
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)), start=jnp.zeros((), view.problem.dtype))


def _oscillation(view: View) -> Array:
    return _given(view, "oscillation")


def _edge_eigenvalues(view: View) -> Array:
    return _given(view, "edge_eigenvalues")


def averaged_loss() -> Observable:
    """The loss averaged over the oscillation: L + <H, Sigma>/2 for `CentralFlow`, for others the mean at both ends.

    To be compared with a running average of the loss of descent. Of dynamics that do not know their oscillation it is
    the loss.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> run = js.solve(problem, js.CentralFlow(rate=0.1), 3.0, observe=js.observe.averaged_loss())
        >>> bool(run["averaged_loss"] < 0.5)
        True
    """
    return Observable("averaged_loss", _averaged_loss, unit="loss")


def averaged_squared_gradient() -> Observable:
    """|dL/dtheta|^2 averaged over the oscillation, |grad L|^2 + tr(H Sigma H); that of the point for other dynamics.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> bool(js.observe.averaged_squared_gradient()(view) > 0)
        True
    """
    return Observable("averaged_squared_gradient", _averaged_squared_gradient, unit="(loss / weight)^2")


def oscillation() -> Observable:
    """The variances of the oscillation along its principal axes, descending: the eigenvalues of Sigma.

    Shape (max_unstable,), at most the number of parameters, for `CentralFlow`, (1,) for `RodFlow` and `EdgeFlow`;
    their sum is tr Sigma. With one eigenvalue at the edge the axis is its eigenvector. Descent oscillates about the
    flow with these variances.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> flow = js.CentralFlow(rate=0.1, max_unstable=1)
        >>> print(js.solve(problem, flow, 3.0, observe=js.observe.oscillation())["oscillation"])  # below the edge
        [0.]

    Raises:
        ValueError: when used, if the dynamics does not know it.
    """
    return Observable("oscillation", _oscillation, dims=("axis",), unit="weight^2")


def edge_eigenvalues() -> Observable:
    """The largest eigenvalues of the preconditioned Hessian over that of the edge, descending: 1 is at the edge.

    Of `CentralFlow` and `EdgeFlow`, in the shape of `oscillation`. For gradient descent they are `stability(optimizer)`
    and those that come next. From the second on those below 0.8 are NaN: they are not followed.

    Example:
        >>> import optax
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> flow = js.CentralFlow(rate=0.1, max_unstable=1)
        >>> watched = [js.observe.edge_eigenvalues(), js.observe.stability(optax.sgd(0.1))]
        >>> found = js.solve(problem, flow, 3.0, observe=watched)
        >>> bool(jnp.allclose(found["edge_eigenvalues"][0], found["stability"], rtol=1e-2))
        True

    Raises:
        ValueError: when used, if the dynamics does not know it.
    """
    return Observable("edge_eigenvalues", _edge_eigenvalues, dims=("eigenvalue",))
