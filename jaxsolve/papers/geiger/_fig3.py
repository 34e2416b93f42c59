"""Figure 3: how far the kernel moves, how the loss falls, and the two times of training."""

import numpy as np

from ...observe import half_loss_time
from ...plot import collapse, COLORS
from .._claim import Claim, Claims, exponent, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Values
from .._geiger import (
    ALPHA_TESTS,
    ALPHA_TIMES,
    collapsing_power,
    FEATURE,
    guide,
    LAZY,
    logarithm,
    over_alpha,
    over_seeds,
    power,
    SETTING,
)


class Figure(AbstractFigure):
    title = "Figure 3: change of the kernel, loss and times t1, t2, over alpha and over sqrt(h) alpha"
    ours = SETTING + f" The kernel is that of {ALPHA_TESTS} test samples at small scale."
    size = (7.2, 6.6)
    hours = by_scale(0.08, 20.0, 5000.0)
    shares = "over_alpha"
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        return {"flow": over_alpha(runs)}

    def draw(self, figure: Picture, data: Data) -> None:
        from matplotlib import colormaps

        runs = data["flow"]
        change, (half, end), widths = _change(data), _times(data), runs["width"].values
        grid = figure.subplots(3, 2, sharey="row")
        for column, power_of_width in enumerate((0.0, 0.5)):
            collapse(change, "alpha", "width", power=power_of_width, ax=grid[0, column])
            for values, style in ((half, "-"), (end, "--")):
                collapse(values, "alpha", "width", power=power_of_width, ls=style, ax=grid[2, column])
        for style, name in (("-", "$t_1$"), ("--", "$t_2$")):
            grid[2, 1].plot([], [], color="0.3", ls=style, lw=1.0, label=name)
        guide(grid[0, 1], (6e-2, 6e-1), 3e2, -1.7, "slope $-1.7$", above=False)
        guide(grid[2, 1], (1e-2, 1.0), 1e-3, 1.0, "slope 1", above=False)
        shades = colormaps["cividis"](np.linspace(0.0, 0.9, runs.sizes["alpha"]))
        for width, style in zip(widths[[0, -1]], ("-", "--"), strict=True):
            for alpha, shade in zip(runs["alpha"].values, shades, strict=True):
                mean = runs["loss"].sel(width=width, alpha=alpha).mean("seed").values[1:-1]
                for column, unit in enumerate((1.0, width**0.5 * alpha)):
                    grid[1, column].plot(ALPHA_TIMES[1:-1] / unit, mean, color=shade, ls=style, lw=0.8)
            grid[1, 0].plot([], [], color="0.3", ls=style, lw=0.8, label=f"$h = {width}$")
        for place in (0, -1):
            label = rf"$\alpha = 10^{{{np.log10(runs['alpha'].values[place]):g}}}$"
            grid[1, 0].plot([], [], color=shades[place], lw=2.0, label=label)
        for ax, label in zip(grid[1], ("time $t$ (gradient-flow units)", r"$t/(\sqrt{h}\,\alpha)$"), strict=True):
            ax.set(xscale="log", xlabel=label, ylim=(0, 1.05))
        for row, letter in zip(grid, "abc", strict=True):
            row[0].set_title(f"({letter})", loc="left", fontsize=9)
        for row, label in zip(
            grid, (r"$|\Theta - \Theta_0|/|\Theta_0|$", r"rescaled loss $\alpha^2 L$", "time $t_1$, $t_2$"), strict=True
        ):
            row[0].set_ylabel(label)
        for row in (grid[0], grid[2]):
            row[0].set_xlabel(r"output scale $\alpha$")
            row[1].set_xlabel(r"$\sqrt{h}\,\alpha$")
        grid[0, 0].legend(frameon=False, fontsize=7)
        grid[1, 0].legend(frameon=False, fontsize=7)
        grid[2, 1].legend(handles=grid[2, 1].lines[-3:-1], frameon=False, fontsize=7)
        grid[0, 1].axhline(1.0, color=COLORS[-1], lw=0.6, ls=":")

    def claims(self, data: Data) -> Claims:
        change, (half, end) = _change(data), _times(data)
        logs, lazy = logarithm(change), data["flow"]["loss"].sel(alpha=LAZY).sel(t=1.0, method="nearest")
        moved, slow, fast = "change of the kernel", "feature learning", "lazy"
        said = f"(a) Exponent of alpha in the {moved}, {slow} (eq. 9)."
        yield Claim(said, "-1.7", (-1.9, -1.5), *power(change.sel(alpha=FEATURE), "alpha"))
        said = f"(a) Exponent of alpha in the {moved}, {fast}."
        yield Claim(said, "-1", (-1.1, -0.9), *power(change.sel(alpha=LAZY), "alpha"))
        said = f"(a) Exponent of h in the {moved}, {fast}."
        yield Claim(said, "-1/2", (-0.65, -0.35), *power(change.sel(alpha=LAZY), "width"), corrected=(-1.15, -0.85))
        together = over_seeds(lambda one: collapsing_power(one.mean("seed")), logs)
        yield Claim("(a) The curves collapse over h^p alpha: p.", "1/2", (0.3, 0.7), *together)
        said = "(a) The crossover: exponent of h in the alpha at which the kernel changes by its own size."
        yield Claim(said, "-1/2", (-0.65, -0.35), *exponent(logs["width"], _crossings(logs)))
        gap = mean_over((lazy.max("alpha") - lazy.min("alpha")).max("width"))
        yield Claim("(b) The lazy loss is that of any alpha: largest difference at t = 1.", "0", (-0.03, 0.03), *gap)
        gap = mean_over((lazy.max("width") - lazy.min("width")).max("alpha"))
        yield Claim("(b) Nor does it depend on h: largest difference at t = 1.", "0", (-0.03, 0.03), *gap)
        for axis, name, paper, accepted in (("alpha", "alpha", "1", (0.9, 1.1)), ("width", "h", "1/2", (0.35, 0.65))):
            said = f"(c) Exponent of {name} in t1, {slow} (eq. 10)."
            yield Claim(said, paper, accepted, *power(half.sel(alpha=FEATURE), axis))
        for name, times in (("t1", half), ("t2", end)):
            said = f"(c) Exponent of alpha in {name}, {fast}."
            yield Claim(said, "0", (-0.05, 0.05), *power(times.sel(alpha=LAZY), "alpha"))


def _change(data: Data) -> Values:
    return data["flow"]["test_kernel_change"].isel(t=-1)


def _times(data: Data) -> tuple[Values, Values]:
    """t_1 and t_2."""
    losses = data["flow"]["loss"].isel(t=slice(0, -1)).transpose(..., "t")
    return losses.isel(t=0, drop=True).copy(data=half_loss_time(ALPHA_TIMES[:-1], losses.values)), data["flow"]["t_end"]


def _crossings(logs: Values) -> np.ndarray:
    """The alpha at which a logarithm is 0, by linear interpolation over log alpha: by seed and width."""
    falling = logs.isel(alpha=slice(None, None, -1)).transpose("seed", "width", "alpha")
    x = np.log(falling["alpha"].values)
    return np.exp([[np.interp(0.0, row, x) for row in rows] for rows in falling.values])
