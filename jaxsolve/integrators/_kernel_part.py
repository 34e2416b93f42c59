r"""The stiff part of a gradient flow, $A = -\eta J^T H J$, treated exactly through the eigenvectors of the kernel.

$\varphi_k(c h A) v = v/k! - c h \eta J^T S V \varphi_{k+1}(-c h \Lambda) V^T S J v$ with $S = H^{1/2}$ and
$S K S = V \Lambda V^T$, K the eta-weighted NTK. If V holds only some orthonormal columns, A is restricted to them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._core import flat_rates, NotApplicable, Problem
from .._numerics import HeldModule, nonzero, phi
from ..kernels._internal import LayeredJacobian
from ._linear_part import AbstractLinearPart, Model, Span, Term
from ._modes import modes, StiffModes


class FunctionJacobian(eqx.Module):
    """`LayeredJacobian` for a batch that shares statistics, by automatic differentiation."""

    held: HeldModule
    params: PyTree

    def push(self, v: PyTree[Float[Array, "..."]]) -> Float[Array, "n out"]:
        """J v for v shaped like the parameters."""
        return jax.jvp(self.held.module.outputs, (self.params,), (v,))[1]

    def pull(self, q: Float[Array, "n out"]) -> PyTree[Float[Array, "..."]]:
        """J^T q, shaped like the parameters."""
        return jax.vjp(self.held.module.outputs, self.params)[1](q)[0]

    def ntk(self, eta: PyTree) -> Float[Array, "n out n out"]:
        """The NTK on the training set; `eta` are the problem's own rates."""
        del eta
        return self.held.module.kernel(self.params, self.held.module.x)


def require_no_decay(problem: Problem, method: str) -> None:
    """Raises NotApplicable for weight decay: its force is no combination of the outputs' gradients."""
    if problem.weight_decay is not None:
        raise NotApplicable(
            f"{method} follows the kernel alone, and this problem has weight decay; take another integrator, such as "
            "GradientFlow(diffrax.Tsit5()), or none, to let the problem choose"
        )


def jacobian(problem: Problem, params: PyTree) -> LayeredJacobian | FunctionJacobian:
    """The Jacobian at the given parameters, stored per sample where samples do not interact."""
    if problem.state is None:
        return LayeredJacobian(problem.network(params), problem.x)
    return FunctionJacobian(HeldModule(problem), params)


class Direction(NamedTuple):
    """A vector v of parameter space as `own + eta J^T lifted`, with J v; all outputs are in one axis."""

    own: Float[Array, " params"]
    lifted: Float[Array, " outputs"]
    pushed: Float[Array, " outputs"]

    def __add__(self, other: "Direction") -> "Direction":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Direction(*(a + b for a, b in zip(tuple(self), tuple(other), strict=True)))

    def __rmul__(self, factor: Float[Array, ""] | float) -> "Direction":  # pyright: ignore
        return Direction(*(factor * a for a in tuple(self)))


