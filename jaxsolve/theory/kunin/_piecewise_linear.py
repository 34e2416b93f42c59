r"""The motion of every neuron of a two-layer piecewise linear network: its radius and its direction.

Kunin et al., "Get rich quick: exact solutions reveal how unbalanced initializations promote rapid feature learning",
equations (9) and (10). With plain weights $a_k$, $w_k$ and rates $\eta_a$, $\eta_w$ the network is
$f(x) = \gamma m_1 m_2 \sum_k c_k(x)\, \beta_k \cdot x$, where $\beta_k = a_k w_k$ and
$c_k(x) = \phi'(m_1 w_k \cdot x)$.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._checks import describe
from ..._core import NotApplicable, Problem
from ..._numerics import nonzero, safe_hypot, safe_sqrt
from ...nets import AbstractDense


class Neurons(eqx.Module):
    r"""The hidden neurons of a two-layer piecewise linear network, in the quantities that determine their flow.

    Attributes:
        delta: $\delta_k = \eta_w a_k^2 - \eta_a |w_k|^2$, conserved. Large and positive is upstream (the read-out is
            large, the direction turns), 0 is balanced, negative is downstream.
        radius: $\mu_k = a_k |w_k|$, the signed length of $\beta_k$.
        direction: $\hat\beta_k = w_k/|w_k|$; 0 for a neuron with w = 0, which has no direction.
        mixed: $\sqrt{\eta_a \eta_w}$, one number.

    The methods are the right-hand sides of the flow, given the force on every neuron,
    $\xi_k = \gamma m_1 m_2 \sum_i c_{ki} x_i\, \partial L/\partial f_i$ (`neuron_forces`). Times are gradient-flow
    times.
    """

    delta: Float[Array, " h"]
    radius: Float[Array, " h"]
    direction: Float[Array, "h in"]
    mixed: Float[Array, ""]

    @property
    def beta(self) -> Float[Array, "h in"]:
        """beta_k = a_k w_k: the neuron's contribution to the linear map of the inputs that activate it."""
        return self.radius[:, None] * self.direction

    @property
    def speed(self) -> Float[Array, " h"]:
        r"""$\kappa_k = \sqrt{\delta_k^2 + 4 \eta_a \eta_w \mu_k^2} = \eta_w a_k^2 + \eta_a |w_k|^2$."""
        return safe_hypot(self.delta, 2 * self.mixed * self.radius)

    @property
    def upstream(self) -> Float[Array, " h"]:
        r"""$(\kappa_k + \delta_k)/2 = \eta_w a_k^2$, without cancellation."""
        return half(self.speed, self.delta, self.mixed * self.radius)

    @property
    def downstream(self) -> Float[Array, " h"]:
        r"""$(\kappa_k - \delta_k)/2 = \eta_a |w_k|^2$, without cancellation."""
        return half(self.speed, -self.delta, self.mixed * self.radius)

    def radius_rate(self, forces: Float[Array, "h in"]) -> Float[Array, " h"]:
        r"""$\dot\mu_k = -\kappa_k\, \hat\beta_k \cdot \xi_k$ (eq. 10)."""
        return -self.speed * self._along(forces)

    def direction_rate(self, forces: Float[Array, "h in"]) -> Float[Array, "h in"]:
        r"""$\dot{\hat\beta}_k = -\frac{\kappa_k + \delta_k}{2 \mu_k} (I - \hat\beta_k \hat\beta_k^T) \xi_k$ (eq. 10).

        For $\delta_k < 0$ the factor vanishes with $\mu_k$; for $\delta_k > 0$ it grows like $\delta_k/\mu_k$. At
        $\mu_k = 0$ it is set to 0: if $\delta_k > 0$, the neuron then has w = 0, and no direction to turn.
        """
        # For delta < 0: eta_a eta_w mu/((kappa - delta)/2).
        falls = self.mixed * (self.mixed * self.radius / nonzero(self.downstream))
        grows = self.upstream / nonzero(jnp.where(self.delta < 0, 0, self.radius))
        factor = jnp.where(self.radius == 0, 0, jnp.where(self.delta < 0, falls, grows))
        return -factor[:, None] * (forces - self._along(forces)[:, None] * self.direction)

    def beta_rate(self, forces: Float[Array, "h in"]) -> Float[Array, "h in"]:
        r"""$\dot\beta_k = -M_k \xi_k$, $M_k = \eta_w a_k^2 I + \eta_a w_k w_k^T$ (eq. 9)."""
        turning = self.upstream[:, None] * forces
        growing = (self.downstream * self._along(forces))[:, None] * self.direction
        return -(turning + growing)

    def _along(self, forces: Array) -> Array:
        return jnp.sum(self.direction * forces, axis=1)


def half(speed: Array, delta: Array, root: Array) -> Array:
    """(speed + delta)/2 without cancellation, where root^2 is its product with (speed - delta)/2."""
    positive = delta >= 0  # not |delta|, which would lose the derivative at 0, a balanced neuron
    large = (speed + jnp.where(positive, delta, -delta)) / 2
    return jnp.where(positive, large, root * (root / nonzero(large)))


