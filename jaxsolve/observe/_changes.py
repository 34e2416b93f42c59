"""Observables of how far a whole network has moved, and of how fast its signals move."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import nets
from .._core import Quantity, View
from .._numerics import safe_sqrt
from ..nets._internal import run, StandardizeBatch
from ._observable import Observable


def _size(tree: PyTree) -> Float[Array, ""]:
    # The root has no derivative at 0, where every run starts.
    return safe_sqrt(jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)])))


def root_mean_square(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The root mean square of the entries."""
    return safe_sqrt(jnp.mean(values**2))


def _parameters(view: View) -> Float[Array, " size"]:
    return ravel_pytree(view.params)[0]


def _parameter_distance(view: View):
    return _size(jax.tree.map(jnp.subtract, view.params, view.problem.params))


def _weight_change(view: View):
    return _parameter_distance(view) / _size(view.problem.params)


def _output_change(view: View):
    problem = view.problem
    return root_mean_square(view.outputs - (0 if view.from_zero else problem.outputs(problem.params)))


def _test_output_change(view: View):
    problem = view.problem
    return root_mean_square(view.test_outputs - (0 if view.from_zero else problem.test_outputs(problem.params)))


def preactivations(net: nets.AbstractLayered, x: Float[Array, "n ..."]) -> list[Float[Array, "n ..."]]:
    """The input of the activation of each hidden layer."""
    found, begin, layers = [], 0, net.layers
    z = x
    for end in (place for place, layer in enumerate(layers) if isinstance(layer, nets.Apply)):
        # From the previous activation (inclusive) up to this one (exclusive), so that no layer runs twice.
        between = layers[begin:end]
        z = jax.vmap(lambda one, part=between: run(net, part, one))(z)
        found.append(z)
        begin = end
    return found


def require_chain(net: object, name: str) -> nets.AbstractLayered:
    """Returns the network if its hidden layers form a chain and see one sample at a time; else raises ValueError."""
    strange = (nets.Residual, StandardizeBatch)
    if not isinstance(net, nets.AbstractLayered) or any(isinstance(layer, strange) for layer in net.layers):
        raise ValueError(
            f"{name} is for networks whose hidden layers follow one another, such as nets.MLP and nets.ConvNet; got "
            f"{type(net).__module__}.{type(net).__name__}. For other networks write observe.Observable(name, lambda "
            "view: ..., ...) with view.params"
        )
    return net


def _velocity(view: View):
    problem, units = view.problem, getattr(require_chain(view.net, "preactivation_velocity"), "units", None)
    gradient = jax.grad(problem.objective)(view.params)
    # The velocity of gradient flow; one jvp along it gives the derivatives of all layers.
    direction = jax.tree.map(lambda rate, g: -rate * g, problem.eta, gradient)
    read = lambda params: preactivations(problem.network(params), problem.x)
    velocities = jax.jvp(read, (view.params,), (direction,))[1]
    # Padding does not move and must not enter the mean.
    padding = [1.0 if units is None else v.shape[1] / units for v in velocities]
    return jnp.stack([root_mean_square(v) * share**0.5 for v, share in zip(velocities, padding, strict=True)])


def weight_change() -> Observable:
    """|w - w_0|/|w_0|, where w is all trainable parameters: weights, biases, gains (Geiger et al., appendix D).

    It covers the whole network, while `weight_distances` and `weight_norms` treat each layer separately. Weights in
    float32 resolve 1e-6.

    Example:
        >>> net = js.nets.ConvNet(
        ...     in_shape=(1, 4, 4), out_size=1, width_size=2, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((2, 1, 4, 4)), jnp.ones((2, 1)))
        >>> doubled = jax.tree.map(lambda w: 2 * w, problem.params)
        >>> print(js.observe.weight_change()(js.View(problem, jnp.zeros(()), doubled)))
        1.0
    """
    return Observable("weight_change", _weight_change, Quantity.PARAMS)


def parameters() -> Observable:
    """All trainable parameters of any network as one vector, in the order of `jax.tree.leaves`.

    For the distance between two runs, see `distance` of the result of `js.compare`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> js.solve(problem, js.GradientFlow(), [0.0, 1.0], observe=js.observe.parameters())["parameters"].shape
        (2, 12)
    """
    return Observable("parameters", _parameters, Quantity.PARAMS, ("parameter",), "weight")


def parameter_distance() -> Observable:
    """|theta - theta_0|, the Euclidean distance of all trainable parameters of any network from the start.

    Weights in float32 resolve 1e-6 |theta_0|.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> moved = jax.tree.map(lambda w: w + 1.0, problem.params)  # twelve weights
        >>> print(f"{js.observe.parameter_distance()(js.View(problem, jnp.zeros(()), moved)):.3f}")
        3.464
    """
    return Observable("parameter_distance", _parameter_distance, Quantity.PARAMS, unit="weight")


def output_change() -> Observable:
    """|f - f_0|: how far the outputs have moved, as a root mean square over training samples and outputs.

    For a centered problem f_0 = 0. f includes gamma.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> run = js.solve(problem, js.FrozenKernel(), [0.0, jnp.inf], observe=js.observe.output_change())
        >>> print(run["output_change"].round(3))
        [0. 1.]
    """
    return Observable("output_change", _output_change, Quantity.OUTPUTS, unit="output")


def test_output_change() -> Observable:
    """`output_change` on the test set (Geiger et al., eq. 29).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(js.observe.test_output_change()(view))  # at the start
        0.0
    """
    return Observable("test_output_change", _test_output_change, Quantity.OUTPUTS, unit="output")


def preactivation_velocity() -> Observable:
    """|dz_l/dt| under gradient flow, where z_l are the preactivations of hidden layer l, shape (hidden layers,).

    A root mean square over training samples, neurons and, for images, pixels. The derivative is exact, along
    d theta/dt = -eta dL/d theta, whatever the dynamics of the run. It is of order 1/(sqrt(h) alpha) for networks of
    width h with `js.nets.Scaling.lazy(alpha)` (Geiger et al., eq. 12 and appendix F). Padding does not count.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=3, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> js.observe.preactivation_velocity()(js.View(problem, jnp.zeros(()), problem.params)).shape
        (3,)

    Raises:
        ValueError: when used, if the hidden layers do not form a chain.
    """
    return Observable("preactivation_velocity", _velocity, Quantity.PARAMS, ("hidden_layer",), "preactivation / time")
