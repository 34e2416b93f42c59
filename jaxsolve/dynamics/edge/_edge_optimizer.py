"""The optimizers with a known oscillation at the edge: descent, and two that divide by past gradients."""

import abc
import contextlib
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ..._checks import attempt, concrete, one_number
from ..descent._optimizer import Optimizer


class AbstractPreconditioner(eqx.Module):
    """Steps w -= eta rate/sqrt(nu + eps) g, where nu follows g^2 and may be empty.

    Attributes:
        rate: gradient-flow time of a step.
        lag: c = (1 - beta)/beta in nu' = c (g^2 - nu) per step.
    """

    rate: eqx.AbstractVar[Float[Array, ""]]
    lag: eqx.AbstractVar[Float[Array, ""]]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the optimizer."""

    @abc.abstractmethod
    def start(self, params: Float[Array, " params"]) -> Float[Array, " nu"]:
        """Nu at t = 0, with no entry, one entry, or one per parameter."""

    @abc.abstractmethod
    def rates(self, nu: Float[Array, " nu"], eta: Float[Array, " params"]) -> Float[Array, " params"]:
        """The factors on a gradient in a step: the inverse of the preconditioner P."""

    @abc.abstractmethod
    def product(self, u: Float[Array, " params"], v: Float[Array, " params"]) -> Float[Array, " nu"]:
        """The value that nu follows where the gradient has the second moment u v^T."""

    @abc.abstractmethod
    def slope(
        self,
        nu: Float[Array, " nu"],
        eta: Float[Array, " params"],
        u: Float[Array, " params"],
        v: Float[Array, " params"],
    ) -> Float[Array, " nu"]:
        """d(2 u^T P v)/d nu."""


class Plain(AbstractPreconditioner):
    """Gradient descent."""

    rate: Float[Array, ""]
    lag: Float[Array, ""]

    def __init__(self, rate: Float[Array, ""]):
        self.rate, self.lag = rate, jnp.zeros_like(rate)

    @property
    def name(self) -> str:
        return "sgd"

    def start(self, params: Float[Array, " params"]) -> Float[Array, " nu"]:
        return jnp.zeros((0,), params.dtype)

    def rates(self, nu: Float[Array, " nu"], eta: Float[Array, " params"]) -> Float[Array, " params"]:
        del nu
        return self.rate.astype(eta.dtype) * eta

    def product(self, u: Float[Array, " params"], v: Float[Array, " params"]) -> Float[Array, " nu"]:
        del v
        return jnp.zeros((0,), u.dtype)

    def slope(self, nu, eta, u, v) -> Float[Array, " nu"]:
        del eta, u, v
        return nu


class Squares(AbstractPreconditioner):
    """RMSProp: nu follows the squared gradient, elementwise or (`scalar`) summed."""

    rate: Float[Array, ""]
    lag: Float[Array, ""]
    eps: Float[Array, ""]
    initial: Float[Array, ""]
    scalar: bool = eqx.field(static=True)  # a shape

    @property
    def name(self) -> str:
        return "scalar_rmsprop" if self.scalar else "rmsprop"

    def start(self, params: Float[Array, " params"]) -> Float[Array, " nu"]:
        return jnp.full((1 if self.scalar else params.shape[0],), self.initial, params.dtype)

    def _root(self, nu: Float[Array, " nu"]) -> Float[Array, " nu"]:
        return jnp.sqrt(jnp.maximum(nu, 0) + self.eps.astype(nu.dtype))

    def rates(self, nu: Float[Array, " nu"], eta: Float[Array, " params"]) -> Float[Array, " params"]:
        return self.rate.astype(eta.dtype) * eta / self._root(nu)

    def product(self, u: Float[Array, " params"], v: Float[Array, " params"]) -> Float[Array, " nu"]:
        return jnp.sum(u * v)[None] if self.scalar else u * v

    def slope(self, nu, eta, u, v) -> Float[Array, " nu"]:
        # P = sqrt(nu + eps)/(eta rate), so d(2 P)/d nu = 1/(eta rate sqrt(nu + eps)). If eta = 0 it is 0.
        weight = jnp.where(eta > 0, u * v / jnp.where(eta > 0, eta, 1), 0) / self.rate.astype(nu.dtype)
        return (jnp.sum(weight)[None] if self.scalar else weight) / self._root(nu)


class ScalarRmsState(NamedTuple):
    """The state of `scalar_rmsprop`: the running average of |g|^2."""

    nu: Float[Array, ""]


def scalar_rmsprop(
    rate: Any, decay: float = 0.99, eps: float = 0.0, initial_scale: float = 0.0
) -> optax.GradientTransformation:
    """RMSProp with a single number for all parameters: nu <- decay nu + (1 - decay) |g|^2, w -= rate g/sqrt(nu + eps).

    The simplest optimizer that adapts its step. `CentralFlow` describes it if initial_scale or eps is positive (else
    the first steps are infinite); `Descent(..., rate=rate)` runs it.

    Arguments:
        rate: learning rate.
        decay: decay of the average, in (0, 1).
        eps: added under the square root.
        initial_scale: nu at the start.

    Example:
        >>> optimizer = js.dynamics.scalar_rmsprop(0.1, decay=0.9, initial_scale=1.0)
        >>> updates, _ = optimizer.update(jnp.array([3.0, 4.0]), optimizer.init(jnp.zeros(2)))
        >>> print(f"{updates[0]:.3f}")
        -0.163

    Source: Cohen et al. 2025, arXiv:2410.24206, section 4.
    """

    def init(params: Any) -> ScalarRmsState:
        return ScalarRmsState(jnp.asarray(initial_scale, jnp.result_type(*jax.tree.leaves(params))))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        square = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(updates))
        nu = decay * state.nu + (1 - decay) * square
        return jax.tree.map(lambda leaf: -rate * leaf / jnp.sqrt(nu + eps), updates), ScalarRmsState(nu)

    return optax.GradientTransformation(init, update)


SHAPES = (2,), (1, 2), (1, 1, 1, 2)  # shapes of biases, matrices and convolutions, which masks distinguish


def read_preconditioner(optimizer: Optimizer) -> AbstractPreconditioner:
    """The preconditioner of an optimizer with a known central flow.

    Raises:
        ValueError: the optimizer is a different one; the message names the known ones.
    """
    with _at_once(optimizer):
        squares = _squares(optimizer)
        starts = None if squares is None else concrete(squares.initial + squares.eps)
    if squares is not None:
        if starts is not None and starts < 1e-25:  # an eps of 0 is found smaller than that, from rounding
            raise ValueError(
                f"{optimizer.name} starts with nu = eps = 0, where its steps are infinite: give initial_scale= or eps="
            )
        return squares
    rate = descent_rate(optimizer)
    if rate is None:
        raise ValueError(
            "the central flow is known for gradient descent (optax.sgd(rate)), dynamics.scalar_rmsprop or "
            "optax.rmsprop, without momentum or schedules; not for this optimizer "
            f"({optimizer.name}): js.Descent runs it"
        )
    return Plain(rate)


def either(
    optimizer: optax.GradientTransformation | None, rate: Any
) -> tuple[Optimizer, None] | tuple[None, Float[Array, ""]]:
    """An optimizer, or the rate of gradient descent. Raises ValueError unless exactly one is given."""
    if (optimizer is None) == (rate is None):
        raise ValueError("give exactly one of an optimizer, such as optax.sgd(0.1), and rate=")
    return (None, one_number(rate, "rate")) if optimizer is None else (Optimizer(optimizer), None)


def descent_rate(optimizer: Optimizer) -> Float[Array, ""] | None:
    """The rate of an optimizer that is plain gradient descent; None for others."""
    with jax.ensure_compile_time_eval():
        kept, error = attempt(optimizer.init, jnp.ones(1))
        if error is not None or jax.tree.leaves(kept):  # momentum, or a count for a schedule
            return None
        plain, error = attempt(_proportional, optimizer.known())
    if error is not None or not plain:  # an optimizer that needs other parameters raises
        return None
    with _at_once(optimizer):
        rate = -_update(optimizer, jnp.ones(1), jnp.ones(1))[0][0]
    known = concrete(rate)
    return None if known is not None and not (np.isfinite(known) and known > 0) else rate


def _at_once(optimizer: Optimizer) -> contextlib.AbstractContextManager[Any]:
    """A context that evaluates an untraced optimizer eagerly, even inside a trace."""
    return contextlib.nullcontext() if optimizer.is_traced else jax.ensure_compile_time_eval()


def _update(optimizer: Any, gradient: Array, params: Array, nu: Any = None) -> tuple[Any, Any]:
    state = optimizer.init(params)
    if nu is not None:
        state = jax.tree.map(lambda leaf: jnp.full_like(leaf, nu), state)
    return optimizer.update(gradient, state, params)


def _proportional(optimizer: Optimizer) -> bool:
    """True if a step is -rate g for small and large gradients, and 0 for zero gradient: no decay, no clipping."""
    params, gradient = jnp.array([1.0, -2.0]), jnp.array([1.0, 0.5])
    step = lambda size, shape: _update(optimizer, size * gradient.reshape(shape), params.reshape(shape))[0].ravel()
    rate = -step(1e-3, SHAPES[0])[0] / 1e-3
    close = lambda size, shape: bool(jnp.allclose(step(size, shape), -rate * size * gradient, rtol=1e-4, atol=0))
    return bool(rate != 0) and all(close(size, shape) for size in (0.0, 1e-3, 1e6) for shape in SHAPES)


def _squares(optimizer: Optimizer) -> Squares | None:
    """The RMSProp revealed by an optimizer's responses, None for others."""
    with jax.ensure_compile_time_eval():
        known = optimizer.known()
        step, error = attempt(_update, known, jnp.array([1.0, 0.0]), jnp.array([1.0, -2.0]))
        if error is not None:  # an optimizer that needs other parameters is not RMSProp
            return None
        up = step[0][0] > 0

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            updates, state = known.update(updates, state, params)
            return jax.tree.map(lambda u: jnp.where(up, -u, u), updates), state  # a stand-in number may replace -rate

        flat = optax.GradientTransformation(known.init, update)
        found = _numbers_of_squares(flat)
        if found is None or not _plain_squares(flat, found):
            return None
    return _numbers_of_squares(optimizer)


