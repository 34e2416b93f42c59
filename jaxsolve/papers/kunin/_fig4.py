"""Figure 4: which interpolant one neuron finds on low-rank data, from the lazy one to the rich one."""

from math import inf

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...theory import implicit_bias, single_neuron_limit, SingleNeuronPotential
from .._claim import Claim, Claims, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._kunin_neuron import beta, DELTAS, draw_loss, LOW_RANK, WATCHED


TIMES = np.concatenate([[0.0], np.geomspace(0.02, 20, 100), [40.0, 100.0, 400.0]])
EXTREMES = (-64.0, 64.0)
LIMITS = (-0.2, 1.8, -0.2, 1.3)


class Figure(AbstractFigure):
    title = "Figure 4: the implicit bias of one neuron on low-rank data; ends in theory (crosses) and by flow (points)"
    ours = f"delta = {EXTREMES[0]:g} and {EXTREMES[1]:g} in addition, near both limits; runs until t = {TIMES[-1]:g}."
    size = (6.6, 3.3)
    hours = by_scale(0.01, 0.01)

    def run(self, runs: Runs) -> Data:
        axes = {"delta": np.array([EXTREMES[0], *DELTAS, EXTREMES[1]])}
        flow = GradientFlow(Tsit5(), rtol=1e-8, atol=1e-10)
        return {"flow": runs.sweep("flow", LOW_RANK, axes, flow, TIMES, observe=WATCHED)}

    def draw(self, figure: Picture, data: Data) -> None:
        from matplotlib import colormaps

        plane, curve = figure.subplots(1, 2)
        draw_loss(plane, LOW_RANK, LIMITS)
        (one,), (y,) = LOW_RANK.x, LOW_RANK.y
        first = np.array(LIMITS[:2])
        plane.plot(first, (y - one[0] * first) / one[1], color="black", lw=0.8, ls="--", label="interpolants")
        paths = beta(data["flow"])
        for delta, color in zip(DELTAS, colormaps["cividis"](np.linspace(0, 0.92, len(DELTAS))), strict=True):
            path = paths.sel(delta=delta).values
            plane.plot(*path.T, color=color, lw=1.1, label=rf"$\delta = {delta:g}$")
            plane.plot(*path[-1], color=color, marker="o", ms=4)
            plane.plot(*_end(delta), color="black", marker="x", ms=5, ls="")
        plane.plot(*LOW_RANK.beta_0, color="black", marker="s", ms=4)
        plane.set_ylabel(r"$\beta_2$")
        plane.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        every = np.linspace(-8, 8, 81)
        curve.plot(every, [_place(_end(delta)) for delta in every], color="black", lw=1.0, label="theory")
        curve.plot(DELTAS, [_place(paths.sel(delta=delta).values[-1]) for delta in DELTAS], "o", ms=4, label="flow")
        for delta, label, style in ((inf, "lazy limit", ":"), (-inf, "rich limit", "--")):
            curve.axhline(_place(_end(delta)), color="0.5", lw=0.8, ls=style, label=label)
        curve.set(xlabel=r"relative scale $\delta$", ylabel="place along the line of interpolants")
        curve.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        ends = beta(data["flow"]).isel(t=-1)
        deltas = [float(delta) for delta in ends["delta"]]
        theory = np.array([_end(delta) for delta in deltas])
        x, y, beta_0 = (np.array(part) for part in LOW_RANK)
        potential = [implicit_bias(SingleNeuronPotential(beta_0, delta), x, y) for delta in deltas]
        places = [_place(end) for end in ends.values]
        low, high = _place(_end(-inf)), _place(_end(inf))
        wide = abs(high - low)
        said = "Training ends at the minimizer of Theorem 3.1, where A.4 says: largest distance over nine delta."
        off = max(np.abs(ends.values - one).max() for one in (np.array(potential), theory))
        yield Claim(said, "0", (0.0, 1e-4), float(off))
        said = (
            f"At delta = {EXTREMES[1]:g} it is the interpolant nearest to the start: distance from it, in "
            "that of the two limits."
        )
        yield Claim(said, "0", (0.0, 0.05), abs(places[-1] - high) / wide)
        said = f"At delta = {EXTREMES[0]:g} it is that in the direction of the start: distance from it, likewise."
        yield Claim(said, "0", (0.0, 0.05), abs(places[0] - low) / wide)
        said = "From one to the other it moves monotonically: least step to the next delta, towards the lazy one."
        yield Claim(said, *POSITIVE, float((np.diff(places) * np.sign(high - low)).min()))


def _end(delta: float) -> np.ndarray:
    """The point where the theory ends; delta may be infinite."""
    return np.asarray(single_neuron_limit(np.array(LOW_RANK.x[0]), LOW_RANK.y[0], np.array(LOW_RANK.beta_0), delta))


def _place(end: np.ndarray) -> float:
    """The signed position of a point along the line of interpolants, from its point nearest to 0."""
    one = np.array(LOW_RANK.x[0])
    return float(np.array([one[1], -one[0]]) @ end / np.linalg.norm(one))