class KernelPart(AbstractLinearPart[Direction]):
    """A = -eta J^T H J, frozen at one point.

    Attributes:
        jacobian: J at the point.
        eta: learning rates, one per parameter.
        kernel: K = J eta J^T.
        root: S, one symmetric block per sample.
        vectors, values: V and Lambda.
    """

    jacobian: LayeredJacobian | FunctionJacobian
    eta: Float[Array, " params"]
    kernel: Float[Array, "outputs outputs"]
    root: Float[Array, "n out out"]
    vectors: Float[Array, "outputs modes"]
    values: Float[Array, " modes"]

    def force(self, model: Model, w: Float[Array, " params"], outputs: Float[Array, "n out"]) -> Direction:
        # w' = -eta J^T dl/df. J is frozen here; `_slip` adds its derivative.
        residual = model.problem.loss.gradient(outputs, model.problem.y).reshape(-1)
        own, pushed = _slip(model, self, w, residual)
        return Direction(own, -residual, pushed - self.kernel @ residual)

    def change(self, velocity: Float[Array, " params"], moved: Direction, force: Direction) -> Direction:
        # -A moved = eta J^T curvature is a lift, so the velocity is kept unchanged as `own`.
        return self.direction(velocity, self.curvature(moved.pushed)) + -1.0 * force

    def push(self, v: Float[Array, " params"]) -> Float[Array, " outputs"]:
        """J v."""
        return self.jacobian.push(self._unravel(v)).reshape(-1)

    def lift(self, q: Float[Array, " outputs"]) -> Float[Array, " params"]:
        """eta J^T q."""
        return self.eta * ravel_pytree(self.jacobian.pull(q.reshape(self.root.shape[:2])))[0]

    def direction(self, own: Float[Array, " params"], lifted: Float[Array, " outputs"]) -> Direction:
        """own + eta J^T lifted."""
        # J eta J^T = K, so pushing `lifted` needs no pass through the network.
        return Direction(own, lifted, self.push(own) + self.kernel @ lifted)

    def vector(self, v: Direction) -> Float[Array, " params"]:
        return v.own + self.lift(v.lifted)

    def pushed(self, v: Direction) -> Float[Array, "n out"]:
        return v.pushed.reshape(self.root.shape[:2])

    def rescale(self, q: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """S q."""
        return jnp.einsum("nab,nb->na", self.root, q.reshape(self.root.shape[:2])).reshape(-1)

    def amplitudes(self, v: Direction) -> Float[Array, " modes"]:
        """V^T S J v: the components of v along the modes, times the square roots of their rates."""
        return self.vectors.T @ self.rescale(v.pushed)

    def over(self, *times: Float[Array, ""]) -> list[Span]:
        return [Span(time) for time in times]

    def combine(self, span: Span, terms: Sequence[Term]) -> Direction:
        # The formula above. Terms are summed over modes first, so they share one lift.
        decayed = [factor * phi(k + 1, -span.length * self.values) * self.amplitudes(v) for k, factor, v in terms]
        low = self.lifted(-span.length * sum(decayed, jnp.zeros_like(self.values)))
        return sum(((factor / math.factorial(k)) * v for k, factor, v in terms), low)

    def lifted(self, weights: Float[Array, " modes"]) -> Direction:
        """eta J^T S V weights."""
        lifted = self.rescale(self.vectors @ weights)
        return Direction(jnp.zeros_like(self.eta), lifted, self.kernel @ lifted)

    def curvature(self, pushed: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """S V V^T S J v for the given J v; A v is -eta J^T times it."""
        return self.rescale(self.vectors @ (self.vectors.T @ self.rescale(pushed)))

    def power(self, span: Span, v: Direction) -> Float[Array, ""]:
        # Valid for v = eta J^T lifted, such as the force. Outside the modes A is 0 and the power is constant.
        outside, inside = self._powers(v)
        return outside + inside @ jnp.exp(-2 * span.length * self.values)

    def spent(self, span: Span, v: Direction) -> Float[Array, ""]:
        outside, inside = self._powers(v)
        return span.length * (outside + inside @ phi(1, -2 * span.length * self.values))

    def inner(self, a: Direction, b: Direction) -> Float[Array, ""]:
        """a . b, each parameter's product divided by its eta."""
        # a.own . b.own/eta + p . J b + q . J a.own with p = a.lifted and q = b.lifted, where J a = J a.own + K p.
        own = jnp.sum(jnp.where(self.eta > 0, a.own * b.own / nonzero(self.eta), 0))
        return own + a.lifted @ b.pushed + b.lifted @ (a.pushed - self.kernel @ a.lifted)

    def _powers(self, v: Direction) -> tuple[Float[Array, ""], Float[Array, " modes"]]:
        """|v|^2 outside the modes, and in each mode."""
        # In a mode it is (V^T S J v)^2 over the rate: eta^(1/2) J^T S V Lambda^(-1/2) has orthonormal columns.
        total, squares = self.inner(v, v), self.amplitudes(v) ** 2
        # For a rate at rounding level of the largest, the quotient would be one of two rounding errors.
        moving = self.values > 10 * jnp.finfo(self.values.dtype).eps * jnp.max(self.values, initial=0.0)
        inside = jnp.where(moving, squares / jnp.where(moving, self.values, 1), 0)
        outside = total - jnp.sum(inside)
        # Otherwise a rounding error in this difference of nearly equal numbers is multiplied by an unbounded time.
        return jnp.where(outside > 1e3 * jnp.finfo(total.dtype).eps * total, outside, 0), inside

    def _unravel(self, v: Float[Array, " params"]) -> PyTree:
        return ravel_pytree(self.jacobian.params)[1](v)


class JacobianAndModes(NamedTuple):
    """The values known at the start of a step.

    Attributes:
        jacobian: J, which shares its forward pass with the outputs at the same point.
        modes: the modes to start from.
    """

    jacobian: LayeredJacobian | FunctionJacobian
    modes: StiffModes


def frozen_jacobian(model: Model, w: Float[Array, " params"]) -> LayeredJacobian | FunctionJacobian:
    """The Jacobian at w, not differentiated."""
    model, w = _frozen((model, w))
    return jacobian(model.problem, model.params(w))


def kernel_part(
    problem: Problem, outputs: Float[Array, "n out"], h: Float[Array, ""], known: JacobianAndModes
) -> tuple[KernelPart, JacobianAndModes]:
    """The linear part at these outputs, and the modes for a next step of about this size."""
    # A method keeps its order whatever A is, so eigenvectors, which have no derivative at equal rates, are frozen.
    problem, outputs, held = _frozen((problem, outputs, known.jacobian))
    kernel = held.ntk(problem.eta)
    root = problem.loss.hessian_root(outputs, problem.y)
    size = outputs.size
    # S K S, one block of outputs (a, d) for each pair of samples (i, j); S is block diagonal.
    weighted = jnp.einsum("iab,ibjc,jcd->iajd", root, kernel, root).reshape(size, size)
    vectors, values, found = modes(weighted, jax.lax.stop_gradient(h), known.modes)
    part = KernelPart(held, flat_rates(problem), kernel.reshape(size, size), root, vectors, values)
    return part, JacobianAndModes(held, found)


def _frozen(tree: PyTree) -> PyTree:
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


@eqx.filter_custom_jvp
def _slip(
    model: Model, part: KernelPart, w: Float[Array, " params"], residual: Float[Array, " outputs"]
) -> tuple[Float[Array, " params"], Float[Array, " outputs"]]:
    """The velocity -eta dL/dw + eta J^T dl/df, and its product with J: both 0, but with nonzero derivatives."""
    del model, part
    return jnp.zeros_like(w), jnp.zeros_like(residual)


@_slip.def_jvp
def _slip_jvp(primals, tangents):
    model, part, w, residual = primals
    model_dot, _, w_dot, residual_dot = tangents
    # The force must have the derivative of the true velocity. `force` adds -eta J^T dl/df at fixed eta and J, which
    # already contains the derivative of dl/df, so this part is subtracted here.
    velocity = lambda model, w: model.velocity(w)[0]
    _, own = eqx.filter_jvp(velocity, (model, w), (model_dot, w_dot))
    own = jnp.zeros_like(w) if own is None else own
    own = own if residual_dot is None else own + part.lift(residual_dot)
    return _slip(model, part, w, residual), (own, part.push(own))
