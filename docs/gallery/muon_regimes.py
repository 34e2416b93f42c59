"""Where features begin, under gradient flow and under Muon: how far kernels move until a fifth of the loss is left."""

import diffrax
import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxsolve as js


scales, widths, seeds = np.geomspace(0.1, 100, 7), [8, 16, 32, 64, 128], range(8)
x = jax.random.normal(jax.random.key(0), (12, 4))
y = jax.random.rademacher(jax.random.key(1), (12, 1), x.dtype)


def problem(alpha, width, seed):
    """A network f of one hidden layer, as alpha (f - f_0) would learn y: all divided by alpha."""
    scaling = js.nets.Scaling([0.5, width**-0.5], sigma=[1.0, 1.0], eta=[1.0, 1.0])
    key = jax.random.key(seed)
    net = js.nets.MLP(in_size=4, out_size=1, width_size=width, depth=1, activation="tanh", scaling=scaling, key=key)
    return js.Problem(net, x, y / alpha, centered=True)


until = js.until.loss_fraction(0.2)
flows = {
    "gradient flow": js.GradientFlow(diffrax.Tsit5(), rtol=1e-5, until=until),
    "Muon": lambda alpha: js.MuonFlow(eps=1e-3 / alpha, until=until),  # singular values of gradients go like 1/alpha
}
fig, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
axes[1].sharey(axes[0])
grid, narrow = js.sweeps.padded(problem, {"alpha": scales, "width": widths, "seed": seeds}, "width")
for ax, style, (name, flow) in zip(axes, ("-", "--"), flows.items(), strict=False):
    run = js.sweep(grid, narrow, flow, [0.0, np.inf], observe=js.observe.kernel_change(), progress=False)
    change = np.exp(np.log(run["kernel_change"].isel(t=-1)).mean("seed")).transpose("width", "alpha")
    cells = ax.pcolormesh(scales, widths, np.log10(change), vmin=-3, vmax=1, cmap="cividis", shading="nearest")
    ax.contour(scales, widths, change, [js.observe.KERNEL_REGIME_LIMIT], colors="white")
    ax.set(xscale="log", yscale="log", xlabel=r"output scale $\alpha$", title=name)
    for color, width in zip(js.plot.COLORS, widths[::2], strict=False):
        label = f"width {width}" if style == "-" else None
        axes[2].loglog(scales, change.sel(width=width), style, color=color, label=label)
axes[0].set(ylabel="width", yticks=widths, yticklabels=widths)
axes[0].minorticks_off()
axes[1].tick_params(labelleft=False)
fig.colorbar(cells, ax=axes[1], label=r"$\log_{10} |K-K_0|/|K_0|$")
axes[2].plot([], [], "k--", label="Muon")
axes[2].set(xlabel=r"output scale $\alpha$", ylabel="kernel change $|K-K_0|/|K_0|$")
axes[2].legend(frameon=False, fontsize=8)
