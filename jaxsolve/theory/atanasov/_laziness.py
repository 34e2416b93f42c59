r"""The rate at which the features of a network change at a point, compared with that of its loss.

Chizat et al., "On lazy training in differentiable programming"; Atanasov, Bordelon and Pehlevan, "Neural networks as
kernel learners: the silent alignment effect", equation (11) and appendix H.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._core import Problem, require_problem
from ..._numerics import nonzero, safe_sqrt


class Laziness(NamedTuple):
    r"""Two rates at one point of gradient flow, per unit of gradient-flow time, and their ratio.

    Attributes:
        features: $|\frac{d}{dt} \nabla f|/|\nabla f|$, the relative rate of the features; 0 where they vanish.
        loss: $|\frac{d}{dt} L|/L$, the relative rate of the loss; 0 where it is zero.
        ratio: features/loss. Far below 1 is lazy: the loss falls before the features have changed. Far above 1, the
            features, and with them the kernel, change first: necessary for silent alignment, but not sufficient. 0 at
            zero loss, inf where all features vanish, the limit of small weights.
    """

    features: Float[Array, ""]
    loss: Float[Array, ""]
    ratio: Float[Array, ""]


def laziness(problem: Problem, params: PyTree = None) -> Laziness:
    r"""The laziness of a problem at its start or elsewhere (Atanasov et al., left-hand sides of eqs. 11 and 62).

    The features are $\sqrt{\eta_l}\, \partial f_c(x_i)/\partial\theta_l$, whose inner products are the kernel that
    drives f; their norm runs over training samples, outputs and parameters. The ratio is the same for all networks
    related by the abc symmetry of `nets.Scaling`, and in all units of time and loss. In a network that is homogeneous
    of degree L in its weights (L weight matrices, relu or linear), it grows like $\sigma^{-L}$ for small weights.

    Costs the Jacobian of one sample at a time and its directional derivative.

    Arguments:
        problem: a problem; its outputs are centered if the problem is.
        params: the parameters at which to measure; None means the start.

    Returns:
        The rates `features` and `loss`, per unit of gradient-flow time, and their `ratio`: far below 1 is lazy.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=2, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> for size in (1.0, 1e3):  # large targets move the features more
        ...     problem = js.Problem(net, jnp.eye(2), jnp.array([size, -size]))
        ...     print(bool(js.theory.laziness(problem).ratio > 1))
        False
        True

    Reference:
        @inproceedings{chizat2019lazy, title={On lazy training in differentiable programming},
          author={Chizat and Oyallon and Bach}, booktitle={NeurIPS}, year={2019}}

    Raises:
        TypeError: problem is not a `Problem`.
    """
    return _laziness(problem, _point(problem, params))


@eqx.filter_jit
def _laziness(problem: Problem, params: PyTree) -> Laziness:
    loss, gradient = jax.value_and_grad(problem.training_loss)(params)
    velocity = jax.tree.map(lambda g, eta: -eta * g, gradient, problem.eta)

    def of_sample(x):
        jacobian = jax.jacrev(lambda p: problem.network(p)(x))
        # The features and their velocity in one pass: the derivative of the Jacobian along the flow.
        features, change = jax.jvp(jacobian, (params,), (velocity,))
        return _weighted_square(features, problem.eta), _weighted_square(change, problem.eta)

    squares = jax.lax.map(of_sample, problem.x)
    size, change = (safe_sqrt(jnp.sum(square)) for square in squares)
    falls = _weighted_square(gradient, problem.eta)
    features = jnp.where(size == 0, 0, change / nonzero(size))
    at_zero = (loss == 0) | (falls == 0)
    ratio = jnp.where(at_zero, 0, features / jnp.where(at_zero, 1, falls) * loss)
    loss_rate = jnp.where(loss == 0, 0, falls / nonzero(loss))
    return Laziness(features, loss_rate, jnp.where((size == 0) & (loss != 0), jnp.inf, ratio))


def curvature_ratio(problem: Problem, params: PyTree = None) -> Float[Array, ""]:
    r"""An estimate of the laziness ratio from norms alone, $|\nabla^2 f|\, L/(|\nabla f|^2\, |\partial L/\partial f|)$.

    Atanasov et al., equations (11) and (62), corrected: eq. 11 has the loss L in the denominator; both lack
    $1/|\partial L/\partial f|$, without which the ratio depends on the units of f. For MSE it is the criterion of
    Chizat et al., $|f - y|\, |\nabla^2 f|/(2 |\nabla f|^2)$. Norms are those of `js.theory.laziness`, with
    $\sqrt{\eta\eta'}$ for second derivatives. How the gradients of samples align with the Hessian makes it differ from
    the ratio; the order $\sigma^{-L}$ for small weights is the same.

    For small networks: for each output, it costs one product with the Hessian per parameter.

    Arguments:
        problem, params: as for `js.theory.laziness`.

    Example:
        >>> init, scaling = js.nets.Given([jnp.ones((1, 1))] * 2), js.nets.Scaling.ntk()
        >>> net = js.nets.SingleNeuron(in_size=1, scaling=scaling, init=init, key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.zeros(1))  # f = a w at a = w = 1
        >>> print(f"{js.theory.curvature_ratio(problem):.4f}")  # |f - y| sqrt(2)/(2 (1 + 1))
        0.3536

    Raises:
        TypeError: problem is not a `Problem`.
    """
    return _curvature_ratio(problem, _point(problem, params))


@eqx.filter_jit
def _curvature_ratio(problem: Problem, params: PyTree) -> Float[Array, ""]:
    loss = problem.training_loss(params)
    by_output = problem.loss.gradient(problem.outputs(params), problem.y)
    flat, unravel = ravel_pytree(params)
    # With parameters divided by the root of their rate, all rates are 1.
    root = ravel_pytree(jax.tree.map(lambda p, eta: jnp.sqrt(eta) * jnp.ones_like(p), params, problem.eta))[0]

    def of_sample(x):
        jacobian = jax.jacrev(lambda q: problem.network(unravel(flat + root * q))(x))
        at = jnp.zeros_like(flat)

        def column(index):
            direction = at.at[index].set(1)
            return jnp.sum(jax.jvp(jacobian, (at,), (direction,))[1] ** 2)

        return jnp.sum(jacobian(at) ** 2), jnp.sum(jax.lax.map(column, jnp.arange(flat.size)))

    first, second = (jnp.sum(square) for square in jax.lax.map(of_sample, problem.x))
    slope = safe_sqrt(jnp.sum(by_output**2))
    ratio = safe_sqrt(second) / nonzero(first) * (loss / nonzero(slope))
    return jnp.where((first == 0) & (loss != 0), jnp.inf, ratio)


def _point(problem: Problem, params: PyTree) -> PyTree:
    """The parameters at which to measure. Raises TypeError if `problem` is not a problem."""
    require_problem(problem)
    return problem.params if params is None else params


def _weighted_square(tree: PyTree, eta: PyTree) -> Float[Array, ""]:
    """sum_l eta_l |leaf_l|^2."""
    squares = jax.tree.map(lambda leaf, rate: rate * jnp.sum(leaf**2), tree, eta)
    return jnp.sum(jnp.stack(jax.tree.leaves(squares)))