def _plain_squares(optimizer: optax.GradientTransformation, known: Squares) -> bool:
    """True if the optimizer neither moves without a gradient (decay) nor clips a large one."""
    decay, params, nu = 1 / (1 + known.lag), jnp.array([1.0, -2.0]), 0.2
    large = 1e6 * jnp.array([0.7, -0.4])
    follows = decay * nu + (1 - decay) * (jnp.sum(large**2) if known.scalar else large**2)
    expected = -known.rate * large / jnp.sqrt(follows + known.eps)
    step = lambda g, shape: _update(optimizer, g.reshape(shape), params.reshape(shape), nu)[0].ravel()
    moves = lambda shape: jnp.allclose(step(large, shape), expected, rtol=1e-3, atol=0)
    return all(bool(moves(shape) & jnp.all(step(jnp.zeros(2), shape) == 0)) for shape in SHAPES)


def _numbers_of_squares(optimizer: Any) -> Squares | None:
    """The numbers of RMSProp, from the running average in the state and the responses to known gradients."""
    params = jnp.array([1.0, -2.0])
    nodes = jax.tree.leaves(optimizer.init(params))
    if len(nodes) != 1 or not jnp.issubdtype(jnp.result_type(nodes[0]), jnp.floating):
        return None
    scalar = jnp.ndim(nodes[0]) == 0
    average = lambda g, nu: jnp.ravel(jax.tree.leaves(_update(optimizer, g, params, nu)[1])[0])[0]
    step = lambda g, nu: -jnp.ravel(_update(optimizer, g, params, nu)[0])[0]
    one, none = jnp.array([1.0, 0.0]), jnp.zeros(2)
    decay = average(none, 1.0)
    # After a gradient of 1, nu becomes decay nu + (1 - decay), and the step divides by its square root: (rate/step)^2 =
    # nu + eps, at two values of nu.
    low, high = (step(one, nu) ** -2 for nu in (1.0, 3.0))
    rate = jnp.sqrt(2 * decay / (high - low))
    # A gradient of 1 turns nu = 1 into decay + (1 - decay).
    eps = jnp.maximum(rate**2 * low - (decay + 1 - decay), 0)
    initial = jnp.ravel(nodes[0])[0]
    g, nu = jnp.array([0.7, -0.4]), 0.2
    square = jnp.sum(g**2) if scalar else g**2
    follows = decay * nu + (1 - decay) * square
    expected = -rate * g / jnp.sqrt(follows + eps)
    found, new = _update(optimizer, g, params, nu)
    if concrete(rate) is not None:
        close = jnp.allclose(found, expected, rtol=1e-3) and jnp.allclose(jax.tree.leaves(new)[0], follows, rtol=1e-3)
        if not close:
            return None
    eps = jnp.where(eps < 1e-4, _small(step, rate, decay), eps)
    return Squares(rate, (1 - decay) / decay, eps, initial, bool(scalar))


def _small(step: Any, rate: Array, decay: Array) -> Array:
    """An eps that rounding hides at nu = 1, from the step for a small gradient at nu = 0."""
    g = 1e-10
    root = rate * g / step(jnp.array([g, 0.0]), 0.0)
    # At nu = 0 the divisor is the square root of (1 - decay) g^2 + eps.
    return jnp.maximum(root**2 - (1 - decay) * g**2, 0)
