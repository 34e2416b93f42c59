"""One step of the central flow."""

from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ..._core import flat_rates, Problem
from ...integrators import RungeKuttaChebyshev
from ...integrators._internal import Stabilized
from ._edge_cone import complement, Cone
from ._edge_optimizer import AbstractPreconditioner
from ._edge_pairs import BLOCK, first_pairs, follow, Pairs


EDGE = 2.0  # eigenvalue of the preconditioned Hessian at the edge
_WINDOW = 0.9  # share of the edge above which an eigenvalue is watched, through its third derivatives
_NEAR = 0.8  # share above which its eigenvector is computed to full accuracy
_LEAST = 1e-3  # lower bound of the spectral radius in a step
_CROWDED = 1.003  # times the edge, above which an eigenvalue that is not held is one too many
NO_DERIVATIVES = (
    "CentralFlow cannot be differentiated: its steps follow eigenvectors, whose derivatives are not defined where "
    "eigenvalues are equal, as they are at the edge of stability. Below the edge, GradientFlow() has the same "
    "derivatives"
)
BEYOND = 1.05  # times the edge; a start above that is not described


class Edge(NamedTuple):
    """The known properties of the oscillation.

    Attributes:
        eigenvalues: eigenvalues of the preconditioned Hessian, relative to the edge, descending.
        variances: eigenvalues of Sigma, descending.
        trace: trace of Sigma.
        loss: contribution of the oscillation to the averaged loss.
        gradient: its contribution to the averaged squared gradient.
        excess: the largest relative excess of an eigenvalue over the edge so far.
        residual: the largest residual of a complementarity problem so far.
        crowded: above 0 if more eigenvalues have reached the edge than are held, or the start lies beyond it.
    """

    eigenvalues: Float[Array, " k"]
    variances: Float[Array, " k"]
    trace: Float[Array, ""]
    loss: Float[Array, ""]
    gradient: Float[Array, ""]
    excess: Float[Array, ""]
    residual: Float[Array, ""]
    crowded: Float[Array, ""]

    @property
    def followed(self) -> Float[Array, " k"]:
        """The eigenvalues computed to full accuracy: the first, and those near the edge; NaN for the others."""
        first = jnp.arange(self.eigenvalues.shape[0]) == 0
        return jnp.where(first | (self.eigenvalues > _NEAR), self.eigenvalues, jnp.nan)


class Point(NamedTuple):
    """A point of the flow: parameters, nu and the dissipated energy in one vector, and the oscillation."""

    moving: Float[Array, " state"]
    edge: Edge


class SlackModel(NamedTuple):
    """2 P - H in the span of the watched eigenvectors U, to first order, with U^T P U = 1.

    Attributes:
        at: the parameters and nu at which the model was made.
        slack: U^T (2 P - H) U there.
        third: T_ij = d(u_i^T H u_j)/dw for watched eigenvectors, 0 otherwise.
        by_nu: the derivative of slack with respect to nu.
        squares: the part of (H u_i)(H u_j)^T that nu follows.
        metric, images: u_i . u_j and (H u_i) . (H u_j).
        b: the matrix B of the complementarity problem.
        x: an earlier solution, as the initial guess.
        top: the largest eigenvalue.
        ahead: the k largest eigenvalues, extrapolated to the end of the step.
        watched: number of watched eigenvectors.
    """

    at: Float[Array, " w_and_nu"]
    slack: Float[Array, " pairs"]
    third: Float[Array, "pairs params"]
    by_nu: Float[Array, "pairs nu"]
    squares: Float[Array, "pairs nu"]
    metric: Float[Array, "k k"]
    images: Float[Array, "k k"]
    b: Float[Array, "pairs pairs"]
    x: Float[Array, " pairs"]
    top: Float[Array, ""]
    ahead: Float[Array, " k"]
    watched: Int[Array, ""]


class CentralState(NamedTuple):
    """The values passed to the next step: eigenpairs, model, step size, and gradient evaluations."""

    pairs: Pairs
    model: SlackModel
    size: Float[Array, ""]
    evaluations: Int[Array, ""]