def neurons(net: Any) -> Neurons:
    """The hidden neurons of a network with one hidden layer, one output, no biases and (leaky) relu or linear units.

    Arguments:
        net: such a network at any time (`problem.net` is the start, `view.net` is at the time of the view).

    Returns:
        The arrays `delta`, `radius`, `direction`, `beta`, and the rates at which they change under given forces:
        `radius_rate(forces)`, `direction_rate(forces)` and `beta_rate(forces)`.

    Example:
        >>> init = js.nets.Given([jnp.array([[3.0, 4.0], [1.0, 0.0]]), jnp.array([[1.0, 2.0]])])
        >>> scaling = js.nets.Scaling.standard()
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=2, depth=1, activation="relu",
        ...     scaling=scaling, init=init, key=jax.random.key(0)
        ... )
        >>> print(*(f"{delta:.2f}" for delta in js.theory.neurons(net).delta))  # a^2 - |w|^2: one down-, one upstream
        -24.00 3.00

    Reference:
        @inproceedings{kunin2024get, title={Get rich quick: exact solutions reveal how unbalanced initializations
          promote rapid feature learning}, author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and
          Ganguli}, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}}

    Raises:
        NotApplicable: the network is of another kind.
    """
    w, _ = _layers(net, one_output=True)
    scales = neuron_scales(net)
    return Neurons(scales.delta, scales.radius, w / nonzero(_length(w))[:, None], scales.mixed)


class NeuronScales(NamedTuple):
    """The scales of hidden neurons with any number of outputs (Kunin et al., Theorem 4.1): `Neurons` minus directions.

    Attributes:
        delta: eta_w |a_k|^2 - eta_a |w_k|^2, conserved.
        radius: |w_k a_k^T| = |a_k| |w_k|; with one output it is signed, a_k |w_k|.
        mixed: sqrt(eta_a eta_w).
    """

    delta: Float[Array, " h"]
    radius: Float[Array, " h"]
    mixed: Float[Array, ""]

    @property
    def speed(self) -> Float[Array, " h"]:
        """eta_w |a_k|^2 + eta_a |w_k|^2."""
        return safe_hypot(self.delta, 2 * self.mixed * self.radius)


def neuron_scales(net: Any) -> NeuronScales:
    """The scales of the hidden neurons of a network that `neurons` accepts, or of one with several outputs."""
    w, a = _layers(net, one_output=False)
    eta_w, eta_a = net.rates().weights
    length, size = _length(w), a[0] if len(a) == 1 else _length(a.T)
    root_a, root_w = jnp.sqrt(eta_a), jnp.sqrt(eta_w)
    up, down = root_w * size, root_a * length
    # eta_w a^2 - eta_a |w|^2 as a product: the squares of a nearly balanced neuron would cancel.
    return NeuronScales((up - down) * (up + down), size * length, root_a * root_w)


def _length(rows: Float[Array, "h n"]) -> Float[Array, " h"]:
    # Scaled by the largest entry, so that no square overflows or underflows.
    scale = jax.lax.stop_gradient(nonzero(jnp.max(jnp.abs(rows), axis=1)))
    return scale * safe_sqrt(jnp.sum((rows / scale[:, None]) ** 2, axis=1))


def neuron_forces(problem: Problem, params: PyTree = None) -> Float[Array, "h in"]:
    r"""$\xi_k = \gamma m_1 m_2 \sum_i c_{ki} x_i\, \partial L/\partial f_i$ for every hidden neuron and any loss.

    The gradient of the loss is $w_k \cdot \xi_k$ with respect to $a_k$ and $a_k \xi_k$ with respect to $w_k$. The loss
    is this library's average over samples. If a preactivation is within rounding of a kink, chance decides on which
    side of it the sample counts.

    Arguments:
        problem: a problem whose network `js.theory.neurons` accepts.
        params: the parameters at which to evaluate; None means the start.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=3, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([1.0, -1.0]))
        >>> forces = js.theory.neuron_forces(problem)
        >>> js.theory.neurons(net).radius_rate(forces).shape
        (3,)

    Raises:
        NotApplicable: the network is of another kind.
    """
    net = problem.net if params is None else problem.network(params)
    w, _ = _layers(net, one_output=True)
    first, second = net.scaling.multiplier[0], net.scaling.multiplier[1]
    outputs = problem.outputs(problem.params if params is None else params)
    by_sample = problem.loss.gradient(outputs, problem.y)[:, 0]
    # c_ki, the slope of the activation of neuron k at sample i.
    gates = jax.vmap(jax.vmap(jax.grad(net.activation)))(first * (w @ problem.x.T))
    return net.scaling.gamma * first * second * ((gates * by_sample[None, :]) @ problem.x)


def _layers(net: Any, *, one_output: bool) -> tuple[Float[Array, "h in"], Float[Array, "out h"]]:
    """The weights of both layers; raises NotApplicable for a network of another kind."""
    dense, outputs = isinstance(net, AbstractDense), " one output," if one_output else ""
    wanted = f"a network with one hidden layer,{outputs} no biases and a relu, leaky relu or linear activation"
    if not dense:
        raise NotApplicable(f"neurons need {wanted}, got {describe(net)}")
    kind = (
        (len(net.weights) == 2, f"{len(net.weights)} weight matrices"),
        (net.out_size == 1 or not one_output, f"{net.out_size} outputs"),
        (not net.biases, "biases"),
        (net.activation.homogeneous, f"the activation {net.activation}"),
    )
    missed = [found for holds, found in kind if not holds]
    if missed:
        raise NotApplicable(f"neurons need {wanted}; this one has {', '.join(missed)}")
    return net.weights[0], net.weights[1]
