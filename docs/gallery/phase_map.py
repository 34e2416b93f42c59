"""Regimes of a two-layer linear network: cells are trained by gradient flow, lines are the closed form's."""

import diffrax
import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxsolve as js


line = js.data.line(30, 5, key=jax.random.key(0))
grid = {"gamma": np.logspace(-2, 2, 49), "eta": np.logspace(-4, 5, 55)}
first, last, done = 0.1, 10.0, 0.2


def problem(gamma, eta):
    """A network of width 32 and points on a line."""
    scaling = js.nets.Scaling.ntk(gamma, sigma=0.7, eta=eta)
    net = js.nets.TwoLayerLinear(in_size=5, width_size=32, scaling=scaling, key=jax.random.key(1))
    return js.Problem(net, *line.train, centered=True)


def halves_and_changes(dynamics, ts):
    """When the loss has halved, and how far the kernel has moved when a fifth of it is left."""
    watched = [js.observe.loss(), js.observe.kernel_change()]
    run = js.sweep(problem, grid, dynamics, ts, observe=watched, progress=False).transpose("eta", "gamma", ...)
    fallen = run["loss"] <= 1.001 * done * run["loss"].isel(t=0)
    change = run["kernel_change"].isel(t=fallen.argmax("t").where(fallen.any("t"), -1))
    return js.observe.half_loss_time(ts, run["loss"].values), change.values


ts = np.concatenate([[0.0], np.geomspace(first, last, 13)])
flow = js.GradientFlow(diffrax.Tsit5(), rtol=1e-5, until=js.until.loss_fraction(done), max_steps=20_000)
regimes = js.observe.classify(*halves_and_changes(flow, ts), ts)
half, change = halves_and_changes(js.theory.TwoLayerLine(), np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 400)]))
between = np.where((first < half) & (half < last), np.log(change / js.observe.KERNEL_REGIME_LIMIT), np.nan)

x, y = grid["gamma"], grid["eta"]
borders = [
    js.plot.Boundary("theory: frozen", x, y, np.log(half / last), "dashed"),
    js.plot.Boundary("theory: unstable", x, y, np.log(half / first), "dotted"),
    js.plot.Boundary("theory: kernel | features", x, y, between, "solid"),
]
fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
js.plot.phase_diagram(x, y, regimes, boundaries=borders, ax=ax).collections[0].set_edgecolor("face")
for name, at in (("kernel", (30, 2e-3)), ("features", (0.05, 100)), ("frozen", (0.06, 2e-3)), ("unstable", (10, 1e3))):
    ax.text(*at, name, ha="center", color="white" if name in ("kernel", "unstable") else "black")
ax.set(xlabel=r"output scale $\gamma$", ylabel=r"learning rate $\eta$")