class CentralStep(diffrax.AbstractAdaptiveSolver[CentralState]):
    """A step of order 2 and any size: the field with third derivatives from the middle of the step.

    1. Half a step with the third derivatives of the last step leads near the middle.
    2. There it updates the eigenpairs, T_ij for those that are or will be near the edge, and the slack.
    3. A whole step with these, by `RungeKuttaChebyshev`. Each stage solves the complementarity problem, with slack to
       first order, and needs no eigenvector.

    The error is the estimate of the stages plus the difference from the same step with the last third derivatives.

    Arguments:
        problem: the problem.
        optimizer: the optimizer that oscillates.
        k: maximum number of eigenvalues held at the edge.
        relaxation: time, in steps of descent, within which an eigenvalue relaxes to the edge.
        accuracy: accuracy of eigenpairs, relative to the edge.
    """

    problem: Problem
    optimizer: AbstractPreconditioner
    k: int
    relaxation: float
    accuracy: float

    term_structure: ClassVar = diffrax.AbstractTerm
    interpolation_cls: ClassVar = diffrax.ThirdOrderHermitePolynomialInterpolation

    def order(self, terms: Any) -> int:
        del terms
        return 2

    def error_order(self, terms: Any) -> int:
        """The order of the error estimate, the same as for a step with lagging third derivatives."""
        del terms
        return 2

    def func(self, terms: Any, t0: Any, y0: Any, args: Any) -> Any:
        return terms.vf(t0, y0, args)

    @property
    def cone(self) -> Cone:
        """The cone of matrices over the watched eigenvectors."""
        return Cone.of(self.k)

    @property
    def eta(self) -> Float[Array, " params"]:
        """The network's rates, one per parameter."""
        return flat_rates(self.problem)

    def loss(self, w: Float[Array, " params"]) -> Float[Array, ""]:
        """The training loss."""
        return self.problem.objective(ravel_pytree(self.problem.params)[1](w))

    def hessian(self, w: Float[Array, " params"], v: Float[Array, " params"]) -> Float[Array, " params"]:
        """H v."""
        return jax.jvp(jax.grad(self.loss), (w,), (v,))[1]

    def start(self) -> Point:
        """The state at t = 0."""
        w = ravel_pytree(self.problem.params)[0]
        nu, dtype = self.optimizer.start(w), w.dtype
        d = jnp.sqrt(self.optimizer.rates(nu, self.eta))
        pairs = follow(
            lambda v: self.hessian(w, v),
            d,
            self._first(w.size, dtype),
            _NEAR * EDGE,
            self.accuracy * EDGE,
        )
        zero, none = jnp.zeros((), dtype), jnp.zeros((self.k,), dtype)
        top = pairs.values[: self.k] / EDGE
        # Beyond the edge the first steps of descent jump, which no average over an oscillation describes.
        beyond = (top[0] > BEYOND).astype(dtype)
        return Point(jnp.concatenate([w, nu, zero[None]]), Edge(top, none, zero, zero, zero, zero, zero, beyond))

    def _first(self, size: int, dtype: Any) -> Pairs:
        return first_pairs(size, self.k + 1, dtype)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Point, args: Any) -> CentralState:
        size = ravel_pytree(self.problem.params)[0].size
        dtype, pairs = y0.moving.dtype, self._first(size, y0.moving.dtype)
        zeros = lambda *shape: jnp.zeros(shape, dtype)
        n, nu, k = len(self.cone.rows), y0.moving.size - size - 1, self.k
        # A model without third derivatives that watches nothing: the first half step follows the plain flow.
        slack = self.cone.vector(EDGE * jnp.eye(k, dtype=dtype))
        model = SlackModel(
            y0.moving[:-1],
            slack,
            zeros(n, size),
            zeros(n, nu),
            zeros(n, nu),
            zeros(k, k),
            zeros(k, k),
            zeros(n, n),
            zeros(n),
            EDGE * y0.edge.eigenvalues[0],
            EDGE * y0.edge.eigenvalues,
            jnp.zeros((), int),
        )
        return CentralState(pairs, model, zeros(), jnp.zeros((), int))

    def field(
        self, model: SlackModel, y: Float[Array, " state"]
    ) -> tuple[Float[Array, " state"], Float[Array, " known"]]:
        """The velocity per step of descent, and X, slack and residual of the complementarity problem."""
        size = model.third.shape[1]
        w, nu = y[:size], y[size:-1]
        gradient = jax.grad(self.loss)(w)
        rates, lag = self.optimizer.rates(nu, self.eta), self.optimizer.lag.astype(y.dtype)
        drive = lag * (self.optimizer.product(gradient, gradient) - nu)
        moved = y[:-1] - model.at
        # Slack is U^T (2 P - H) U: it grows with nu through P, and falls as H grows along w.
        slack = model.slack + model.by_nu @ moved[size:] - model.third @ moved[:size]
        # The constraint is slack' + slack/relaxation = a + B x >= 0. With slack' alone errors of slack would persist;
        # this way they decay within the relaxation time (Baumgarte's constraint stabilization).
        a = slack / self.relaxation + model.third @ (rates * gradient) + model.by_nu @ drive
        x, residual = complement(self.cone, a, model.b, model.x)
        w_dot = -rates * (gradient + (x @ model.third) / 2)
        nu_dot = drive + lag * (x @ model.squares)
        return jnp.concatenate([w_dot, nu_dot, -(gradient @ w_dot)[None]]), jnp.concatenate([x, slack, residual[None]])

    def _model(self, y: Float[Array, " state"], pairs: Pairs, ahead: Float[Array, " m"], x: Array) -> SlackModel:
        """The model near y; `ahead` holds the eigenvalues extrapolated to the end of the step."""
        k, cone, size = self.k, self.cone, pairs.vectors.shape[0]
        w, nu = y[:size], y[size:-1]
        rates = self.optimizer.rates(nu, self.eta)
        # Eigenvalues that are near now, or will be before the step ends.
        near = jnp.maximum(pairs.values, ahead)[:k] > _WINDOW * EDGE
        watched = jnp.max(jnp.where(near, jnp.arange(k) + 1, 0))
        # v are eigenvectors of sqrt(rates) H sqrt(rates), so u = sqrt(rates) v has u^T P u = 1.
        u, images = jnp.sqrt(rates)[:, None] * pairs.vectors[:, :k], pairs.images[:, :k]
        count = watched * (watched + 1) // 2
        rows, columns, weights = (jnp.asarray(part) for part in cone)
        gradient = jax.grad(self.loss)

        def third(i: Array, j: Array) -> Array:
            # d(u_i^T H u_j)/dw is the derivative of H u_i along u_j, because third derivatives are symmetric.
            along = lambda direction: lambda at: jax.jvp(gradient, (at,), (direction,))[1]
            return jax.jvp(along(u[:, i]), (w,), (u[:, j],))[1]

        block = min(BLOCK, len(cone.rows))

        def some(index: Array, out: Array) -> Array:
            # Shapes are static: instead of being cut, the last block overlaps the previous one, with the same entries.
            begin = jnp.minimum(index * block, len(cone.rows) - block)
            i, j = (jax.lax.dynamic_slice_in_dim(part, begin, block) for part in (rows, columns))
            return jax.lax.dynamic_update_slice_in_dim(out, jax.vmap(third)(i, j), begin, axis=0)

        t = jax.lax.fori_loop(0, -(-count // block), some, jnp.zeros((len(cone.rows), size), y.dtype))
        # Vectors of the cone, with zeros where one of the two eigenvectors is not watched.
        held = (columns < watched).astype(y.dtype) * weights.astype(y.dtype)
        t = held[:, None] * t
        pair = lambda of, left, right: held[:, None] * jax.vmap(of)(left[:, cone.rows].T, right[:, cone.columns].T)
        by_nu = pair(lambda a, b: self.optimizer.slope(nu, self.eta, a, b), u, u)
        squares = pair(self.optimizer.product, images, images)
        # Unwatched eigenvalues count as far from the edge.
        values = jnp.where(jnp.arange(k) < watched, pairs.values[:k], 0)
        # At the edge, where H u = 2 P u, this is symmetric; elsewhere its symmetric part is used, as required by the
        # complementarity problem.
        fed = by_nu @ squares.T
        b = (t * rates[None, :]) @ t.T / 2 + self.optimizer.lag.astype(y.dtype) * (fed + fed.T) / 2
        return SlackModel(
            y[:-1],
            cone.vector(jnp.diag(EDGE - values)),
            t,
            by_nu,
            squares,
            u.T @ u,
            images.T @ images,
            b,
            x,
            pairs.values[0],
            ahead[:k],
            watched,
        )

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Point, args: Any, solver_state: CentralState, made_jump: Any
    ) -> tuple[Point, Point, dict[str, Point], CentralState, diffrax.RESULTS]:
        state, start, dtype = solver_state, y0.moving, y0.moving.dtype
        # The field's unit of time is a step of descent.
        h = eqxi.nondifferentiable((t1 - t0) / self.optimizer.rate.astype(dtype), msg=NO_DERIVATIVES)
        size, length, n = state.pairs.vectors.shape[0], start.size, len(self.cone.rows)
        top = jnp.maximum(state.model.top, _LEAST)

        def run(model: SlackModel, span: Array) -> Stabilized:
            """A step with one model; the extra entries carry the solution of each stage, to read off the last one."""
            ode = diffrax.ODETerm(lambda t, y, args: jnp.concatenate(self.field(model, y[:length])))
            y = jnp.concatenate([start, jnp.zeros((2 * n + 1,), dtype)])
            radius = jnp.maximum(top, model.top)
            # Slack decays to 0 at the rate 1/relaxation, which is not among the eigenvalues of the model.
            radius = jnp.maximum(radius, jnp.where(model.watched > 0, max(EDGE, 1 / self.relaxation), 0))
            zero = jnp.zeros((), dtype)
            return RungeKuttaChebyshev().stabilized(ode, zero, span, y, None, ode.vf(zero, y, None), radius * span)

        def look(middle: Float[Array, " state"]) -> tuple[Pairs, SlackModel]:
            """Eigenpairs and third derivatives near the middle."""
            w, nu = middle[:size], middle[size:-1]
            d = jnp.sqrt(self.optimizer.rates(nu, self.eta))
            pairs = follow(lambda v: self.hessian(w, v), d, state.pairs, _NEAR * EDGE, self.accuracy * EDGE)
            # Each eigenvalue is extrapolated to the end of the step. Eigenpairs are computed at the middle of each
            # step, so their distance in time is the mean of two step sizes.
            speed = jnp.where(state.size > 0, (pairs.values - state.pairs.values) / ((state.size + h) / 2), 0)
            return pairs, self._model(middle, pairs, pairs.values + speed * h / 2, state.model.x)

        # A loop, so that the same step, which is slow to compile, is compiled once instead of three times.
        def turn(carry: tuple) -> tuple:
            index, pairs, model, made, lag, cost = carry
            now = jax.tree.map(lambda new, old: jnp.where(index == 1, new, old), model, state.model)
            found = run(now, jnp.where(index == 0, h / 2, h))
            pairs, model = jax.lax.cond(index == 0, lambda: look(found.y1[:length]), lambda: (pairs, model))
            # The same step with the previous model: the difference is the error of lagging third derivatives.
            lag = jnp.where(index == 2, jnp.abs(found.y1 - made.y1), lag)
            made = jax.tree.map(lambda new, old: jnp.where(index <= 1, new, old), found, made)
            return index + 1, pairs, model, made, lag, cost + found.stages + 1

        def unfinished(carry: tuple) -> Array:
            # Without third derivatives in either model, both would make the same step.
            watched = (carry[2].watched > 0) | (state.model.watched > 0)
            return carry[0] < jnp.where(watched, 3, 2)

        none = jnp.zeros((length + 2 * n + 1,), dtype)
        nothing = Stabilized(none, none, none, none, none, jnp.zeros((), int), jnp.array(True))
        begin = jnp.zeros((), int), state.pairs, state.model, nothing, none, state.evaluations
        _, pairs, model, made, lag, cost = jax.lax.while_loop(unfinished, turn, begin)
        x, slack, residual = made.field[length : length + n], made.field[length + n : -1], made.field[-1]
        edge = self._edge(model, x, slack, residual, pairs, y0.edge)
        point, still = Point(made.y1[:length], edge), jax.tree.map(jnp.zeros_like, edge)
        change = jax.tree.map(jnp.subtract, edge, y0.edge)  # the edge is interpolated linearly
        dense = {
            "y0": y0,
            "y1": point,
            "k0": Point(made.k0[:length], change),
            "k1": Point(made.k1[:length], change),
        }
        # Each forward-mode derivative counts double: a product with H as two, a third derivative as four.
        third = 4 * (model.watched * (model.watched + 1) // 2)
        cost = cost + 2 * (pairs.products - state.pairs.products) + third
        # The next step starts from this solution of the complementarity problem.
        new = CentralState(pairs, model._replace(x=x), h, cost)
        return point, Point((jnp.abs(made.error) + lag)[:length], still), dense, new, diffrax.RESULTS.successful

    def _edge(self, model: SlackModel, x: Array, slack: Array, residual: Array, pairs: Pairs, before: Edge) -> Edge:
        k, cone = self.k, self.cone
        x_matrix, slack_matrix = cone.matrix(x), cone.matrix(slack)
        # At the end of the step U^T 2 P U = slack + U^T H U, to first order in nu. Slack ascends where eigenvalues
        # descend.
        values = EDGE - jnp.linalg.eigvalsh(slack_matrix)
        unwatched = jnp.arange(k) >= model.watched
        eigenvalues = jnp.where(unwatched, model.ahead, values) / EDGE
        # The nonzero eigenvalues of Sigma = U X U^T are those of R^T (U^T U) R with X = R R^T, a small matrix.
        root_values, root_vectors = jnp.linalg.eigh(x_matrix)
        root = root_vectors * jnp.sqrt(jnp.maximum(root_values, 0))[None, :]
        variances = jnp.linalg.eigvalsh(root.T @ model.metric @ root)[::-1]
        top = pairs.values[0] / EDGE - 1
        many = pairs.values[k] > _CROWDED * EDGE if pairs.values.shape[0] > k else jnp.array(False)
        watched = model.watched > 0
        return Edge(
            eigenvalues,
            variances,
            # tr Sigma = <X, U^T U>.
            jnp.sum(x_matrix * model.metric),
            # <H, Sigma>/2, where U^T H U = 2 - slack.
            jnp.trace(x_matrix) * EDGE / 2 - x @ slack / 2,
            # tr(H Sigma H), because the gradient oscillates by H times the oscillation of w.
            jnp.sum(x_matrix * model.images),
            jnp.where(watched, jnp.maximum(before.excess, top), before.excess),
            jnp.maximum(before.residual, residual),
            jnp.maximum(before.crowded, many.astype(x.dtype)),
        )
