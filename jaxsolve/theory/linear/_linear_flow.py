r"""Linear networks on whitened inputs, in natural units.

With $V_l = W_l/\sqrt{\eta_l}$, $f(x) = o\, V_L \cdots V_1 x$ and inputs of second moment $X^\top X/n = \kappa^2 \Pi$,
$\Pi$ a projector, gradient flow is $dV_l/dT = -\partial/\partial V_l \; \tfrac12 |V_L \cdots V_1 \Pi - \Sigma|^2$ with
$o = \gamma \prod_l m_l \sqrt{\eta_l}$, $\Sigma = Y^\top X/(n o \kappa^2)$ and $T = o^2 \kappa^2 t$.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._core import AbstractRandomAccess, Assumption, Problem, Validity
from ..._numerics import finite_product, nonzero, scaled
from ...losses import AbstractLoss, MSE
from ...nets import AbstractDense


class AbstractLinearForm(AbstractRandomAccess):
    """A closed form for networks of one kind, under assumptions about their numbers."""

    asymptotic: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        """Assumptions about the kind of problem (network, loss, shapes), which do not depend on its numbers."""

    @abc.abstractmethod
    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        """Measured assumptions about the weights, rates and data of a problem of the right kind."""

    def check(self, problem: Problem) -> Validity:
        assumptions = self.structural_assumptions(problem)
        if structure_fits(assumptions):
            assumptions = [*assumptions, *self.numerical_assumptions(problem)]
        return Validity(tuple(assumptions), asymptotic=self.asymptotic)

    def require_kind(self, problem: Problem) -> None:
        """Raises NotApplicable if the problem is of another kind than this form solves."""
        validity = Validity(tuple(self.structural_assumptions(problem)))
        if validity.structural:
            raise validity.refusal(self.name)


class LinearFlow(NamedTuple):
    """A linear network's gradient flow on whitened inputs, in natural units: unit rates, unit second moment.

    Attributes:
        layers: V_l = W_l/sqrt(eta_l), counted from the input.
        task: o Sigma = Y^T X/(n kappa^2), shape (out, in): the matrix that f converges to. It depends only on the data.
        outer: o = gamma prod_l m_l sqrt(eta_l), of any sign: f(x) = o V_L ... V_1 x.
        speed: dT/dt = (o kappa)^2.
        whitened: inputs scaled to Pi = whitened^T whitened, the projector on their row space.
    """

    layers: tuple[Float[Array, "out in"], ...]
    task: Float[Array, "out in"]
    outer: Float[Array, ""]
    speed: Float[Array, ""]
    whitened: Float[Array, "n in"]

    @property
    def target(self) -> Float[Array, "out in"]:
        """Sigma, the value that V_L ... V_1 converges to."""
        return self.task / nonzero(self.outer)

    def project(self, rows: Float[Array, "rows in"]) -> Float[Array, "rows in"]:
        """The part of every row inside the row space of the inputs."""
        return (rows @ self.whitened.T) @ self.whitened

    def time(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """T = speed t, kept finite at t = inf, where all exponentials have converged."""
        return finite_product(self.speed, jnp.asarray(t, self.task.dtype))

    def params(self, problem: Problem, layers: Sequence[Float[Array, "_ _"]]) -> PyTree:
        """The problem's parameters with their weights replaced by these layers."""
        eta = problem.net.rates().weights
        weights = tuple(jnp.sqrt(rate) * layer for rate, layer in zip(eta, layers, strict=True))
        return eqx.tree_at(lambda p: p.weights, problem.params, weights)


