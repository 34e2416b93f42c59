"""Averages over the oscillation at the edge of stability, which `CentralFlow`, `EdgeFlow` and `RodFlow` model."""

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
    """The loss averaged over the oscillation: L + <H, Sigma>/2 for `CentralFlow`, else the mean over both ends.

    Compare it with a running average of the loss of gradient descent. For dynamics that do not model their oscillation,
    it is the loss. With weight decay the average counts its penalty.

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
    """|dL/dtheta|^2 averaged like `averaged_loss`, with |grad L|^2 + tr(H Sigma H) for `CentralFlow`.

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

    Shape (max_unstable,), at most the number of parameters, for `CentralFlow`, and (1,) for `RodFlow` and `EdgeFlow`.
    The variances sum to tr Sigma. If one eigenvalue is at the edge, the axis is its eigenvector. Gradient descent
    oscillates about the flow with these variances.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> flow = js.CentralFlow(rate=0.1, max_unstable=1)
        >>> print(js.solve(problem, flow, 3.0, observe=js.observe.oscillation())["oscillation"])  # below the edge
        [0.]

    Raises:
        ValueError: when used, if the dynamics does not provide it.
    """
    return Observable("oscillation", _oscillation, dims=("axis",), unit="weight^2")


def edge_eigenvalues() -> Observable:
    """The largest eigenvalues of the preconditioned Hessian in units of the edge of stability, descending.

    Known to `CentralFlow` and `EdgeFlow`, with the shape of `oscillation`; 1 is at the edge. For gradient descent, the
    first is `stability(optimizer)`. From the second on, values below 0.8 are NaN because they are not tracked.

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
        ValueError: when used, if the dynamics does not provide it.
    """
    return Observable("edge_eigenvalues", _edge_eigenvalues, dims=("eigenvalue",))
