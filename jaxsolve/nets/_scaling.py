"""Hyperparameters of a network, one set per weight matrix."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete, real_array, require_finite, require_not_negative
from . import _laws
from ._laws import Fan, LayerShape


class Optimizers(enum.Enum):
    """The optimizers that a scaling is meant for: with these it stays stable as the width grows.

    Among the rules, only `js.nets.Scaling.mup` depends on it. `js.Descent` rejects an optimizer of the wrong kind, and
    flows reject a scaling for Adam.

    Example:
        >>> js.nets.Scaling.mup(adam=True).optimizers
        <Optimizers.ADAM: 'Adam'>
    """

    ANY = "any optimizer"
    GRADIENT = "gradient flow and SGD"
    ADAM = "Adam"


def floats(value: Any, name: str) -> Float[Array, "..."]:
    """A number or an array as floats, keeping a floating-point dtype; raises TypeError for anything else."""
    array = real_array(value, name)
    return jax.lax.convert_element_type(array, array.dtype)  # never weakly typed: a weak leaf would recompile


def check_hyperparameters(sigma, eta, gamma, bias_sigma, bias_eta) -> None:
    """Raises ValueError if a concrete value is not finite, or if one other than gamma is negative."""
    require_not_negative(sigma, "sigma")
    require_not_negative(eta, "eta")
    require_not_negative(bias_sigma, "bias_sigma")
    require_not_negative(bias_eta, "bias_eta")
    require_finite(gamma, "gamma")


class Scaling(eqx.Module):
    r"""The hyperparameters of a network: one multiplier, sigma and eta per weight matrix, and one output scale gamma.

    A layer computes $z_{l+1} = m_l W_l \phi(z_l) + b_l$ with $W_l \sim N(0, \sigma_l^2)$, trained at the rate
    $\eta_l$; the network's output is $\gamma z_{L+1}$. All are array leaves: changing them never recompiles.

    The abc symmetry $(m, \sigma, \eta) \to (s m, \sigma/s, \eta/s^2)$ of any layer leaves every trajectory of the
    network's function unchanged.

    A `Scaling` holds numbers. `Scaling.ntk()`, `Scaling.mup()` and their siblings return a `js.nets.ScalingRule`
    instead: the numbers depend on the layer sizes, so a rule becomes a `Scaling` only in the network that it is given
    to. Networks take either as `scaling=`; `net.scaling` is always a `Scaling`. Every rule takes `sigma=` and `eta=`,
    factors on the sigmas and etas that it prescribes (one number, or one per weight matrix).

    Arguments:
        multiplier: m, shape (layers,), counted from the input.
        sigma: standard deviation of the initial weights, shape (layers,).
        eta: learning rate, shape (layers,).
        gamma: output scale, any sign.

    Other Arguments:
        bias_sigma: standard deviation of the initial biases.
        bias_eta: learning rate of the biases.
        optimizers: the optimizers that this scaling is for.

    Example:
        >>> scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[0.1, 0.1], eta=[1.0, 0.5])
        >>> net = js.nets.TwoLayerLinear(in_size=4, width_size=100, scaling=scaling, key=jax.random.key(0))
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=4, width_size=100, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> print(net.scaling.multiplier)
        [0.5 0.1]

    Raises:
        ValueError: a shape does not match, or a concrete sigma or eta is negative, NaN or infinite.
        TypeError: an argument does not consist of real numbers.
    """

    multiplier: Float[Array, " layers"]
    sigma: Float[Array, " layers"]
    eta: Float[Array, " layers"]
    gamma: Float[Array, ""]
    bias_sigma: Float[Array, ""]
    bias_eta: Float[Array, ""]
    optimizers: Optimizers = eqx.field(static=True)  # a property of the rule, not a number

    def __init__(
        self,
        multiplier: Any,
        sigma: Any,
        eta: Any,
        gamma: Any = 1.0,
        *,
        bias_sigma: Any = 0.0,
        bias_eta: Any = 1.0,
        optimizers: Optimizers = Optimizers.ANY,
    ):
        self.multiplier = floats(multiplier, "multiplier")
        self.sigma = floats(sigma, "sigma")
        self.eta = floats(eta, "eta")
        self.gamma = floats(gamma, "gamma")
        self.bias_sigma = floats(bias_sigma, "bias_sigma")
        self.bias_eta = floats(bias_eta, "bias_eta")
        self.optimizers = optimizers
        shapes = {"multiplier": self.multiplier.shape, "sigma": self.sigma.shape, "eta": self.eta.shape}
        if len(set(shapes.values())) != 1 or self.multiplier.ndim != 1 or self.multiplier.size == 0:
            raise ValueError(f"multiplier, sigma and eta must all have shape (layers,), got {shapes}")
        if self.gamma.shape or self.bias_sigma.shape or self.bias_eta.shape:
            raise ValueError("gamma, bias_sigma and bias_eta must be single numbers")
        check_hyperparameters(self.sigma, self.eta, self.gamma, self.bias_sigma, self.bias_eta)
        require_finite(self.multiplier, "multiplier")

    def __len__(self) -> int:
        return self.multiplier.shape[0]

    @property
    def valid(self):
        """True if every value is finite and no sigma or eta is negative, as a boolean array (for use inside traces)."""
        finite = jnp.all(jnp.isfinite(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(self)])))
        scales = (self.sigma, self.eta, self.bias_sigma, self.bias_eta)
        return finite & jnp.all(jnp.concatenate([scale.ravel() for scale in scales]) >= 0)

    @staticmethod
    def ntk(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0, gain: bool = False) -> "ScalingRule":
        """The rule m = 1/sqrt(fan_in), sigma = 1, eta = 1 (Jacot et al.).

        With `gain=True` the multiplier of every layer after the first is multiplied by the activation's gain.

        Example:
            >>> scaling = js.nets.Scaling.ntk()([(4, 100), (100, 1)])  # fan_in and fan_out of each layer
            >>> print(scaling.multiplier, scaling.sigma, scaling.eta)
            [0.5 0.1] [1. 1.] [1. 1.]
        """
        return ScalingRule(_laws.ntk_with_gain if gain else _laws.ntk, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def mean_field(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """The rule `ntk` with m = 1/fan_in in the last layer and eta = width (Mei et al.).

        At eta = 1 (`eta=1/width`) the network is frozen, as in the mean-field column of Xu & Liu Ziyin's Table 1.

        Example:
            >>> scaling = js.nets.Scaling.mean_field()([(4, 100), (100, 1)])
            >>> print(scaling.multiplier, scaling.eta)
            [0.5  0.01] [100. 100.]
        """
        return ScalingRule(_laws.mean_field, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def standard(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """The rule m = 1, sigma^2 = 1/fan_in, eta = 1.

        Example:
            >>> print(js.nets.Scaling.standard()([(4, 100), (100, 1)]).sigma)
            [0.5 0.1]
        """
        return ScalingRule(_laws.standard, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def xavier(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """The rule m = 1, sigma^2 = 2/(fan_in + fan_out), eta = 1 (Glorot & Bengio).

        Example:
            >>> print(js.nets.Scaling.xavier()([(4, 28), (28, 4)]).sigma)
            [0.25 0.25]
        """
        return ScalingRule(_laws.xavier, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def kaiming(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0) -> "ScalingRule":
        """The rule m = 1, sigma^2 = gain^2/fan_in with the activation's gain (2/fan_in for ReLU), eta = 1 (He et al.).

        Example:
            >>> print(js.nets.Scaling.kaiming()([(8, 200), (200, 1)], js.nets.relu.gain).sigma.round(3))
            [0.5 0.1]
        """
        return ScalingRule(_laws.kaiming, gamma, sigma=sigma, eta=eta)

    @staticmethod
    def mup(gamma: Any = 1.0, *, sigma: Any = 1.0, eta: Any = 1.0, adam: bool = False) -> "ScalingRule":
        """The rule m = 1, sigma^2 = 1/fan_in (last layer 1/fan_in^2), eta = (fan_out, 1, ..., 1, 1/fan_in) (Yang & Hu).

        These rates are for gradient flow and SGD. `adam=True` gives the rates for Adam: (1, 1/fan_in, ..., 1/fan_in).
        A `js.Descent` with the wrong kind of optimizer raises, and so does a flow with the rates for Adam. The first
        rate of a convolution is its number of output channels, not its fan_out: the window does not grow with the
        width. `js.nets.Transformer` divides the query-key products by the square root of their size, not by the size
        itself as in muP, so they still grow in training.

        Example:
            >>> js.nets.Scaling.mup()([(4, 16), (16, 16), (16, 1)]).eta.tolist()
            [16.0, 1.0, 0.0625]
        """
        law, optimizers = (_laws.mup_adam, Optimizers.ADAM) if adam else (_laws.mup, Optimizers.GRADIENT)
        return ScalingRule(law, gamma, sigma=sigma, eta=eta, optimizers=optimizers)

    @staticmethod
    def lazy(alpha: Any, *, sigma: Any = 1.0, eta: Any = 1.0, gain: bool = False) -> "ScalingRule":
        """The rule `ntk` with gamma = alpha and eta = alpha^-2 (Chizat et al., Geiger et al.).

        In a centered problem this is the flow of alpha (f - f_0) under the loss divided by alpha^2: training is lazy at
        large alpha, and learns features at small alpha. Biases train at alpha^-2 too; `with_bias` sets their rate.

        Example:
            >>> scaling = js.nets.Scaling.lazy(2.0)([(4, 100), (100, 1)])
            >>> float(scaling.gamma), scaling.eta.tolist()
            (2.0, [0.25, 0.25])

        Raises:
            ValueError: alpha is not positive.
        """
        alpha = floats(alpha, "alpha")
        known = concrete(alpha)
        if known is not None and not (known > 0).all():
            raise ValueError(f"lazy needs alpha > 0, got {known.tolist()}")
        law = _laws.ntk_with_gain if gain else _laws.ntk
        slower = 1 / alpha**2
        return ScalingRule(law, alpha, sigma=sigma, eta=floats(eta, "eta") * slower).with_bias(eta=slower)

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
        """The rule m = 1, with powers of kappa for gamma, sigma^2 and eta (Xu & Liu Ziyin, section 3 and Table 1).

        gamma ~ kappa^c_gamma; the last weight matrix (u) has *variance* kappa^c_u and rate kappa^c_eta_u, and all
        others (w) have variance kappa^c_w and rate kappa^c_eta_w. `kappa=None` means the width.

        Example:
            >>> rule = js.nets.Scaling.from_exponents(c_gamma=-1.0, c_u=0.0, c_w=-2.0, c_eta_u=1.0, c_eta_w=1.0)
            >>> scaling = rule([(1, 16), (16, 1)])
            >>> float(scaling.gamma), scaling.sigma.tolist(), scaling.eta.tolist()
            (0.0625, [0.0625, 1.0], [16.0, 16.0])

        Reference:
            @inproceedings{xu2025three, author={Yizhou Xu and Liu Ziyin}, booktitle={ICLR}, year={2025},
              title={Three Mechanisms of Feature Learning in a Linear Network}, note={arXiv 2401.07085}}
        """
        law = _laws.PowerLaw(float(c_gamma), float(c_u), float(c_w), float(c_eta_u), float(c_eta_w))
        return ScalingRule(law, gamma, sigma=sigma, eta=eta, kappa=kappa)


class ScalingRule(eqx.Module):
    """A rule that makes a `js.nets.Scaling` once the sizes of the layers and the activation's gain are known.

    `Scaling.ntk()` and its siblings return such rules. Networks accept a rule as `scaling=` and call it. A custom rule
    is `ScalingRule(law)`.

    Arguments:
        law: `law(layer)` returns the `js.nets.Prescription` for one `js.nets.LayerShape`: multiplier, sigma, eta and a
            factor on gamma. With padded widths (`js.nets.Padded`) the sizes are arrays that may be traced: take roots
            with `**`, not with `math.sqrt`.
        gamma: output scale.
        sigma, eta: factors on what the law prescribes, one number or one per weight matrix. `with_bias` sets both for
            the biases.
        kappa: passed on to the law; None means the width.
        optimizers: the optimizers that the law is for.

    Example:
        >>> def law(layer):  # `standard`, with a read-out four times smaller
        ...     sigma = layer.fan_in**-0.5
        ...     return js.nets.Prescription(multiplier=1.0, sigma=sigma / 4 if layer.last else sigma, eta=1.0)
        >>> rule = js.nets.ScalingRule(law)
        >>> net = js.nets.MLP(in_size=4, out_size=1, width_size=16, depth=1, scaling=rule, key=jax.random.key(0))
        >>> net.scaling.sigma.tolist()
        [0.5, 0.0625]

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
    optimizers: Optimizers = eqx.field(static=True)  # a property of the law

    def __init__(
        self,
        law: Callable[[LayerShape], _laws.Prescription],
        gamma: Any = 1.0,
        *,
        sigma: Any = 1.0,
        eta: Any = 1.0,
        kappa: Any = None,
        optimizers: Optimizers = Optimizers.ANY,
    ):
        self.law = law
        self.gamma = floats(gamma, "gamma")
        self.sigma = floats(sigma, "sigma")
        self.eta = floats(eta, "eta")
        self.bias_sigma = floats(0.0, "bias_sigma")
        self.bias_eta = floats(1.0, "bias_eta")
        self.kappa = None if kappa is None else floats(kappa, "kappa")
        self.optimizers = optimizers
        check_hyperparameters(self.sigma, self.eta, self.gamma, self.bias_sigma, self.bias_eta)

    def with_bias(self, *, sigma: Any = None, eta: Any = None) -> "ScalingRule":
        """The same rule with biases drawn from N(0, sigma^2) and trained at the rate eta; None keeps the old value.

        Example:
            >>> rule = js.nets.Scaling.ntk().with_bias(sigma=0.5)
            >>> net = js.nets.MLP(
            ...     in_size=2, out_size=1, width_size=3, depth=1, bias=True, scaling=rule, key=jax.random.key(0)
            ... )
        """
        given = (self.bias_sigma if sigma is None else sigma, self.bias_eta if eta is None else eta)
        new = (floats(given[0], "bias sigma"), floats(given[1], "bias eta"))
        require_not_negative(new[0], "bias sigma")
        require_not_negative(new[1], "bias eta")
        return eqx.tree_at(lambda rule: (rule.bias_sigma, rule.bias_eta), self, new)

    def __call__(
        self,
        fans: Sequence[tuple[Fan, Fan]],
        gain: float = 1.0,
        *,
        windows: Sequence[int] | None = None,
        on_data: Sequence[int] = (0,),
    ) -> Scaling:
        """Returns the `Scaling` of a network.

        Arguments:
            fans: (fan_in, fan_out) of every weight matrix, counted from the input; for a convolution, channels times
                the pixels of its window.
            gain: gain of the activation between them.
            windows: the pixels of each window, 1 for a dense layer; None if all layers are dense.
            on_data: which matrices act on the data.

        Raises:
            ValueError: sigma or eta was given per matrix, but for another number of matrices.
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
            self.law(LayerShape(fan_in, fan_out, index, layers, width, gain, kappa, window, index in on_data))
            for index, ((fan_in, fan_out), window) in enumerate(zip(fans, windows or (1,) * layers, strict=True))
        ]
        # The arguments may have several dtypes; the scaling takes the widest.
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
            optimizers=self.optimizers,
        )
