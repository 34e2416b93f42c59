r"""Exponential Runge-Kutta methods as tables of numbers.

For $y' = A y + N(y)$ with $F = A y_n + N(y_n)$ and $D_j = N(U_j) - N(y_n)$, the stages and the step are

$U_i = y_n + c_i h \varphi_1(c_i h A) F + h \sum_{j<i} \sum_k a_{ijk} \varphi_k(c_i h A) D_j,$
$y(t_n + \theta h) = y_n + \theta h \varphi_1(\theta h A) F
    + h \sum_j \sum_k b_{jk} \theta^k \varphi_k(\theta h A) D_j.$

The second is the step at $\theta = 1$, and the dense output before: the exact solution of $y' = A y + p$, where the
weights b are the moments of the polynomial p (Hochbruck & Ostermann 2010, "Exponential integrators", section 2).
"""

import dataclasses


# The sum over k of coefficient * phi_k.
Weight = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class ExponentialTableau:
    """One method.

    Attributes:
        order: of the step, for stiff problems too.
        error_order: power of h in the error estimate.
        nodes: c_i of all stages but the first, which is y_n.
        stages: the weights a_ij, one row per node, one weight per earlier node.
        step: the weights b_j.
        error: the weights of the error estimate, the difference of two methods.
    """

    order: int
    error_order: int
    nodes: tuple[float, ...]
    stages: tuple[tuple[Weight, ...], ...]
    step: tuple[Weight, ...]
    error: tuple[Weight, ...]


ETD2RK = ExponentialTableau(
    order=2,
    error_order=2,
    nodes=(1.0,),
    stages=((),),
    step=(((2, 1.0),),),
    error=(((2, 1.0),),),
)
"""Two stages, order 2 (Cox & Matthews 2002, eq. 22). Its error estimate is what the second stage changes."""


HOCHBRUCK_OSTERMANN_3 = ExponentialTableau(
    order=3,
    error_order=3,
    nodes=(1 / 2, 2 / 3),
    stages=((), (((2, 8 / 9),),)),
    step=((), ((2, 3 / 2),)),
    error=(((2, -2.0),), ((2, 3 / 2),)),
)
"""Three stages, order 3 also where stiff (Hochbruck & Ostermann 2005, eq. 5.8 with c_2 = 1/2).

N is taken for linear between its values at 0 and 2/3; the error estimate compares that with its values at 0 and 1/2.
"""


KROGSTAD = ExponentialTableau(
    order=4,
    error_order=3,
    nodes=(1 / 2, 1 / 2, 1.0),
    stages=((), (((2, 1.0),),), ((), ((2, 2.0),))),
    step=(((2, 2.0), (3, -4.0)), ((2, 2.0), (3, -4.0)), ((2, -1.0), (3, 4.0))),
    error=(((2, 2.0), (3, -4.0)), ((2, -2.0), (3, 4.0)), ()),
)
"""Four stages, order 4, 3 where stiff (Krogstad 2005, eq. 51). The error estimate compares its two midpoints."""
