"""The problem zoo: small networks whose hyperparameters all differ, and the formulas they must obey, in plain NumPy."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special
from jaxtyping import Array

from jaxsolve import AbstractRandomAccess, Assumption, nets, observe, Problem, Quantity, solve, Validity, View


def eps(factor: float = 1.0) -> float:
    """That many units of rounding of the dtype the tests run in."""
    return factor * float(jnp.finfo(jnp.result_type(float)).eps)


X64 = eps() < 1e-10


def slow_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which the first so many run by default, and the others with `-m slow`."""
    return [value if i < count else pytest.param(value, marks=pytest.mark.slow) for i, value in enumerate(values)]


def _sigmoid(z):
    return scipy.special.expit(z)


def _normal_cdf(z):
    return scipy.special.ndtr(z)


def _normal_pdf(z):
    return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


ACTIVATIONS: dict[str, tuple[nets.Activation, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "linear": (nets.linear, lambda z: z, lambda z: np.ones_like(z)),
    "relu": (nets.relu, lambda z: np.where(z > 0, z, 0), lambda z: np.where(z > 0, 1.0, 0.0)),
    "leaky_relu": (nets.leaky_relu(), lambda z: np.where(z > 0, z, 0.01 * z), lambda z: np.where(z > 0, 1.0, 0.01)),
    "leaky_relu(0.3)": (nets.leaky_relu(0.3), lambda z: np.where(z > 0, z, 0.3 * z), lambda z: np.where(z > 0, 1, 0.3)),
    "tanh": (nets.tanh, np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    "erf": (nets.erf, scipy.special.erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-(z**2))),
    "sigmoid": (nets.sigmoid, _sigmoid, lambda z: _sigmoid(z) * _sigmoid(-z)),
    "swish": (nets.swish, lambda z: z * _sigmoid(z), lambda z: _sigmoid(z) * (1 + z * _sigmoid(-z))),
    "gelu": (nets.gelu, lambda z: z * _normal_cdf(z), lambda z: _normal_cdf(z) + z * _normal_pdf(z)),
    "softplus": (nets.softplus(), lambda z: np.logaddexp(0, z), _sigmoid),
    "softplus(5)": (nets.softplus(5.0), lambda z: np.logaddexp(0, 5 * z) / 5, lambda z: _sigmoid(5 * z)),
}
"""By name: the activation, its formula and the formula of its derivative (away from kinks)."""


def scaling(layers: int, **changes: Any) -> nets.Scaling:
    """A Scaling in which no two numbers are equal and none is 1."""
    values: dict[str, Any] = {
        "multiplier": np.array([0.8, 1.3, 0.6, 1.1])[:layers],
        "sigma": np.array([0.9, 0.7, 1.2, 0.5])[:layers],
        "eta": np.array([1.7, 0.4, 2.3, 0.9])[:layers],
        "gamma": 0.75,
        "bias_sigma": 0.3,
        "bias_eta": 0.65,
    }
    return nets.Scaling(**(values | changes))


def mlp(key, activation: Any = "tanh", *, depth: int = 2, bias: bool = True, **changes: Any) -> nets.MLP:
    """3 inputs, hidden layers of 5, 2 outputs, every hyperparameter different; `changes` go to `scaling`."""
    return nets.MLP(
        in_size=3,
        out_size=2,
        width_size=5,
        depth=depth,
        activation=activation,
        bias=bias,
        scaling=scaling(depth + 1, **changes),
        key=key,
    )


def inputs(key, n: int = 4, size: int = 3):
    """Gaussian inputs."""
    return jr.normal(key, (n, size))


def problem(net: Any, key, *, n: int = 4, test: int = 0, **options: Any) -> Problem:
    """Gaussian inputs and targets for a network."""
    keys = jr.split(key, 4)
    x, y = inputs(keys[0], n, *net.in_shape), inputs(keys[1], n, net.out_size)
    pair = (inputs(keys[2], test, *net.in_shape), inputs(keys[3], test, net.out_size)) if test else None
    return Problem(net, x, y, test=pair, **options)


def sharpening(size: int, width: int, n: int, seed: int, dtype: Any = None) -> Problem:
    """A tanh network of two hidden layers that learns a product of signs, and whose sharpness rises to the edge."""
    keys, dtype = jr.split(jr.key(seed), 3), dtype or jnp.result_type(float)
    x = jr.normal(keys[0], (n, size), dtype)
    net = nets.MLP(
        in_size=size,
        out_size=1,
        width_size=width,
        depth=2,
        activation="tanh",
        bias=True,
        scaling=nets.Scaling.xavier(),
        key=keys[2],
        dtype=dtype,
    )
    return Problem(net, x, jnp.sign(x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]))


class Pairs(NamedTuple):
    """Means of a step of descent and the next.

    Attributes:
        ts: between both.
        means: of the parameters.
        way: how far they are from the start.
    """

    ts: np.ndarray
    means: np.ndarray
    way: np.ndarray

    def off(self, flow: Any, problem: Problem) -> np.ndarray:
        """The distance of a flow from the means, over their way."""
        found = solve(problem, flow, self.ts, observe=observe.parameters())["parameters"]
        return np.linalg.norm(self.means - np.asarray(found), axis=1) / self.way


def pairs(problem: Problem, descent: Any, steps: np.ndarray) -> Pairs:
    """The means after so many steps of descent."""
    step, both = float(descent.rate), np.sort(np.concatenate([[0], steps, steps + 1]))
    w = np.asarray(solve(problem, descent, both * step, observe=observe.parameters())["parameters"])
    means = (w[1::2] + w[2::2]) / 2
    return Pairs((steps + 0.5) * step, means, np.linalg.norm(means - w[0], axis=1))


