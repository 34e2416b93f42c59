"""Networks of growing width, and the limit that they come to: what each has learnt of a line, over time."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

import jaxsolve as js


x = jnp.linspace(-1.0, 1.0, 9)[:, None]
inputs, y = jnp.concatenate([x, jnp.ones_like(x)], axis=1), jnp.sin(3.0 * x)
ts, widths = np.linspace(0.0, 40.0, 41), (8, 64, 512)


def problem(width):
    """A network in the scaling whose limit learns features."""
    net = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=width,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.mean_field(sigma=2.0),
        key=jax.random.key(1),
    )
    return js.Problem(net, inputs, y)


runs = {f"width {n}": js.solve(problem(n), js.GradientFlow(), ts, observe=js.observe.outputs()) for n in widths}
runs["limit"] = js.solve(problem(512), js.RichLimit(), ts, observe=js.observe.outputs())
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
ax.plot(x, y, "k+", label="targets")
styles = [*({"color": color} for color in js.plot.COLORS[:3]), {"color": "black", "linestyle": "dashed"}]
lines = [ax.plot(x, x, label=name, **style)[0] for name, style in zip(runs, styles, strict=True)]
ax.set(ylim=(-1.4, 1.4), xlabel="input $x$", ylabel="output $f(x)$")
ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def draw(frame):
    """The functions at one time."""
    for line, run in zip(lines, runs.values(), strict=True):
        line.set_ydata(run["outputs"][frame, :, 0])
    ax.set_title(f"$t = {ts[frame]:.0f}$ (gradient-flow units)", fontsize=10)


moving = FuncAnimation(fig, draw, frames=len(ts))
