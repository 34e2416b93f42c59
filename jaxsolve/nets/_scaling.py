"""Hyperparameters of a network, one set per weight matrix."""

import enum
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete, require_finite, require_not_negative
from . import _laws
from ._laws import Fan, LayerShape


class Optimisers(enum.Enum):
    """Which optimisers a rule keeps stable as the width grows. Only mup depends on it."""

    ANY = "any optimiser"
    GRADIENT = "gradient flow and SGD"
    ADAM = "Adam"


def _spelt(optimisers: Optimisers, optimizers: Optimisers | None) -> Optimisers:
    if optimizers is None:
        return optimisers
    message = "the argument optimizers= is now optimisers=; the old name goes with the next version"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return optimizers


def _floats(value: Any, name: str) -> Float[Array, "..."]:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number or an array of numbers, got {value!r}") from error
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float)
    return jax.lax.convert_element_type(array, dtype)  # never weakly typed: a weak leaf would recompile


class Scaling(eqx.Module):
    r"""The hyperparameters of a network: one multiplier, sigma and eta per weight matrix, and one output scale gamma.

    A layer computes $z_{l+1} = m_l W_l \phi(z_l) + b_l$ with $W_l \sim N(0, \sigma_l^2)$, trained at the rate
    $\eta_l$; the network's output is $\gamma z_{L+1}$. All are array leaves: changing them never recompiles.

    The abc symmetry $(m, \sigma, \eta) \to (s m, \sigma/s, \eta/s^2)$ of any layer leaves every trajectory of the
    network's function unchanged.

    Arguments:
        multiplier: m, shape (layers,), counted from the input.
        sigma: standard deviation of the initial weights, shape (layers,).
        eta: learning rate, shape (layers,).
        gamma: output scale, any sign.
        bias_sigma: standard deviation of the initial biases.
        bias_eta: learning rate of the biases.
        optimisers: the optimisers this scaling is meant for.

    The class also names the rules from which a `Scaling` is made once the sizes of the layers are known
    (`Scaling.ntk()`, ...); networks accept either. Every rule takes `sigma=` and `eta=`, factors on the sigmas and etas
    that the rule prescribes (a number, or one per weight matrix).

    Raises:
        ValueError: a shape does not match, or a concrete sigma or eta is negative, NaN or infinite.
    """

    multiplier: Float[Array, " layers"]
    sigma: Float[Array, " layers"]
    eta: Float[Array, " layers"]
    gamma: Float[Array, ""]
    bias_sigma: Float[Array, ""]
    bias_eta: Float[Array, ""]
    optimisers: Optimisers = eqx.field(static=True)  # a property of the rule, not a number

    def __init__(
        self,
        multiplier: Any,
        sigma: Any,
        eta: Any,
        gamma: Any = 1.0,
        *,
        bias_sigma: Any = 0.0,
        bias_eta: Any = 1.0,
        optimisers: Optimisers = Optimisers.ANY,
        optimizers: Optimisers | None = None,  # the old spelling, for one more version
    ):
        self.multiplier = _floats(multiplier, "multiplier")
        self.sigma = _floats(sigma, "sigma")
        self.eta = _floats(eta, "eta")
        self.gamma = _floats(gamma, "gamma")
        self.bias_sigma = _floats(bias_sigma, "bias_sigma")
        self.bias_eta = _floats(bias_eta, "bias_eta")
        self.optimisers = _spelt(optimisers, optimizers)
        shapes = {"multiplier": self.multiplier.shape, "sigma": self.sigma.shape, "eta": self.eta.shape}
        if len(set(shapes.values())) != 1 or self.multiplier.ndim != 1 or self.multiplier.size == 0:
            raise ValueError(f"multiplier, sigma and eta must all have shape (layers,), got {shapes}")
        if self.gamma.shape or self.bias_sigma.shape or self.bias_eta.shape:
            raise ValueError("gamma, bias_sigma and bias_eta must be single numbers")
        _check_hyperparameters(self.sigma, self.eta, self.gamma, self.bias_sigma, self.bias_eta)
        require_finite(self.multiplier, "multiplier")

    def __len__(self) -> int:
        return self.multiplier.shape[0]

    @property
    def valid(self):
        """Whether every value is finite and no sigma or eta is negative, as a boolean array (for use inside traces)."""
        finite = jnp.all(jnp.isfinite(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(self)])))
        scales = (self.sigma, self.eta, self.bias_sigma, self.bias_eta)
        return finite & jnp.all(jnp.concatenate([scale.ravel() for scale in scales]) >= 0)

    @staticmethod
    def ntk(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0, gain: bool = False) -> "ScalingRule":
        """m = 1/sqrt(fan_in), sigma = 1, eta = 1 (Jacot et al.).

        With `gain=True` the multiplier of every layer after the first is multiplied by the activation's gain.
        """
        return ScalingRule(_laws.ntk_with_gain if gain else _laws.ntk, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def mean_field(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """`ntk` with m = 1/fan_in in the last layer and eta = width (Mei et al.).

        At eta = 1 (`eta=1/width`) the network is frozen: that is the column of Xu & Liu Ziyin's Table 1.
        """
        return ScalingRule(_laws.mean_field, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def standard(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """m = 1, sigma^2 = 1/fan_in, eta = 1."""
        return ScalingRule(_laws.standard, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def xavier(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """m = 1, sigma^2 = 2/(fan_in + fan_out), eta = 1 (Glorot & Bengio)."""
        return ScalingRule(_laws.xavier, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def kaiming(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """m = 1, sigma^2 = gain^2/fan_in with the activation's gain (2/fan_in for ReLU), eta = 1 (He et al.)."""
        return ScalingRule(_laws.kaiming, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def mup(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0, adam: bool = False) -> "ScalingRule":
        """m = 1, sigma^2 = 1/fan_in (last layer 1/fan_in^2), eta = (fan_out, 1, ..., 1, 1/fan_in) (Yang & Hu).

        These rates are for gradient flow and SGD. `adam=True` gives those for Adam: (1, 1/fan_in, ..., 1/fan_in).
        A `Descent` with the wrong kind of optimiser raises. The first rate of a convolution is its number of output
        channels, not its fan_out: the window does not grow with the width.
        """
        law, optimisers = (_laws.mup_adam, Optimisers.ADAM) if adam else (_laws.mup, Optimisers.GRADIENT)
        return ScalingRule(law, gamma, sigma=sigma, eta=eta, optimisers=optimisers)

    @staticmethod
    def lazy(alpha: Any, *, sigma: Any = 1.0, eta: Any = 1.0, gain: bool = False) -> "ScalingRule":
        """`ntk` with gamma = alpha and eta = alpha^-2 (Chizat et al., Geiger et al.).

        In a centred problem this is the flow of alpha (f - f_0) under the loss divided by alpha^2.

        Raises:
            ValueError: alpha is not positive.
        """
        known = concrete(alpha)
        if known is not None and not (known > 0).all():
            raise ValueError(f"lazy needs alpha > 0, got {alpha}")
        law = _laws.ntk_with_gain if gain else _laws.ntk
        return ScalingRule(law, alpha, sigma=sigma, eta=_floats(eta, "eta") / _floats(alpha, "alpha") ** 2)

    @staticmethod
    def from_exponents(
        *,
        c_gamma: float,
        c_u: float,
        c_w: float,
        c_eta_u: float,
        c_eta_w: float,
        kappa: Any = None,
        gamma: Any = 1.0,
        sigma: Any = 1.0,
        eta: Any = 1.0,
    ) -> "ScalingRule":
        """m = 1; gamma, sigma^2 and eta are powers of kappa (Xu & Liu Ziyin, section 3 and Table 1).

        gamma ~ kappa^c_gamma; the last weight matrix (u) has *variance* kappa^c_u and rate kappa^c_eta_u, every other
        one (w) has variance kappa^c_w and rate kappa^c_eta_w. `kappa=None` takes the width.
        """
        law = _laws.PowerLaw(float(c_gamma), float(c_u), float(c_w), float(c_eta_u), float(c_eta_w))
        return ScalingRule(law, gamma, sigma=sigma, eta=eta, kappa=kappa)


def _check_hyperparameters(sigma, eta, gamma, bias_sigma, bias_eta) -> None:
    require_not_negative(sigma, "sigma")
    require_not_negative(eta, "eta")
    require_not_negative(bias_sigma, "bias_sigma")
    require_not_negative(bias_eta, "bias_eta")
    require_finite(gamma, "gamma")


class ScalingRule(eqx.Module):
    """Makes a `Scaling` once the sizes of the layers and the activation's gain are known.

    Usually made by `Scaling.ntk()` and its siblings. `sigma` and `eta` multiply what the law prescribes; they may be
    one number or one per weight matrix. `with_bias` sets the scales of biases. A rule of your own is `ScalingRule(law)`
    with `law(layer)` returning the multiplier, sigma, eta and the factor on gamma of one `LayerShape`. Of padded widths
    (`Padded`) its sizes are arrays that may be traced: it then takes their roots by `**`, not by `math.sqrt`.

    Raises:
        ValueError: a concrete sigma or eta is negative, NaN or infinite.
    """

    gamma: Float[Array, ""]
    sigma: Float[Array, "..."]
    eta: Float[Array, "..."]
    bias_sigma: Float[Array, ""]
    bias_eta: Float[Array, ""]
    kappa: Float[Array, ""] | None
    law: Callable[[LayerShape], _laws.Prescription] = eqx.field(static=True)  # a function of static sizes
    optimisers: Optimisers = eqx.field(static=True)  # a property of the law

    def __init__(
        self,
        law: Callable[[LayerShape], _laws.Prescription],
        gamma: Any = 1.0,
        *,
        sigma: Any = 1.0,
        eta: Any = 1.0,
        kappa: Any = None,
        optimisers: Optimisers = Optimisers.ANY,
        optimizers: Optimisers | None = None,  # the old spelling, for one more version
    ):
        self.law = law
        self.gamma = _floats(gamma, "gamma")
        self.sigma = _floats(sigma, "sigma")
        self.eta = _floats(eta, "eta")
        self.bias_sigma = _floats(0.0, "bias_sigma")
        self.bias_eta = _floats(1.0, "bias_eta")
        self.kappa = None if kappa is None else _floats(kappa, "kappa")
        self.optimisers = _spelt(optimisers, optimizers)
        _check_hyperparameters(self.sigma, self.eta, self.gamma, self.bias_sigma, self.bias_eta)

    def with_bias(self, *, sigma: Any = 0.0, eta: Any = 1.0) -> "ScalingRule":
        """The same rule with biases drawn from N(0, sigma^2) and trained at the rate eta."""
        new = (_floats(sigma, "bias sigma"), _floats(eta, "bias eta"))
        require_not_negative(new[0], "bias sigma")
        require_not_negative(new[1], "bias eta")
        return eqx.tree_at(lambda rule: (rule.bias_sigma, rule.bias_eta), self, new)

    def __call__(
        self, fans: Sequence[tuple[Fan, Fan]], gain: float = 1.0, *, windows: Sequence[int] | None = None
    ) -> Scaling:
        """Returns the `Scaling` of a network.

        Arguments:
            fans: (fan_in, fan_out) of every weight matrix, counted from the input; of a convolution, channels times
                the pixels of its window.
            gain: gain of the activation between them.
            windows: those pixels, 1 for a dense layer; None if all are dense.

        Raises:
            ValueError: sigma or eta was given per matrix, but not one for each of these matrices.
        """
        layers = len(fans)
        for name, value in (("sigma", self.sigma), ("eta", self.eta)):
            if value.shape not in ((), (layers,)):
                raise ValueError(
                    f"{name} must be one number or one per weight matrix: this network has {layers}, "
                    f"got shape {value.shape}"
                )
        width = fans[-1][0]
        kappa = 1.0 * width if self.kappa is None else self.kappa
        prescriptions = [
            self.law(LayerShape(fan_in, fan_out, index, layers, width, gain, kappa, window))
            for index, ((fan_in, fan_out), window) in enumerate(zip(fans, windows or (1,) * layers, strict=True))
        ]
        dtype = np.result_type(*(leaf.dtype for leaf in jax.tree.leaves(self)))
        rule = jax.tree.map(lambda leaf: leaf.astype(dtype), self)
        multiplier, sigma, eta, gamma = (
            jnp.stack([jnp.asarray(value, dtype) for value in values]) for values in zip(*prescriptions, strict=True)
        )
        return Scaling(
            multiplier,
            sigma * rule.sigma,
            eta * rule.eta,
            gamma[-1] * rule.gamma,
            bias_sigma=rule.bias_sigma,
            bias_eta=rule.bias_eta,
            optimisers=self.optimisers,
        )
