"""Activation functions, each with its gain."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete, describe, is_real
from ._softplus import softplus as _plain_softplus


@dataclasses.dataclass(frozen=True)
class Activation:
    """An elementwise function phi, with what theory needs of it: its gain, and whether it is homogeneous.

    Attributes:
        name: the name it is looked up and printed by.
        fn: `fn(z)`, or `fn(z, parameter)` when there is a parameter.
        parameter: the shape parameter (slope of a leaky ReLU, beta of a softplus).
        homogeneous: whether phi(c z) = c phi(z) for c > 0. Homogeneous networks conserve a quantity per neuron.

    Example:
        >>> cube = js.nets.Activation("cube", lambda z: z**3)
        >>> print(f"{cube.gain:.4f}")  # 1/sqrt(E[z^6]) = 1/sqrt(15)
        0.2582
    """

    name: str
    fn: Callable[..., Array]
    parameter: float | None = None
    homogeneous: bool = False

    def __call__(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.fn(z) if self.parameter is None else self.fn(z, self.parameter)

    @property
    def linear(self) -> bool:
        """True if phi is the identity."""
        return self.fn is _identity

    @property
    def known(self) -> bool:
        """True if phi is defined in this module, so that its flags are complete; other functions have to be traced."""
        return self.fn in (_leaky_relu, _softplus) or any(self.fn is one.fn for one in _PLAIN)

    @property
    def kinked(self) -> bool:
        """True if phi has a kink, which homogeneous functions have unless they are linear."""
        return self.homogeneous and not self.linear

    @property
    def gain(self) -> float:
        """1 / sqrt(E[phi(z)^2]) for z ~ N(0, 1): the factor that keeps signals at unit variance from layer to layer."""
        return _gain(self)

    def __repr__(self) -> str:
        return self.name if self.parameter is None else f"{self.name}({self.parameter:g})"

    def __reduce__(self) -> Any:
        # By name where possible: functions that JAX compiles ahead of time, such as `jnp.tanh`, cannot be pickled.
        if any(self == one for one in _PLAIN):
            return find_activation, (self.name,)
        where = next((module for module in _OF_JAX if getattr(module, self.name, None) is self.fn), None)
        fn = self.fn if where is None else _OfJAX(where.__name__, self.name)
        return _made, (fn, self.name, self.parameter, self.homogeneous)


class _OfJAX(NamedTuple):
    """A function that JAX exports."""

    module: str
    name: str


def _made(fn: Any, name: str, parameter: float | None, homogeneous: bool) -> Activation:
    """Rebuilds a pickled activation."""
    known = getattr(importlib.import_module(fn.module), fn.name) if isinstance(fn, _OfJAX) else fn
    return Activation(name, known, parameter, homogeneous)


@functools.cache
def _gain(activation: Activation) -> float:
    # The trapezoidal rule converges exponentially under a Gaussian weight; a kink at 0 does no harm, as 0 is a node.
    # The grid ends at 13 standard deviations, where the weight is 2e-37.
    step = 0.01
    z = step * np.arange(-1300, 1301)
    # Compiled ahead of time, so that the gain is a number inside any transformation: `jax.ensure_compile_time_eval`
    # fails under vmap. Always in double precision, as the cached gain serves networks of either precision.
    with jax.enable_x64(True):
        phi = np.asarray(jax.jit(activation).lower(z).compile()(z), dtype=np.float64)
    second_moment = np.sum(phi**2 * np.exp(-(z**2) / 2)) * step / np.sqrt(2 * np.pi)
    return float(1 / np.sqrt(second_moment))


def _identity(z):
    return z


def _leaky_relu(z, slope):
    return jnp.where(z >= 0, z, slope * z)


def _gelu(z):
    # With erf, as in the closed form of `kernels.infinite`. JAX's default is the tanh approximation.
    return jax.nn.gelu(z, approximate=False)


def _softplus(z, beta):
    return _plain_softplus(beta * z) / beta


linear = Activation("linear", _identity, homogeneous=True)
relu = Activation("relu", jax.nn.relu, homogeneous=True)
tanh = Activation("tanh", jnp.tanh)
erf = Activation("erf", jax.scipy.special.erf)
sigmoid = Activation("sigmoid", jax.nn.sigmoid)
swish = Activation("swish", jax.nn.silu)
gelu = Activation("gelu", _gelu)
_PLAIN = (linear, relu, tanh, erf, sigmoid, swish, gelu)
_OF_JAX = (jnp, jax.nn, jax.lax, jax.scipy.special)


def leaky_relu(slope: float = 0.01) -> Activation:
    """phi(z) = z for z >= 0, slope z for z < 0.

    Example:
        >>> js.nets.leaky_relu(0.5)(jnp.array([-1.0, 2.0])).tolist()
        [-0.5, 2.0]

    Raises:
        TypeError: slope is not one finite number.
    """
    known = concrete(slope)
    if known is None or known.ndim or not is_real(known) or not np.isfinite(known):
        raise TypeError(f"slope must be one finite number that is not traced, got {describe(slope)}")
    return Activation("leaky_relu", _leaky_relu, parameter=float(slope), homogeneous=True)


def softplus(beta: float = 1.0) -> Activation:
    """phi(z) = log(1 + exp(beta z)) / beta. Geiger et al. use beta = 5 with gain 1.404.

    Example:
        >>> print(f"{js.nets.softplus(5.0).gain:.3f}")
        1.404

    Raises:
        ValueError, TypeError: beta is not one positive number.
    """
    known = concrete(beta)
    if known is None or known.ndim or not is_real(known):
        raise TypeError(f"softplus needs one number beta > 0 that is not traced, got {describe(beta)}")
    if not (known > 0 and np.isfinite(known)):
        raise ValueError(f"softplus needs beta > 0, got {beta}")
    return Activation("softplus", _softplus, parameter=float(beta))


def find_activation(activation: str | Activation | Callable[[Array], Array]) -> Activation:
    """Turns a name, an `Activation` or any elementwise function into an `Activation`.

    Raises:
        ValueError: the name is not known.
        TypeError: the argument is neither a name nor callable, or it holds arrays.
    """
    known = {a.name: a for a in (*_PLAIN, leaky_relu(), softplus())}
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in known:
            raise ValueError(f"unknown activation {activation!r}; known names are {sorted(known)}, or pass a function")
        return known[activation]
    if callable(activation):
        for one in _PLAIN:
            if one.fn is activation:  # jax.nn.relu is the relu
                return one
        try:
            # Activations are static fields of networks, part of the key of JAX's compilation cache: they need a hash.
            hash(activation)
        except TypeError as error:
            message = f"activation must be a function without arrays, which would not train, got {describe(activation)}"
            raise TypeError(message) from error
        return Activation(getattr(activation, "__name__", "custom"), activation)
    raise TypeError(f"activation must be a name, an Activation or a function, got {activation!r}")
