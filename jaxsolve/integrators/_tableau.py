r"""Exponential Runge-Kutta methods as tables of coefficients.

For $y' = A y + N(y)$ with $F = A y_n + N(y_n)$ and $D_j = N(U_j) - N(y_n)$, the stages and the step are

$U_i = y_n + c_i h \varphi_1(c_i h A) F + h \sum_{j<i} \sum_k a_{ijk} \varphi_k(c_i h A) D_j,$
$y(t_n + \theta h) = y_n + \theta h \varphi_1(\theta h A) F
    + h \sum_j \sum_k b_{jk} \theta^k \varphi_k(\theta h A) D_j.$

The second is the step at $\theta = 1$ and the dense output for $\theta < 1$: the exact solution of $y' = A y + p$,
where the weights b are the moments of the polynomial p (Hochbruck & Ostermann 2010, "Exponential integrators", section
2).
"""

import abc
import dataclasses

from jaxtyping import Array, Float


Number = float | Float[Array, ""]
# The sum over k of coefficient * phi_k.
Weight = tuple[tuple[int, Number], ...]


class AbstractTableau(abc.ABC):
    """One method.

    Attributes:
        order: order of the step, for stiff problems too except for `KROGSTAD`.
        error_order: power of h in the error estimate.
    """

    order: int
    error_order: int

    @property
    @abc.abstractmethod
    def evaluations(self) -> int:
        """Gradient evaluations of one step, excluding the one at its start."""

    @property
    def highest(self) -> int:
        """The largest k of the phi_k it uses."""
        numbers = self.at(0.0)
        weights = [weight for row in (*numbers.stages, numbers.step, numbers.error) for weight in row]
        return max([1, *(k for weight in weights for k, _ in weight)])

    @abc.abstractmethod
    def at(self, passed: Number) -> "ExponentialTableau":
        """The coefficients for a step; `passed` is its start over its end, both counted from the start of the run."""


@dataclasses.dataclass(frozen=True)
class ExponentialTableau(AbstractTableau):
    """A method with constant coefficients.

    Attributes:
        order, error_order: as for every method.
        nodes: c_i of all stages but the first, which is y_n.
        stages: the weights a_ij, one row per node, one weight per earlier node.
        step: the weights b_j.
        error: the weights of the error estimate, the difference of two methods.
    """

    order: int
    error_order: int
    nodes: tuple[Number, ...]
    stages: tuple[tuple[Weight, ...], ...]
    step: tuple[Weight, ...]
    error: tuple[Weight, ...]

    @property
    def evaluations(self) -> int:
        return len(self.nodes)

    def at(self, passed: Number) -> "ExponentialTableau":
        del passed
        return self


def _three_stages(last: Number) -> ExponentialTableau:
    # With c_2 = 1/2 the weight of the last stage, c_3^2/c_2, is 2 c_3^2. N is interpolated linearly between 0 and the
    # last node. The error estimate compares this with interpolation between 0 and 1/2, scaled as if the last node were
    # 2/3: for N = t^2/2 the difference is (c_3 - 1/2)/2 phi_2, which scales to phi_2/12 for every c_3.
    scale = 1 / (6 * last - 3)
    return ExponentialTableau(
        order=3,
        error_order=3,
        nodes=(1 / 2, last),
        stages=((), (((2, 2 * last**2),),)),
        step=((), ((2, 1 / last),)),
        error=(((2, -2 * scale),), ((2, scale / last),)),
    )


HOCHBRUCK_OSTERMANN_3 = _three_stages(2 / 3)
"""Three stages, order 3 even for stiff problems (Hochbruck & Ostermann 2005, eq. 5.8 with c_2 = 1/2)."""


@dataclasses.dataclass(frozen=True)
class LogTime(AbstractTableau):
    """`HOCHBRUCK_OSTERMANN_3` for dynamics that unfold in logarithmic time, such as learning.

    In a step that is long compared with the time before it, N changes fast at first and slowly later. A straight line
    through a point earlier than 2/3 then has the right mean. The last node is 7/12 for a step from t = 0 and tends to
    2/3 as steps become short compared with t. Errors of whole runs are 2 to 5 times smaller; with equal steps h they
    fall like h^3 log(1/h).
    """

    order: int = 3
    error_order: int = 3

    @property
    def evaluations(self) -> int:
        return 2

    def at(self, passed: Number) -> ExponentialTableau:
        return _three_stages((7 + passed) / 12)


LOG_TIME_3 = LogTime()


KROGSTAD = ExponentialTableau(
    order=4,
    error_order=3,
    nodes=(1 / 2, 1 / 2, 1.0),
    stages=((), (((2, 1.0),),), ((), ((2, 2.0),))),
    step=(((2, 2.0), (3, -4.0)), ((2, 2.0), (3, -4.0)), ((2, -1.0), (3, 4.0))),
    error=(((2, 2.0), (3, -4.0)), ((2, -2.0), (3, 4.0)), ()),
)
"""Four stages, order 4, stiff order 3 (Krogstad 2005, eq. 51). The error estimate compares its two midpoints."""
