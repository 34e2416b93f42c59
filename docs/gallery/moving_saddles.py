"""From saddle to saddle: a linear network learns one direction of its target after the other, as predicted."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

import jaxsolve as js


strengths = np.array([4.0, 2.0, 1.0, 0.5])
data = js.data.gaussian(40, 4, whitened=True, teacher=jnp.diag(strengths), key=jax.random.key(0)).train
scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1e-4, 1e-4], eta=[1.0, 1.0], gamma=1.0)
net = js.nets.DeepLinear(in_size=4, out_size=4, width_size=10, depth=1, scaling=scaling, key=jax.random.key(2))
ts = np.linspace(0.0, 24.0, 73)
problem = js.Problem(net, *data)
run = js.solve(problem, js.GradientFlow(), ts, observe=[js.observe.parameters(), js.observe.loss()])
drops = js.AlternatingFlow(drops=4).drops(problem)
first, last = run["parameters"][:, :40].reshape(-1, 10, 4), run["parameters"][:, 40:].reshape(-1, 4, 10)
products = np.asarray(last @ first)

fig, (matrix, curve) = plt.subplots(1, 2, figsize=(6.4, 3), layout="constrained")
shown = matrix.imshow(products[0], vmin=-4, vmax=4, cmap="RdBu")
fig.colorbar(shown, ax=matrix, shrink=0.8, label="entry of $W_2 W_1$")
matrix.set(xlabel="input", ylabel="output", xticks=range(4), yticks=range(4))
(line,) = curve.plot([], [], color=js.plot.COLORS[0])
steps = np.concatenate([ts[:1], drops.times, ts[-1:]])
curve.stairs(drops.losses, steps, baseline=None, color="black", linestyle="dashed", linewidth=0.8, label="predicted")
curve.set(xlim=(0, ts[-1]), ylim=(0, 11.5), xlabel="time $t$ (gradient-flow units)", ylabel="training loss")
curve.legend(frameon=False, loc=(0.4, 0.6))


def draw(frame):
    """The network's function and its loss at one time."""
    shown.set_data(products[frame])
    line.set_data(ts[: frame + 1], run["loss"][: frame + 1])


moving = FuncAnimation(fig, draw, frames=len(ts))
