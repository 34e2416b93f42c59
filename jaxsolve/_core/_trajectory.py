"""The observations along a run."""

from typing import Any, NamedTuple, TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .._checks import concrete
from .._results import result_code, result_names, RESULTS
from ._dynamics import Certificate, View


if TYPE_CHECKING:
    import xarray


class Label(NamedTuple):
    """The name of an observed array, its dimensions after time, and its unit."""

    name: str
    dims: tuple[str, ...]
    unit: str


class Stats(eqx.Module):
    """The cost of a run.

    For closed forms every count is 0.

    Attributes:
        steps, rejected: accepted and rejected steps.
        gradient_evaluations: evaluations of the gradient of the training loss; -1 if the integrator does not count
            them, as implicit ones do not, and for `RichLimit` of deep networks.
        kernel_evaluations: evaluations of the NTK on the training set.
        integrators: the names of the integrators that may have made the steps of a flow; empty otherwise.
        way: the index of the one that did, if the numbers of the problem decided inside a trace; else None.
    """

    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    gradient_evaluations: Int[Array, ""]
    kernel_evaluations: Int[Array, ""]
    integrators: tuple[str, ...] = eqx.field(static=True, default=())  # text
    way: Int[Array, ""] | None = None

    @property
    def integrator(self) -> str | np.ndarray:
        """The name of a flow's integrator, or an array of names for runs under `jax.vmap`; empty for other dynamics.

        While traced, it joins all possible names, as in `Tsit5 or FunctionSpace`.
        """
        way = 0 if len(self.integrators) < 2 else concrete(self.way)
        if way is None or not self.integrators:
            return " or ".join(self.integrators)
        names = np.asarray(self.integrators)[way]
        return names if names.ndim else str(names)

    def __repr__(self) -> str:
        names = ("steps", "rejected", "gradient_evaluations", "kernel_evaluations")
        counts = {name: concrete(getattr(self, name)) for name in names}
        shown = (f"{name}={'traced' if value is None else value.tolist()}" for name, value in counts.items())
        return f"Stats({', '.join(shown)}, integrator={self.integrator!r})"


class Trajectory(eqx.Module):
    """The observations of a run at each saved time, and how it ended.

    Attributes:
        ts: gradient-flow times of the observations, in the shape of the given `ts`. After an event, and at t = inf, the
            observations are those at the event.
        observed: arrays by name, with the axes of `ts` first. NaN at times that a failed run did not reach.
        t_end: the time at which the run ended.
        result: how it ended.
        stats: what it cost.
        certificate: how far the run can be trusted; None for descent, stochastic flows, and closed forms other than
            those of a fixed kernel.
        final: the `View` at the end; `final.net` is the trained network.
        labels: name, dimensions and unit of every observed array.
        dynamics: the name of the dynamics.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)), centered=True)
        >>> run = js.solve(problem, js.GradientFlow(until=js.until.loss_below(0.01)), [0.0, jnp.inf])
        >>> print(f"{run['loss'][1]:.3f}", bool(run.result == js.RESULTS.event))
        0.010 True
        >>> run.to_xarray().loss.dims, type(run.final.net).__name__
        (('t',), 'TwoLayerLinear')
    """

    ts: Float[Array, "..."]
    observed: dict[str, Array]
    t_end: Float[Array, ""]
    result: RESULTS
    stats: Stats
    certificate: Certificate | None
    final: View
    labels: tuple[Label, ...] = eqx.field(static=True)  # text
    dynamics: str = eqx.field(static=True)  # text

    def __getitem__(self, name: str) -> Array:
        if not isinstance(name, str) or name not in self.observed:
            raise KeyError(f"{name!r} was not observed; observed: {sorted(self.observed)}")
        return self.observed[name]

    @property
    def nbytes(self) -> int:
        """Memory of the observations and the final state, in bytes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self.observed, self.final)) if eqx.is_array(leaf))

    def to_xarray(self) -> "xarray.Dataset":
        """The observations as an `xarray.Dataset` with dimension `t`, units, and facts about the run in `attrs`."""
        import xarray

        times = np.asarray(self.ts)
        lead = ("t",) * times.ndim
        data = {
            label.name: (lead + label.dims, np.asarray(self.observed[label.name]), {"units": label.unit})
            for label in self.labels
        }
        attrs: dict[str, Any] = {
            "dynamics": self.dynamics,
            "result": str(result_names(result_code(self.result))),
            "t_end": float(self.t_end),
            "steps": int(self.stats.steps),
            "rejected": int(self.stats.rejected),
            "gradient_evaluations": int(self.stats.gradient_evaluations),
            "kernel_evaluations": int(self.stats.kernel_evaluations),
        }
        if self.certificate is not None:
            attrs["conserved_drift"] = float(self.certificate.conserved_drift)
            attrs["energy_balance"] = float(self.certificate.energy_balance)
            attrs["trust"] = float(self.certificate.trust)
        return xarray.Dataset(data, coords={"t": (lead, times, {"units": "gradient-flow time"})}, attrs=attrs)

    def __repr__(self) -> str:
        if concrete(self.t_end) is None or np.ndim(self.t_end):
            return f"Trajectory({self.dynamics}, traced or batched, observed={sorted(self.observed)})"
        times = np.atleast_1d(np.asarray(self.ts))
        lines = [
            f"Trajectory of {self.dynamics}: {result_names(result_code(self.result))}, t_end = {float(self.t_end):.4g}",
            f"  {times.size} time(s) from {times[0]:.4g} to {times[-1]:.4g}; {int(self.stats.steps)} steps, "
            f"{int(self.stats.rejected)} rejected",
        ]
        for label in self.labels:
            array = np.asarray(self.observed[label.name])
            ends = "" if array.ndim != 1 else f"  {array[0]:.4g} -> {array[-1]:.4g}"
            lines.append(f"  {label.name}: {array.shape} {array.dtype} [{label.unit}]{ends}")
        if self.certificate is not None:
            lines.append(f"  {self.certificate!r}")
        lines.append(f"  memory: {self.nbytes / 1e6:.3g} MB")
        return "\n".join(lines)
