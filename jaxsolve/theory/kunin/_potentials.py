r"""Potentials: what gradient flow minimizes among all interpolants, in addition to the loss.

For some networks, the function beta moves as a mirror flow up to a rescaling of time,
$\frac{d}{dt} \nabla\Phi(\beta) = -s(t) X^\top (X\beta - y)$ with $s > 0$. Then $\nabla\Phi(\beta)$ never leaves the row
space of X, and beta ends at the minimizer of $\Phi$ among all solutions of $X\beta = y$, if it converges to one.

To read beta and the rates off a network with multipliers m, output scale gamma and rates eta, take the weights
$m_l W_l$ and the rates $m_l^2 \eta_l$. beta is the product of the weights, and f(x) = gamma beta.x, so the data are
(gamma X, y), or (gamma X, y + f_0) for a centered problem. Constants in front of the loss do not matter.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._checks import concrete
from ..._numerics import nonzero, norm, safe_hypot, safe_sqrt
from .._arguments import as_floats, as_positive
from ._interpolants import Interpolants


class AbstractPotential(eqx.Module):
    """A convex function Phi of beta whose gradient is zero at the start and moves in the row space of the data.

    The start is therefore its minimum. The exception is `SingleNeuronPotential` with `crossed=True`: there Phi is for
    the path after the crossing, and its gradient is in the row space from then on.

    Example:
        >>> class Quadratic(js.theory.AbstractPotential):  # of linear regression from beta = 0
        ...     def value(self, beta):
        ...         return jnp.sum(beta**2) / 2
        ...     def mirror_map(self, beta):
        ...         return beta
        ...     def inverse_mirror_map(self, dual):
        ...         return dual
        ...     def minimize(self, interpolants):
        ...         return interpolants.shortest
        >>> print(js.theory.implicit_bias(Quadratic(), jnp.array([[1.0, 2.0]]), jnp.array([5.0])).round(3))
        [1. 2.]
    """

    @abc.abstractmethod
    def value(self, beta: Float[Array, " d"]) -> Float[Array, ""]:
        """Phi(beta), up to a constant."""

    @abc.abstractmethod
    def mirror_map(self, beta: Float[Array, " d"]) -> Float[Array, " d"]:
        """The gradient of Phi; zero at the start (except with `crossed=True`)."""

    @abc.abstractmethod
    def inverse_mirror_map(self, dual: Float[Array, " d"]) -> Float[Array, " d"]:
        """The beta at which the gradient of Phi is `dual`."""

    @abc.abstractmethod
    def minimize(self, interpolants: Interpolants) -> Float[Array, " d"]:
        """The minimizer of Phi among the interpolants; NaN if no solver found it."""


class AbstractRadialPotential(AbstractPotential):
    r"""Phi(beta) = g(|beta|) - c.beta, with $c = \pm g'(|\beta_0|) \beta_0/|\beta_0|$ from the start beta_0.

    Its minimizer among the interpolants is beta = X^+ y + t (I - X^+ X) beta_0: the shortest interpolant, plus the part
    of the start outside the row space, stretched by a number t. (t = 1 is the lazy limit.) A subclass defines the
    function g and what follows from it; `js.theory.DeepPotential` is a short example.

    Example:
        >>> potential = js.theory.DeepPotential(jnp.array([1.0, 0.0]), depth=1)
        >>> isinstance(potential, js.theory.AbstractRadialPotential)
        True
    """

    beta_0: eqx.AbstractVar[Float[Array, " d"]]

    @abc.abstractmethod
    def profile(self, r: Float[Array, ""]) -> Float[Array, ""]:
        """g(r) - g(0)."""

    @abc.abstractmethod
    def stiffness(self, r: Float[Array, ""]) -> Float[Array, ""]:
        """g'(r)/r."""

    @abc.abstractmethod
    def compliance(self, slope: Float[Array, ""], excess: Float[Array, ""]) -> Float[Array, ""]:
        """r/g'(r) from the slope g'(r), and from the excess g'(r)^2 - |c|^2 where that difference would cancel."""

    @abc.abstractmethod
    def sign(self) -> Float[Array, ""]:
        """The sign of c."""

    @abc.abstractmethod
    def stretch(
        self, shortest: Float[Array, ""], along: Float[Array, ""], across: Float[Array, ""]
    ) -> Float[Array, ""]:
        """t, from |X^+ y| and the norms of beta_0 inside (`along`) and outside (`across`) the row space."""

    def tilt(self) -> Float[Array, " d"]:
        """c: the linear term, which makes the start the minimum (except with `crossed=True`)."""
        return self.sign() * self.stiffness(norm(self.beta_0)) * self.beta_0

    def value(self, beta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.profile(norm(beta)) - self.tilt().astype(beta.dtype) @ beta

    def mirror_map(self, beta: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.stiffness(norm(beta)) * beta - self.tilt().astype(beta.dtype)

    def inverse_mirror_map(self, dual: Float[Array, " d"]) -> Float[Array, " d"]:
        tilt = self.tilt().astype(dual.dtype)
        full = dual + tilt
        return self.compliance(norm(full), dual @ (dual + 2 * tilt)) * full

    def minimize(self, interpolants: Interpolants) -> Float[Array, " d"]:
        interpolants.require_start(self.beta_0)
        start = self.beta_0.astype(interpolants.x.dtype)
        unseen = interpolants.across(start)
        shortest = interpolants.shortest
        return shortest + self.stretch(norm(shortest), norm(start - unseen), norm(unseen)) * unseen


class SingleNeuronPotential(AbstractRadialPotential):
    r"""One hidden linear neuron, beta = a w, with any delta = eta_w a^2 - eta_a |w|^2 (Kunin et al., Theorem 3.1).

    With $\kappa = \sqrt{\delta^2 + 4 \eta_a \eta_w |\beta|^2}$, and $\kappa_0$ at the start,
    $\Phi = \frac{(\kappa - 2\delta) \sqrt{\kappa + \delta}}{3 \sqrt{\eta_a \eta_w}}
    - \sqrt{\kappa_0 - \delta} \frac{\beta_0 \cdot \beta}{|\beta_0|}$. This is equation (5), printed for rates of 1; the
    rates enter through kappa. A constant that would swamp the rest at large delta is left out.

    The theorem assumes that beta never passes through zero. The gradient of Phi is
    $\sqrt{2 \eta_a}\, \mathrm{sgn}(a) w$, and w itself never leaves w_0 + row space. If beta passes through zero (a
    changes sign, possible only for delta < 0), the theorem therefore holds with the opposite sign of the linear term.
    `crossed` states that it does.

    Arguments:
        beta_0: beta at the start.
        delta: Kunin's delta, conserved. Upstream (delta > 0) the flow tends to be lazy, downstream to be rich.
        eta_a, eta_w: rates of the two layers.
        crossed: whether a changes sign during training.

    Example:
        >>> x, y, start = jnp.array([[1.0, 2.0]]), jnp.array([5.0]), jnp.array([1.0, 0.5])
        >>> for delta in (100.0, -100.0):  # upstream: lazy, downstream: rich
        ...     beta = js.theory.implicit_bias(js.theory.SingleNeuronPotential(start, delta), x, y)
        ...     print(*(f"{value:.2f}" for value in beta))
        1.60 1.70
        2.50 1.25

    Reference:
        @inproceedings{kunin2024get, title={Get rich quick: exact solutions reveal how unbalanced initializations
          promote rapid feature learning}, author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and
          Ganguli}, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}}

    Raises:
        ValueError: a value is not finite, a rate is not positive, beta_0 is zero for delta <= 0 (its direction is then
            unknown), or `crossed` is True for delta >= 0.
    """

    beta_0: Float[Array, " d"]
    delta: Float[Array, ""]
    eta_a: Float[Array, ""]
    eta_w: Float[Array, ""]
    crossed: Bool[Array, ""]

    def __init__(
        self,
        beta_0: Float[ArrayLike, " d"],
        delta: Float[ArrayLike, ""],
        eta_a: Float[ArrayLike, ""] = 1.0,
        eta_w: Float[ArrayLike, ""] = 1.0,
        *,
        crossed: Bool[ArrayLike, ""] = False,
    ):
        self.beta_0, self.delta = as_floats(beta_0, "beta_0"), as_floats(delta, "delta")
        self.eta_a, self.eta_w = as_positive(eta_a, "eta_a"), as_positive(eta_w, "eta_w")
        self.crossed = jnp.asarray(crossed)
        known, start, crossing = concrete(self.delta), concrete(self.beta_0), concrete(self.crossed)
        if known is not None and start is not None and not start.any() and known <= 0:
            raise ValueError(
                f"beta_0 must not be zero for delta <= 0 (got {known}): the direction of w is then unknown"
            )
        if known is not None and crossing is not None and crossing and known >= 0:
            raise ValueError(f"a changes its sign for delta < 0 only, got crossed=True and delta = {known}")

    @staticmethod
    def from_weights(
        a: Float[ArrayLike, ""],
        w: Float[ArrayLike, " d"],
        eta_a: Float[ArrayLike, ""] = 1.0,
        eta_w: Float[ArrayLike, ""] = 1.0,
        *,
        crossed: Bool[ArrayLike, ""] = False,
    ) -> "SingleNeuronPotential":
        """The potential from the weights at the start, multipliers included: m_2 a, m_1 w, m_2^2 eta_a, m_1^2 eta_w."""
        a, w = as_floats(a, "a"), as_floats(w, "w")
        eta_a, eta_w = as_positive(eta_a, "eta_a"), as_positive(eta_w, "eta_w")
        a, eta_a, eta_w = (number.astype(w.dtype) for number in (a, eta_a, eta_w))
        # delta is a difference of squares, taken as a product.
        up, down = jnp.sqrt(eta_w) * jnp.abs(a), jnp.sqrt(eta_a) * norm(w)
        return SingleNeuronPotential(a * w, (up - down) * (up + down), eta_a, eta_w, crossed=crossed)

    def _sizes(self, r: Float[Array, ""]) -> tuple[Array, Array, Array, Array, Array]:
        """delta, |delta|, 2 sqrt(eta_a eta_w), kappa and kappa + |delta|, in the dtype of r."""
        delta, eta_a, eta_w = (number.astype(r.dtype) for number in (self.delta, self.eta_a, self.eta_w))
        size = jnp.where(delta >= 0, delta, -delta)  # |delta|, with derivative 1 at 0 as in the branches below
        twice = 2 * jnp.sqrt(eta_a) * jnp.sqrt(eta_w)
        kappa = safe_hypot(delta, twice * r)
        return delta, size, twice, kappa, kappa + size

    def profile(self, r: Float[Array, ""]) -> Float[Array, ""]:
        delta, size, twice, kappa, high = self._sizes(r)
        root = safe_sqrt(nonzero(high))
        # With A^2 = kappa + delta and B^2 = 2 delta: (A - B)(A^2 + AB - B^2/2) for delta >= 0, where A - B is small.
        least = safe_sqrt(2 * jnp.where(delta >= 0, delta, 0))
        lazy = twice * r * (r / nonzero(high)) * (kappa + root * least) / (root + least)
        rich = r * (kappa + 2 * size) / root
        return 2 * jnp.where(delta >= 0, lazy, rich) / 3

    def stiffness(self, r: Float[Array, ""]) -> Float[Array, ""]:
        # sqrt(kappa - delta)/r, where (kappa - delta)(kappa + delta) = (2 sqrt(eta_a eta_w) r)^2.
        delta, _, twice, _, high = self._sizes(r)
        root = safe_sqrt(nonzero(high))
        return jnp.where(delta >= 0, twice / root, root / nonzero(r))

    def compliance(self, slope: Float[Array, ""], excess: Float[Array, ""]) -> Float[Array, ""]:
        delta, size, twice, _, _ = self._sizes(jnp.zeros_like(slope))
        # At large negative delta, slope^2 - 2 |delta| cancels; its small terms are the excess and |c|^2 - 2 |delta|,
        # which is kappa_0 - |delta|.
        start = norm(self.beta_0).astype(slope.dtype)
        high = self._sizes(start)[-1]
        low = (twice * start) * (twice * start / nonzero(high))
        squared = jnp.where(delta >= 0, slope**2 + 2 * size, jnp.maximum(excess + low, 0))
        return safe_sqrt(squared) / twice

    def sign(self) -> Float[Array, ""]:
        return jnp.where(self.crossed, -1, 1).astype(self.beta_0.dtype)

    def stretch(
        self, shortest: Float[Array, ""], along: Float[Array, ""], across: Float[Array, ""]
    ) -> Float[Array, ""]:
        """In closed form: s = r/g' solves a quadratic equation in s^2, because kappa = 4 eta_a eta_w s^2 - delta.

        For one sample in two dimensions this is the solution of Kunin et al., A.4.
        """
        start = safe_hypot(along, across)
        delta, size, twice, _, high = self._sizes(start)
        reach = nonzero(start)
        cos, sin = along / reach, across / reach
        low = (twice * start) * (twice * start / nonzero(high))
        # 2 delta + |c_across|^2, written so that a large delta < 0 does not cancel.
        linear = 2 * jnp.where(delta >= 0, size, -size * cos**2) + low * sin**2
        constant = 2 * twice * shortest
        # hypot + linear: where linear < 0, as constant^2/(hypot - linear), which does not cancel.
        root = safe_hypot(linear, constant) + jnp.where(linear >= 0, linear, -linear)
        root = jnp.where(linear >= 0, root, constant * (constant / nonzero(root)))
        steep = safe_sqrt(nonzero(high))
        pull = jnp.where(delta >= 0, 1 / steep, steep / (twice * reach))  # g'(|beta_0|)/(2 sqrt(eta_a eta_w) |beta_0|)
        return self.sign().astype(start.dtype) * safe_sqrt(root / 2) * pull
