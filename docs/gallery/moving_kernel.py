"""The tangent kernel turns towards the classes while a network learns to tell two handwritten digits apart."""

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

import jaxsolve as js


data = js.data.digits(task=(4, 9), n_train=60, pca=10, key=jax.random.key(0)).train
net = js.nets.MLP(
    in_size=10,
    out_size=1,
    width_size=50,
    depth=2,
    activation="relu",
    scaling=js.nets.Scaling.ntk(0.1, eta=100.0),
    key=jax.random.key(1),
)
ts = np.concatenate([[0.0], np.geomspace(0.02, 30.0, 50)])
watched = [js.observe.kernel(), js.observe.loss(), js.observe.kernel_alignment()]
run = js.solve(js.Problem(net, *data, centered=True), js.GradientFlow(), ts, observe=watched)
order = np.argsort(np.asarray(data[1][:, 0]), kind="stable")
kernels = np.asarray(run["kernel"])[:, :, 0, :, 0][:, order][:, :, order]

fig, (matrix, curve) = plt.subplots(1, 2, figsize=(6.4, 3), layout="constrained")
shown = matrix.imshow(kernels[0] / np.abs(kernels[0]).max(), vmin=-1, vmax=1, cmap="RdBu")
fig.colorbar(shown, ax=matrix, shrink=0.8, label="kernel, of its largest entry")
matrix.set(xlabel="digits: fours, then nines", ylabel="digits", xticks=[], yticks=[])
(line,) = curve.plot([], [], color=js.plot.COLORS[0], label="alignment of kernel and targets")
(loss,) = curve.plot([], [], color=js.plot.COLORS[1], label="loss, of that at the start")
curve.set(xscale="log", xlim=(ts[1], ts[-1]), ylim=(0, 1.25), xlabel="time $t$ (gradient-flow units)")
curve.legend(frameon=False, fontsize=8, loc="upper center")


def draw(frame):
    """The kernel at one time, and both numbers up to it."""
    shown.set_data(kernels[frame] / np.abs(kernels[frame]).max())
    line.set_data(ts[: frame + 1], run["kernel_alignment"][: frame + 1])
    loss.set_data(ts[: frame + 1], run["loss"][: frame + 1] / run["loss"][0])


moving = FuncAnimation(fig, draw, frames=len(ts))
