"""Figure 7: the output grows linearly up to t1, and by a factor sqrt(h)."""

import jax
import jax.numpy as jnp
import numpy as np

from ..._core import View
from ...observe import half_loss_time, loss, Observable, test_output_change
from ...plot import COLORS, MARKERS
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Values
from .._geiger import AtScale, measure, parity, power, SETTING, when


DEPTH = 2
WIDTHS = by_scale([16, 64, 256], [30, 100, 300, 1000])
SCALES = [1e-3, 1e-2, 1e-1]
SEEDS = by_scale(10, 10)
TESTS = 500
TIMES = np.concatenate([[0.0], np.geomspace(1e-6, 1e1, 57)])
EARLY = 0.03, 0.1  # in t1: where growth is linear
SHARED = SCALES[1]  # the sqrt(h) alpha of panels (b) to (d)


class Figure(AbstractFigure):
    title = "Figure 7: growth of the output, over time in units of t1"
    ours = SETTING + f" The values of sqrt(h) alpha: {', '.join(f'{scale:g}' for scale in SCALES)}."
    size = (6.8, 5.2)
    hours = by_scale(0.1, 5.0, 1000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        axes = {"width": WIDTHS[runs.scale], "scale": np.array(SCALES), "seed": range(SEEDS[runs.scale])}
        size = Observable("test_output_size", _size, unit="output")
        make = AtScale(parity(runs.scale, TESTS, SEEDS[runs.scale]), DEPTH)
        return {"flow": measure(runs, "flow", make, axes, TIMES, [loss(), test_output_change(), size])}

    def draw(self, figure: Picture, data: Data) -> None:
        half, moved, size = _read(data)
        widths, scales = half["width"].values, half["scale"].values
        (a, b), (c, d) = figure.subplots(2, 2, sharex=True)

        def draw(ax, values, where, label, place):
            unit = float(half.sel(where).mean("seed"))
            mean = np.exp(np.log(values.sel(where)).mean("seed"))[1:]
            style = {"color": COLORS[place], "marker": MARKERS[place], "ms": 3, "markevery": 4, "lw": 1.0}
            ax.plot(TIMES[1:] / unit, mean, **style, label=label)

        for place, scale in enumerate(scales):
            draw(a, moved, {"width": widths[1], "scale": scale}, rf"$\sqrt{{h}}\,\alpha = {scale:g}$", place)
        scaled = (size / size["width"] ** 0.5, moved, moved * SHARED / moved["width"] ** 0.5)
        for ax, values in zip((b, c, d), scaled, strict=True):
            for place, width in enumerate(widths):
                draw(ax, values, {"width": width, "scale": SHARED}, f"$h = {width}$", place)
        shared = rf"$\sqrt{{h}}\,\alpha = {SHARED:g}$"
        for ax, label, title in (
            (a, r"$|f(w_t) - f(w_0)|$", f"(a) $h = {widths[1]}$"),
            (b, r"$|f(w_t)|/\sqrt{h}$", f"(b) {shared}"),
            (c, r"$|f(w_t) - f(w_0)|$", f"(c) {shared}"),
            (d, r"$\alpha|f(w_t) - f(w_0)|$", f"(d) {shared}"),
        ):
            ax.set(xscale="log", yscale="log", xlim=(1e-3, 1e2), ylabel=label, title=title)
            ax.axvline(1.0, color="0.6", lw=0.6)
            ax.legend(frameon=False, fontsize=7)
            ax.xaxis.set_tick_params(labelbottom=True)
        lines = [y for line in a.lines[:-1] for x, y in zip(*line.get_data(), strict=True) if x >= 1e-3]
        a.set_ylim(0.5 * min(lines), 2 * max(lines))
        for ax in (c, d):
            ax.set_xlabel("time $t/t_1$")

    def claims(self, data: Data) -> Claims:
        half, moved, size = _read(data)
        after, start = slice(1, None), size.isel(t=0, drop=True)
        at = lambda values, share: when(TIMES[after], values.isel(t=after), share * half)
        first, second = (at(moved, share) for share in EARLY)
        growth = np.log(second / first) / np.log(EARLY[1] / EARLY[0])
        alpha = half["scale"] / half["width"] ** 0.5
        said = f"(a) Exponent of t in |f - f_0| from {EARLY[0]:g} to {EARLY[1]:g} t1."
        yield Claim(said, "1", (0.9, 1.1), *mean_over(growth.mean(["width", "scale"])))
        said = "(b) Exponent of h in |f(w)| at t1: the output grows by sqrt(h)."
        yield Claim(said, "1/2", (0.4, 0.6), *power(at(size, 1.0).sel(scale=SHARED), "width"))
        said = "(b) Exponent of h in |f(w)| at t1 over |f(w_0)|."
        yield Claim(
            said, "1/2", (0.35, 0.65), *power(at(size, 1.0).sel(scale=SHARED) / start.sel(scale=SHARED), "width")
        )
        said = f"(c) Exponent of h in |f - f_0| at {EARLY[1]:g} t1, at a given sqrt(h) alpha (eq. 30)."
        yield Claim(said, "1/2", (0.4, 0.6), *power(second.sel(scale=SHARED), "width"))
        said = f"(d) Exponent of sqrt(h) alpha in alpha |f - f_0| at {EARLY[1]:g} t1 (eq. 30)."
        yield Claim(said, "1", (0.9, 1.1), *power(second * alpha, "scale"))


def _size(view: View) -> jax.Array:
    """|f(w)| on the test set (eq. 29), f without the factor alpha."""
    net = view.net
    return jnp.sqrt(jnp.mean(jax.vmap(net)(view.problem.x_test) ** 2)) / net.scaling.gamma


def _read(data: Data) -> tuple[Values, Values, Values]:
    """t_1, and the norms of f - f_0 and of f."""
    runs = data["flow"].transpose(..., "t")
    half = runs["loss"].isel(t=0, drop=True).copy(data=half_loss_time(TIMES, runs["loss"].values))
    alpha = runs["scale"] / runs["width"] ** 0.5
    return half, runs["test_output_change"] / alpha, runs["test_output_size"]
