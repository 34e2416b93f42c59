"""The certificate of a run: how far it can be trusted."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete


FLOAT64 = ", or take float64: jax.config.update('jax_enable_x64', True)"


class Certificate(eqx.Module):
    """A measure of how far a run can be trusted, from quantities that its solver did not control.

    Attributes:
        conserved_drift: largest change of a conserved quantity relative to its two terms; NaN if there is none.
        energy_balance: |L(0) - L(t) - integral of sum_l eta_l |dL/dtheta_l|^2|/L(0), or the balance of `MomentumFlow`;
            NaN if there is none.
        step_error: largest accepted estimate of a step's error, in units of the tolerance.
        rtol: relative tolerance of a step; NaN if there is none.
        doubt: the factor by which errors may exceed these, as they do for explicit solvers that take few steps.
        sampling_error: standard error of outputs that are estimated by an average over samples, relative to the largest
            output or target, or the square of the largest share of a signal that the samples leave out; NaN elsewhere.
        edge_error: for a flow at the edge of stability, the larger of an eigenvalue's largest excess over the edge,
            relative to the edge, and the residual of the complementarity problem; NaN elsewhere.
        residual: for the equations that each node of `RichLimit` solves by iteration, how far the last iteration still
            moved outputs or the kernels of a layer, relative to the largest of them; NaN elsewhere.
        spectral_error: for a flow under a fixed kernel, the error in outputs due to rounding of the kernel, above all
            of its small eigenvalues, relative to their gap to the targets at the start; or the error in test outputs,
            relative to the largest of them, if that is larger; NaN elsewhere.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> bool(js.solve(problem, js.GradientFlow(), 1.0).certificate.trust > 2)  # digits
        True
    """

    conserved_drift: Float[Array, ""]
    energy_balance: Float[Array, ""]
    step_error: Float[Array, ""]
    rtol: Float[Array, ""] | float = float("nan")
    doubt: Float[Array, ""] | float = 1.0
    sampling_error: Float[Array, ""] | float = float("nan")
    edge_error: Float[Array, ""] | float = float("nan")
    residual: Float[Array, ""] | float = float("nan")
    spectral_error: Float[Array, ""] | float = float("nan")

    @staticmethod
    def of_spectrum(error: Float[Array, ""]) -> "Certificate":
        """The certificate of a closed-form flow, whose only error is spectral."""
        unknown = jnp.full_like(error, jnp.nan)
        return Certificate(unknown, unknown, unknown, spectral_error=error)

    @property
    def trust(self) -> Float[Array, ""] | np.floating:
        """The number of digits to which the run can be trusted, from the worst of drift, balance and the other errors.

        It is 0 if the balance is above 1, as for a loss that bends within a step; the run may still be right. If the
        parameters start below some thousand times atol, atol decides the steps. The time at which learning begins may
        then be off by more, which nothing here detects: give a smaller atol.
        """
        of = self._numpy
        # fmax ignores NaN, which marks a measure that a run does not have.
        worst = of.fmax(of.fmax(self._of_steps, self.sampling_error), of.fmax(self.edge_error, self.residual))
        worst = of.fmax(worst, self.spectral_error)
        # No run has more digits than its dtype; an error above 1 leaves none.
        return of.maximum(-of.log10(of.maximum(worst, jnp.finfo(self.energy_balance.dtype).eps)), 0)

    @property
    def _of_steps(self) -> Float[Array, ""] | np.floating:
        of = self._numpy
        worst = of.fmax(of.fmax(self.conserved_drift, self.energy_balance), self.step_error * self.rtol)
        return worst * self.doubt

    @property
    def _numpy(self) -> Any:
        """NumPy after `on_host`, else JAX, which takes a hundred times as long for one number."""
        return jnp if isinstance(self.conserved_drift, jax.Array) else np

    def on_host(self) -> "Certificate | None":
        """The certificate in NumPy numbers; None if it is traced or holds several runs."""
        if any(concrete(leaf) is None for leaf in jax.tree.leaves(self)) or np.ndim(self.energy_balance):
            return None
        return jax.tree.map(np.asarray, self)

    @property
    def remedy(self) -> str:
        """Advice on how to reduce the largest error, for the concrete certificate of one run."""
        steps = (
            "Tighten rtol, or use another integrator, or a smoother loss or activation; docs/how-to-choose.md says "
            "how accurate runs with kinks can be"
        )
        nodes = "Give more nodes"  # for a limit, which has no tolerance
        samples = "Take four times the samples for half the error"
        if np.isnan(float(self._of_steps)):  # of descent
            samples += "; a linear network has no such error: use a smaller rate, at which descent oscillates less"
        single = np.asarray(self.spectral_error).dtype == np.float32
        errors = {
            "Ask for an earlier time" + (FLOAT64 if single else ""): self.spectral_error,
            steps if np.isnan(float(self.residual)) else nodes: np.fmax(float(self._of_steps), float(self.residual)),
            samples: self.sampling_error,
            "Tighten rtol": self.edge_error,
        }
        # NaN, which marks a missing measure, counts as less than any error.
        return max(errors, key=lambda said: np.nan_to_num(float(errors[said]), nan=-1.0))

    def __repr__(self) -> str:
        known = self.on_host()
        if known is None:
            return "Certificate(traced or batched)"
        found = {
            "conserved drift": f"{known.conserved_drift:.1e}",
            "energy balance": "lost" if known.energy_balance > 1 else f"{known.energy_balance:.1e}",
            "step error": f"{known.step_error:.2g} of tolerance",
            "sampling error": f"{known.sampling_error:.1e}",
            "edge error": f"{known.edge_error:.1e}",
            "residual": f"{known.residual:.1e}",
            "spectral error": f"{known.spectral_error:.1e}",
        }
        said = ", ".join(f"{name} {value}" for name, value in found.items() if not value.startswith("nan"))
        return f"Certificate({known.trust:.1f} digits: {said})"