def linear_network(
    problem: Problem,
    *,
    matrices: int | None = None,
    hidden: int | None = None,
    outputs: int | None = None,
    loss: type[AbstractLoss] = MSE,
) -> list[Assumption]:
    """The assumptions that a problem has a linear network of this kind; None leaves a size free.

    The numbers of the problem may be read only if all assumptions hold (`structure_fits`).
    """
    net, x = problem.net, problem.x
    dense = isinstance(net, AbstractDense)
    count = len(net.weights) if dense else 0
    widths = net.widths if dense else ()
    kind = [
        ("a dense network", dense, type(net).__name__),
        ("linear activation", dense and net.activation.linear, str(net.activation) if dense else "?"),
        ("no biases", dense and not net.biases, "biases"),
        (
            "a loss" if loss is AbstractLoss else f"{loss.__name__} loss",
            isinstance(problem.loss, loss),
            type(problem.loss).__name__,
        ),
        ("inputs are vectors", x.ndim == 2, f"inputs of shape {x.shape[1:]}"),
        ("a training set", problem.sampler is None, "a stream of new samples"),
        ("no weight decay", problem.weight_decay is None, "weight decay"),
        ("at least two weight matrices", count >= 2, f"{count or 'unknown'} matrices"),
    ]
    if matrices is not None:
        kind.append((f"{matrices} weight matrices", count == matrices, f"{count or 'unknown'} matrices"))
    if hidden is not None:
        fits = dense and all(width == hidden for width in widths)
        kind.append((f"{hidden} hidden neuron{'s' * (hidden > 1)}", fits, f"hidden layers of {widths}"))
    if outputs is not None:
        count_y = problem.y.shape[1]
        kind.append((f"{outputs} output{'s' * (outputs > 1)}", count_y == outputs, f"{count_y} outputs"))
    return [Assumption.of_kind(name, bool(holds), found, x.dtype) for name, holds, found in kind]


def structure_fits(assumptions: Sequence[Assumption]) -> bool:
    """True if the problem is of the right kind, regardless of its numbers."""
    return not any(assumption.structural for assumption in assumptions)


def positive_rates(problem: Problem) -> Assumption:
    eta = jnp.stack([jnp.asarray(rate) for rate in problem.net.rates().weights])
    return Assumption("all rates are positive", jnp.where(jnp.all(eta > 0), 0.0, 1.0).astype(problem.dtype), 0.0)


def whitened_inputs(problem: Problem) -> Assumption:
    """All non-zero eigenvalues of the inputs' second moment are equal; the violation is their relative spread.

    A singular value of the inputs counts as zero below 100 eps of the largest, at any n: rounding leaves a few eps.
    (In the second moment, whose errors grow with n, values up to a quarter of the largest would be lost at n = 60000.)
    """
    x = problem.x / nonzero(jnp.max(jnp.abs(problem.x)))
    values = jnp.linalg.svd(x, full_matrices=False, compute_uv=False)  # all of U would need n x n numbers
    largest = values[0]
    present = values > 100 * float(jnp.finfo(x.dtype).eps) * largest
    smallest = jnp.min(jnp.where(present, values, largest))
    return Assumption(
        "inputs are whitened on their row space",
        (largest - smallest) * (largest + smallest) / nonzero(largest**2),
        tolerance(problem),
        "spread of the non-zero eigenvalues of their second moment",
    )


def tolerance(problem: Problem) -> float:
    """The largest measured violation that counts as rounding; outputs may be off by several times that."""
    return min(1e4 * float(jnp.finfo(problem.dtype).eps), 2e-4)


def linear_flow(problem: Problem) -> LinearFlow:
    """A problem of the right kind (see `linear_network`) in natural units. Exact if its inputs are whitened."""
    net, x = problem.net, problem.x
    n, d = x.shape
    eta = net.rates().weights
    layers = tuple(w / jnp.sqrt(rate) for w, rate in zip(net.weights, eta, strict=True))
    outer = net.scaling.gamma
    for index, rate in enumerate(eta):
        outer = outer * (net.scaling.multiplier[index] * jnp.sqrt(rate))
    # kappa^2 = |C|^2/tr C with C = X^T X/n is the common eigenvalue, if there is one; here for inputs scaled to size 1.
    one, size = scaled(x)
    # Both Gram matrices have the same nonzero eigenvalues: the smaller one is formed.
    gram = (one @ one.T if n <= d else one.T @ one) / n
    kappa_squared = jnp.sum(gram**2) / nonzero(jnp.sum(one**2) / n)
    whitened = one / nonzero(jnp.sqrt(n * kappa_squared))
    y = problem.y if problem.initial is None else problem.y + problem.initial
    task = (y.T @ one) / (n * nonzero(kappa_squared)) / size
    return LinearFlow(layers, task, outer, (outer * size) ** 2 * kappa_squared, whitened)
