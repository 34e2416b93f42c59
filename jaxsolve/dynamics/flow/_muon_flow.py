"""The flow of orthogonalized gradients."""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._checks import one_number, require_flag
from ..._core import Problem
from ...until import AbstractCondition
from ..descent._optimizer import require_scaling
from ._flow import AbstractFlow, read_options
from ._muon_system import MuonSystem
from ._system import AbstractSystem


class MuonFlow(AbstractFlow):
    r"""The flow of orthogonalized gradients, Muon in small steps: $W_l' = -\eta_l\,\mathrm{polar}(dL/dW_l)$.

    polar(A) = U V^T for the singular value decomposition A = U S V^T, on the range of A: all singular directions move
    at the same speed, whatever their gradient. Every parameter with two or more axes is a matrix; the kernel of a
    convolution, or any stack of matrices, is reshaped to (out, rest), as in Muon. Biases and other vectors follow
    gradient flow at their own rate, or the sign of their gradient, which is Adam's flow.

    The right-hand side jumps where a singular value s of the gradient crosses 0, and modes stay there: steps of size h
    chatter about such a point, while this flow is held at it. The flow is smoothed to

    $W_l' = -\eta_l\, A (A^\top A + \epsilon^2)^{-1/2}$ with $A = \partial L/\partial W_l$,

    so a singular direction moves at the speed $\eta_l s/\sqrt{s^2 + \epsilon^2}$: full speed above eps, and
    proportional to s below. The resulting error is proportional to eps: in an aligned linear network of three layers
    with targets of 0.3 to 3 the weights are off by 20 eps once modes have arrived, and by 1e-7 before. Choose eps well
    below the singular values of the gradient that matter: from a start of size a they are of order a, and a network
    with activations has many small ones (tanh 4-8-8-1: weights were off by 0.8, 0.15 and 0.03 % of their displacement
    at 1e-6, 1e-7 and 1e-8).

    Where modes are held the flow is stiff and its Jacobian has real eigenvalues, so `integrators.RungeKuttaChebyshev`
    integrates it. The error of a step is at most rtol times the distance traveled by a mode at full speed. The linear
    network took 4,000 gradients at eps = 1e-4 and 35,000 at 1e-6; Muon steps of the same error are over ten times as
    many. In float32, rounding moves a held mode at the speed 1e-7/eps times the initial gradient: a run in which that
    exceeds rtol ends as `max_steps`.

    Time is rate times steps. There is no momentum, because its effect vanishes for small steps.

    Arguments:
        eps: the singular value, in units of the gradient, below which a mode counts as arrived, > 0; an array leaf.
            None takes 1e-4 (float32: 3e-3).
        sign_of_vectors: whether biases and other vectors move by g/sqrt(g^2 + eps^2), as in Adam, instead of g.
        rtol: tolerance of a step. None takes 1e-4 (float32: 3e-3).
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: maximum number of steps, accepted and rejected.

    Raises:
        ValueError: a number is out of range; when used, the network's scaling is for gradient descent.
        TypeError: `until` is not a condition.

    Example:
        Weak modes come first (`theory.MuonModes` is the closed form):

        >>> scaling = js.nets.Scaling(multiplier=[1.0] * 2, sigma=[1.0] * 2, eta=[1.0] * 2)
        >>> init = js.nets.Given([0.1 * jnp.eye(2)] * 2)
        >>> net = js.nets.DeepLinear(
        ...     in_size=2, out_size=2, width_size=2, depth=1, scaling=scaling, init=init, key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.array([4.0, 1.0])))
        >>> weights = js.solve(problem, js.MuonFlow(), 1.5, observe=js.observe.parameters())["parameters"]
        >>> strong, weak = jnp.diag(weights[4:].reshape(2, 2))
        >>> print(f"{weak:.2f} has arrived, {strong:.2f} goes on to 2")
        1.00 has arrived, 1.60 goes on to 2

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the flow of deep linear
    networks: arXiv 2606.30509. The smoothing and the choice of steps are derived here.
    """

    eps: Float[Array, ""] | None
    sign_of_vectors: bool = eqx.field(static=True)  # changes the program
    rtol: float | None = eqx.field(static=True)  # only changes values, but is never swept
    until: AbstractCondition | None
    max_steps: int = eqx.field(static=True)
    integrator: diffrax.AbstractSolver | None
    land_on_ts: bool = eqx.field(static=True)

    def __init__(
        self,
        *,
        eps: Any = None,
        sign_of_vectors: bool = False,
        rtol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
    ):
        self.eps = None if eps is None else one_number(eps, "eps")
        self.sign_of_vectors = require_flag(sign_of_vectors, "sign_of_vectors")
        self.rtol, _, self.until, self.max_steps, self.land_on_ts = read_options(rtol, None, until, max_steps, False)
        self.integrator = None

    @property
    def name(self) -> str:
        return "MuonFlow"

    def system(self, problem: Problem) -> AbstractSystem:
        # Like Adam's, its steps do not grow with the gradient.
        require_scaling(problem, lambda: True)
        default = 1e-4 if problem.dtype == jnp.float64 else 3e-3
        eps = jnp.asarray(default, problem.dtype) if self.eps is None else self.eps
        rtol = default if self.rtol is None else self.rtol
        return MuonSystem(problem, eps, rtol, sign_of_vectors=self.sign_of_vectors)
