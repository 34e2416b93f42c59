"""The infinite-width limit that describes a network."""

import enum
from typing import NamedTuple

import numpy as np

from .. import nets
from .._checks import concrete, describe
from .._core import Problem, require_problem
from .lazy._infinite_width import InfiniteWidth
from .wide import dmft
from .wide._rich_limit import RichLimit


class WidthLimit(enum.Enum):
    """The behavior of a network as its width grows, with the powers of the width in its normal form held fixed.

    Example:
        >>> js.dynamics.WidthLimit.RICH.value
        'features move'
    """

    RICH = "features move"
    LAZY = "the kernel stands still"
    FROZEN = "nothing moves in a time of order 1"
    UNSTABLE = "all moves in a time that vanishes"


class Limits(NamedTuple):
    """The result of `js.limits`; exponents are logarithms to base N, the width, so they include prefactors.

    Attributes:
        kind: the kind of limit.
        richness: 1/(gamma m_L N sigma_L); features move by about its square times the motion of the outputs.
        richness_exponent: 0 in the rich limit, -1/2 in the lazy one.
        speed_exponent: exponent of the initial NTK over x . x'; 0 where outputs move in a time of order 1.
        width: the width N.
    """

    kind: WidthLimit
    richness: float
    richness_exponent: float
    speed_exponent: float
    width: int

    @property
    def dynamics(self) -> RichLimit | InfiniteWidth:
        """The dynamics of this limit; raises ValueError if outputs do not move in a time of order 1."""
        if self.kind in (WidthLimit.FROZEN, WidthLimit.UNSTABLE):
            raise ValueError(
                f"there is no limit in which {self.kind.value}: the speed is N^{self.speed_exponent:.2f} at width "
                f"{self.width}; multiply the rates eta by N^{-self.speed_exponent:.2f}, and call limits again"
            )
        return InfiniteWidth() if self.kind is WidthLimit.LAZY else RichLimit()

    def __repr__(self) -> str:
        return (
            f"Limits({self.kind.name}, {self.kind.value}: at width {self.width} the richness is {self.richness:.3g} = "
            f"N^{self.richness_exponent:.2f}, the speed N^{self.speed_exponent:.2f})"
        )


def limits(problem: Problem) -> Limits:
    """The infinite-width limit that describes a problem's network, and the exponents that determine it.

    A single network has one width and no limit, so each of its numbers is read as a power of the width, and the nearest
    limit is taken. The border between rich and lazy is a richness of N^(-1/4); a speed below N^(-1/2) is frozen and one
    above N^(1/2) unstable.

    Arguments:
        problem: a problem with a dense network of two or more neurons.

    Example:
        >>> data = jnp.eye(2), jnp.array([[1.0], [-1.0]])
        >>> for rule in (js.nets.Scaling.mup(), js.nets.Scaling.ntk()):
        ...     net = js.nets.MLP(
        ...         in_size=2, out_size=1, width_size=256, depth=2, activation="tanh",
        ...         scaling=rule, key=jax.random.key(0)
        ...     )
        ...     print(js.limits(js.Problem(net, *data)))
        Limits(RICH, features move: at width 256 the richness is 1 = N^0.00, the speed N^...)
        Limits(LAZY, the kernel stands still: at width 256 the richness is 0.0625 = N^-0.50, the speed N^...)

    Raises:
        TypeError: the network is not dense, its scaling is for Adam, or its hyperparameters are traced.
        ValueError: it has a single neuron.
    """
    require_problem(problem)
    net = problem.net
    if not isinstance(net, nets.AbstractDense) or len(net.weights) < 2:
        raise TypeError(f"limits are known for dense networks with hidden layers such as nets.MLP, got {describe(net)}")
    if net.scaling.optimizers is nets.Optimizers.ADAM:
        raise TypeError(
            "this network's scaling is for Adam, but limits are known for gradient descent only; give the network "
            "nets.Scaling.mup(), whose rates are for gradient descent"
        )
    form = dmft.normal_form(net)
    richness, speed = concrete(form.richness), concrete(dmft.initial_kernel(form))
    units = concrete(net.widths[-1] if net.units is None else net.units)
    if richness is None or speed is None or units is None:
        raise TypeError("limits need the numbers of a network, which are traced here; call it outside of jit and vmap")
    if units < 2:
        raise ValueError("the exponents of a network with a single neuron are not known; give it more neurons")
    # The speed may be 0, whose exponent is -inf.
    with np.errstate(divide="ignore"):
        powers = [float(np.log(number) / np.log(units)) for number in (richness, speed)]
    # Halfway between the exponents of the two limits, 0 and -1/2.
    kind = WidthLimit.RICH if powers[0] > -0.25 else WidthLimit.LAZY
    if powers[1] > 0.5:
        kind = WidthLimit.UNSTABLE
    elif powers[1] < -0.5:
        kind = WidthLimit.FROZEN
    return Limits(kind, float(richness), powers[0], powers[1], int(units))
