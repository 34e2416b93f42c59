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
    """A measure of how far a run can be trusted, from quantities its solver did not control.

    Attributes:
        conserved_drift: largest change of a conserved quantity relative to its two terms; NaN if there is none.
        energy_balance: |L(0) - L(t) - integral of sum_l eta_l |dL/dtheta_l|^2|/L(0), or that of `MomentumFlow`, or NaN.
        step_error: largest accepted estimate of a step's error, in units of the tolerance.
        rtol: relative tolerance of a step; NaN where there is none.
        doubt: by how much errors may exceed these, as those of explicit solvers do in few steps.
        sampling_error: standard error of the outputs where an average over samples stands for them, relative to the
            largest output or target, or the square of the largest share of a signal that such samples leave out; NaN
            elsewhere.
        edge_error: of a flow at the edge of stability, the larger of how far an eigenvalue has been beyond it, relative
            to the edge, and of the residual of the complementarity problem; NaN elsewhere.
        residual: of the equations that a node of `RichLimit` solves for itself, how far the last iteration still moved
            outputs or the kernels of a layer, relative to the largest of them; NaN elsewhere.
        spectral_error: of a flow under a fixed kernel, the error that rounding of the kernel, above all of its small
            eigenvalues, leaves in outputs, relative to their gap at the start, or that of test outputs, relative to
            the largest of them, if it is larger; NaN elsewhere.

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
        """The certificate of a flow in closed form, which has a spectral error and no other."""
        unknown = jnp.full_like(error, jnp.nan)
        return Certificate(unknown, unknown, unknown, spectral_error=error)

    @property
    def trust(self) -> Float[Array, ""] | np.floating:
        """Digits that the run can be trusted to: those of the worst of drift, balance and the other errors.

        0 where the balance is above 1, as of a loss that bends within a step: the run may be right all the same. From
        a start of parameters below some thousand times atol, which then decides steps, the time at which learning
        begins may be off by more, and nothing here sees it: give a smaller atol.
        """
        of = self._numpy
        # fmax passes over NaN, which stands for a measure that a run does not have.
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
        """NumPy for its own numbers, of `on_host`: JAX takes a hundred times as long for one."""
        return jnp if isinstance(self.conserved_drift, jax.Array) else np

    def on_host(self) -> "Certificate | None":
        """The same in NumPy's numbers; None if they are traced, or those of several runs."""
        if any(concrete(leaf) is None for leaf in jax.tree.leaves(self)) or np.ndim(self.energy_balance):
            return None
        return jax.tree.map(np.asarray, self)

    @property
    def remedy(self) -> str:
        """Advice on what makes the largest error smaller; of one run, with values."""
        steps = (
            "Tighten rtol, or take another integrator, or a smoother loss or activation; docs/how-to-choose.md says "
            "what can be had where there are kinks"
        )
        nodes = "Give more nodes"  # of a limit, which has no tolerance
        samples = "Take four times the samples for half the error"
        if np.isnan(float(self._of_steps)):  # of descent
            samples += "; a linear network has none: take a smaller rate, at which descent oscillates less"
        single = np.asarray(self.spectral_error).dtype == np.float32
        errors = {
            "Ask for an earlier time" + (FLOAT64 if single else ""): self.spectral_error,
            steps if np.isnan(float(self.residual)) else nodes: np.fmax(float(self._of_steps), float(self.residual)),
            samples: self.sampling_error,
            "Tighten rtol": self.edge_error,
        }
        # NaN, for a measure that is not there, counts as less than any error.
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