def forward(net: Any, x: Any, phi: Callable[[Any], Any]) -> np.ndarray:
    """gamma z_{L+1} with z_{l+1} = m_l W_l phi(z_l) + b_l, neuron by neuron, for one input."""
    z = [float(value) for value in x]
    for layer, w in enumerate(np.asarray(net.weights[i]) for i in range(len(net.weights))):
        signal = z if layer == 0 else [float(phi(np.float64(value))) for value in z]
        z = []
        for neuron in range(w.shape[0]):
            total = float(net.scaling.multiplier[layer]) * sum(w[neuron, j] * signal[j] for j in range(w.shape[1]))
            z.append(total + (float(net.biases[layer][neuron]) if net.biases else 0.0))
    return float(net.scaling.gamma) * np.array(z)


def assert_fails(check: Callable[[], None]) -> None:
    """A check that must be able to fail does so, for a twin that leaves something out."""
    try:
        check()
    except AssertionError as failed:
        if "mismatch)" in str(failed):
            raise RuntimeError("the twin failed by its shape, which tests nothing") from failed
        return
    raise RuntimeError("the check passed on its twin, so it tests nothing")


def randomized(tree: Any, key) -> Any:
    """The same pytree with every array drawn anew from N(0, 1)."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jr.split(key, len(leaves))
    return jax.tree.unflatten(structure, [jr.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)])


class Linear(eqx.Module):
    """f(x) = w x: a module that is not one of ours, all of whose arrays train at eta = 1."""

    w: Array

    def __call__(self, x: Array) -> Array:
        return self.w @ x


def modes(start: Any, rates: Any, **options: Any) -> Problem:
    """Weights that decay one by one: w_k' = -r_k w_k, so L = sum_k r_k w_k(0)^2 exp(-2 r_k t) / 2."""
    start, rates = jnp.asarray(start), jnp.asarray(rates)
    count = rates.shape[0]
    return Problem(Linear(start[None, :]), jnp.diag(jnp.sqrt(count * rates)), jnp.zeros((count, 1)), **options)


class ModesDecay(AbstractRandomAccess):
    """The closed form of `modes`, which knows outputs and nothing else. It asks for rates of at most 100."""

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset({Quantity.OUTPUTS})

    def check(self, problem: Problem) -> Validity:
        if not isinstance(problem.net, Linear):
            return Validity((Assumption("modes", jnp.asarray(jnp.inf), 0.0, "another network"),))
        excess = jnp.maximum(jnp.max(jnp.diag(problem.x) ** 2) / problem.x.shape[0] - 100, 0)
        return Validity((Assumption("rates up to 100", excess, 0.0),))

    def at(self, problem: Problem, t: Array) -> View:
        rates = jnp.diag(problem.x) ** 2 / problem.x.shape[0]
        return View(
            problem, t, given_outputs=problem.net.w.T * jnp.diag(problem.x)[:, None] * jnp.exp(-rates * t)[:, None]
        )


class ByHand(NamedTuple):
    """A dense network under MSE in NumPy, its parameters in one vector (weights first, then biases)."""

    start: np.ndarray
    eta: np.ndarray
    loss_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]]
    outputs: Callable[[np.ndarray], np.ndarray]


def by_hand(problem: Problem, activation: str, eta: Any = None) -> ByHand:
    """Back-propagation written out; `eta` takes the place of the network's own."""
    _, phi, slope = ACTIVATIONS[activation]
    net, x, y = problem.net, np.asarray(problem.x), np.asarray(problem.y)
    m, gamma, layers = np.asarray(net.scaling.multiplier), float(net.scaling.gamma), len(net.weights)
    arrays = [np.asarray(a) for a in (*net.weights, *net.biases)]
    ends = np.cumsum([a.size for a in arrays])
    etas = [*np.asarray(net.scaling.eta if eta is None else eta), *[float(net.scaling.bias_eta)] * len(net.biases)]

    def signals(theta):
        parts = [part.reshape(a.shape) for part, a in zip(np.split(theta, ends[:-1]), arrays, strict=True)]
        weights, biases, z, inputs = parts[:layers], parts[layers:], x, []
        for index, w in enumerate(weights):
            inputs.append((z, phi(z) if index else z))
            z = m[index] * inputs[-1][1] @ w.T + (biases[index] if biases else 0)
        return weights, inputs, gamma * z

    start = np.concatenate([a.ravel() for a in arrays])
    initial = signals(start)[2] if problem.centered else np.zeros_like(y)

    def loss_and_gradient(theta):
        weights, inputs, f = signals(theta)
        residual = f - initial - y
        back, by_weight, by_bias = gamma * residual / len(x), [], []
        for index in reversed(range(layers)):
            z, signal = inputs[index]
            by_weight.insert(0, (m[index] * back.T @ signal).ravel())
            by_bias.insert(0, back.sum(axis=0))
            back = m[index] * (back @ weights[index]) * (slope(z) if index else 1)
        gradient = np.concatenate([*by_weight, *(by_bias if net.biases else [])])
        return float(np.sum(residual**2) / (2 * len(x))), gradient

    rates = np.concatenate([np.full(a.size, rate) for a, rate in zip(arrays, etas, strict=True)])
    return ByHand(start, rates, loss_and_gradient, lambda theta: signals(theta)[2] - initial)
