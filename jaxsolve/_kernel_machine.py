"""Compares a network with kernel regression under its own tangent kernel."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from . import kernels, losses
from ._core import Problem, require_problem
from ._numerics import nonzero, safe_sqrt


class KernelMachine(eqx.Module):
    """A network compared with kernel regression under its tangent kernel. Make it with `js.as_kernel_machine`.

    Attributes:
        outputs: the network's outputs on the test set, shape (m, c).
        predictions: the predictions of kernel regression on the test set, shape (m, c).
    """

    outputs: Float[Array, "m out"]
    predictions: Float[Array, "m out"]

    @property
    def error(self) -> Float[Array, ""]:
        """|outputs - predictions|/|outputs|, over all test points and outputs."""
        size = safe_sqrt(jnp.sum(self.outputs**2))
        return safe_sqrt(jnp.sum((self.outputs - self.predictions) ** 2)) / nonzero(size)

    @property
    def correlation(self) -> Float[Array, ""]:
        """Pearson's correlation between outputs and predictions; 0 if either is constant."""
        f, g = self.outputs - jnp.mean(self.outputs), self.predictions - jnp.mean(self.predictions)
        return jnp.sum(f * g) / nonzero(safe_sqrt(jnp.sum(f**2)) * safe_sqrt(jnp.sum(g**2)))


def as_kernel_machine(problem: Problem, params: PyTree) -> KernelMachine:
    r"""Compares, on the test set, the network at `params` with kernel regression under its tangent kernel K.

    The regression is $f_0(x) + k(x) K^{-1} (y - f_0)$ with the outputs f_0 at the problem's start (Atanasov et al.,
    equations 3 and 14). The flow of MSE ends there if the kernel has been K, up to its scale, ever since the outputs
    moved. A run that ended early differs by what it had yet to learn.

    Arguments:
        problem: a problem with a test set and MSE.
        params: parameters such as `traj.final.params` of a run, for the kernel that it has learned; `problem.params`
            gives the regression with the initial kernel.

    Raises:
        ValueError: the problem has no test set, or its loss is not MSE.
        TypeError: problem is not a `js.Problem`.

    Example:
        >>> x = jnp.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=2, width_size=50, scaling=js.nets.Scaling.standard(sigma=1e-3), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, x[:2], jnp.array([[1.0], [2.0]]), test=(x[2:], jnp.array([[1.5]])))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 40.0])
        >>> machine = js.as_kernel_machine(problem, run.final.params)
        >>> print(machine.outputs.round(2), machine.predictions.round(2), bool(machine.error < 0.01))
        [[1.5]] [[1.5]] True

    Reference:
        @inproceedings{atanasov2022neural, title={Neural networks as kernel learners: the silent alignment effect},
          author={Alexander Atanasov and Blake Bordelon and Cengiz Pehlevan}, booktitle={ICLR}, year={2022}}
    """
    require_problem(problem)
    if problem.x_test is None:
        raise ValueError("this problem has no test set on which to compare the two: give Problem(..., test=(x, y))")
    if not isinstance(problem.loss, losses.MSE):
        raise ValueError(f"only the flow of MSE ends in kernel regression; this problem has {problem.loss}")
    kernel = problem.kernel(params, problem.x)
    fit = kernels.regression(kernel, problem.y, start=problem.outputs(problem.params))
    cross = problem.kernel(params, problem.x_test, problem.x)
    predictions = fit.predict(cross, problem.test_outputs(problem.params))
    return KernelMachine(problem.test_outputs(params), predictions)
