"""The assumptions that a theory makes about a problem, and by how much a problem violates them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._checks import concrete, see


class Assumption(eqx.Module):
    """One assumption of a theory, and by how much a problem violates it.

    Arguments:
        name: what is assumed.
        violation: its measured size; 0 means that the assumption holds, inf that the problem is of another kind.
        tolerance: the largest violation that counts as rounding.
        detail: what was found, in words.
        other_kind: whether the problem is of another kind, which is known without its numbers.

    Example:
        >>> small = js.Assumption("rates below 2", jnp.asarray(3.0), tolerance=2.0)
        >>> print(js.Validity((small,)).missed())
        rates below 2 (violation 3, tolerance 2)
    """

    name: str = eqx.field(static=True)  # text
    violation: Float[Array | np.ndarray, ""]
    tolerance: float = eqx.field(static=True)  # decided by the dtype
    detail: str = eqx.field(static=True, default="")  # text
    other_kind: bool = eqx.field(static=True, default=False)  # decides which program can be traced at all

    @staticmethod
    def of_kind(name: str, holds: bool, found: str, dtype: Any) -> "Assumption":
        """An assumption about the kind of a problem; if it fails, `found` says what the problem is instead."""
        violation = np.asarray(0.0 if holds else np.inf, dtype)
        return Assumption(name, violation, 0.0, "" if holds else f"it has {found}", not holds)

    @property
    def holds(self) -> Bool[Array | np.ndarray, ""] | np.bool:
        """True if the violation is within the tolerance."""
        return self.violation <= self.tolerance

    @property
    def structural(self) -> bool:
        """True if the kind of problem, not its numbers, is wrong: known even inside a trace."""
        known = concrete(self.violation)
        return self.other_kind or (known is not None and bool(np.isinf(known)))


class Validity(eqx.Module):
    """The validity of a theory for a problem: it solves the problem exactly, asymptotically, or not at all.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> check = js.theory.TwoLayerLine().check
        >>> bool(check(js.Problem(net, jnp.ones((3, 2)), jnp.ones((3, 1)))).exact)
        True
        >>> print(check(js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))).missed())
        inputs lie on a line (violation 0.707, tolerance ...): share of the inputs' norm off the line
    """

    assumptions: tuple[Assumption, ...]
    asymptotic: bool = eqx.field(static=True, default=False)  # a property of the theory

    @property
    def applies(self) -> Bool[Array, ""]:
        """True if every assumption holds."""
        return jnp.all(jnp.array([a.holds for a in self.assumptions], bool))  # true without assumptions

    @property
    def exact(self) -> Bool[Array, ""]:
        """True if the theory's solution is exact for this problem."""
        return self.applies & (not self.asymptotic)

    @property
    def structural(self) -> bool:
        """True if an assumption about the kind of problem fails."""
        return any(a.structural for a in self.assumptions)

    def missed(self) -> str:
        """The assumptions that fail, in words. For concrete problems only."""
        lines = []
        for a in self.assumptions:
            if not bool(a.holds):
                size = "" if a.structural else f" (violation {float(a.violation):.3g}, tolerance {a.tolerance:.1g})"
                lines.append(f"{a.name}{size}" + (f": {a.detail}" if a.detail else ""))
        return "; ".join(lines)

    def refusal(self, name: str) -> "NotApplicable":
        """The error that says why the theory of this name does not apply. For concrete problems only."""
        return NotApplicable(f"{name} does not solve this problem: it needs {self.missed()}{see('not-applicable')}")


class NotApplicable(ValueError):
    """A closed form does not solve the problem that it was given; the message says which assumption fails.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> try:
        ...     js.solve(problem, js.theory.TwoLayerLine(), 1.0)
        ... except js.NotApplicable as error:
        ...     print(error)
        TwoLayerLine does not solve this problem: it needs linear activation: it has tanh (see ...)
    """
