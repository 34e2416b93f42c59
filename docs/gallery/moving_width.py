"""Regimes of two-layer linear networks as the width grows, by the closed form."""

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

import jaxsolve as js


line = js.data.line(30, 5, key=jax.random.key(0))
widths, ts = [2**power for power in range(1, 10)], np.concatenate([[0.0], np.geomspace(0.1, 10.0, 25)])
axes = {"width": widths, "gamma": np.logspace(-2, 2, 25), "eta": np.logspace(-4, 4, 33)}


def problem(width, gamma, eta):
    """A network and points on a line."""
    scaling = js.nets.Scaling.ntk(gamma, sigma=0.7, eta=eta)
    net = js.nets.TwoLayerLinear(in_size=5, width_size=width, scaling=scaling, key=jax.random.key(1))
    return js.Problem(net, *line.train, centered=True)


watched = [js.observe.loss(), js.observe.kernel_change()]
runs = js.sweep(
    *js.sweeps.padded(problem, axes, "width"), js.theory.TwoLayerLine(), ts, observe=watched, progress=False
)
learned = (runs["loss"] <= 0.2 * runs["loss"].isel(t=0)).argmax("t")
half = js.observe.half_loss_time(ts, runs["loss"].values)
regimes = js.observe.classify(half, runs["kernel_change"].isel(t=learned - (learned == 0)).values, ts)

fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
fig.legend(handles=js.plot.phase_legend_handles(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def draw(frame):
    """The map at one width."""
    ax.clear()
    map_ = js.plot.phase_diagram(axes["gamma"], axes["eta"], regimes[frame].T, ax=ax)
    map_.collections[0].set_edgecolor("face")
    ax.set(xlabel=r"output scale $\gamma$", ylabel=r"learning rate $\eta$", title=f"width {widths[frame]}")


moving = FuncAnimation(fig, draw, frames=np.repeat(np.arange(len(widths)), 4))
