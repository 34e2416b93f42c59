"""Muon finishes weak modes first, gradient flow strong ones: four modes of one network, under both."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

import jaxsolve as js


strengths, ones = np.array([3.0, 1.4, 0.6, 0.3]), [1.0] * 3
scaling = js.nets.Scaling(multiplier=ones, sigma=ones, eta=ones)
init = js.nets.Given([0.1 * jnp.eye(4)] * 3)
net = js.nets.DeepLinear(
    in_size=4, out_size=4, width_size=4, depth=2, scaling=scaling, init=init, key=jax.random.key(0)
)
problem = js.Problem(net, 2 * jnp.eye(4), 2 * jnp.diag(jnp.asarray(strengths)))
frames, learned = 56, {}
for flow, end in ((js.MuonFlow(), 1.6), (js.GradientFlow(), 60.0)):
    run = js.solve(problem, flow, np.linspace(0.0, end, frames), observe=js.observe.outputs())
    learned[flow.name] = np.diagonal(run["outputs"].reshape(-1, 4, 4), axis1=1, axis2=2) / (2 * strengths)

fig, axes = plt.subplots(1, 2, figsize=(6.4, 3), layout="constrained", sharey=True)
bars = []
for ax, name in zip(axes, learned, strict=True):
    bars.append(ax.bar([f"{strength:g}" for strength in strengths], [0] * 4, color=js.plot.COLORS[:4]))
    ax.set(title=name, xlabel="strength of the mode", ylim=(0, 1.1))
axes[0].set_ylabel("share learned")


def draw(frame):
    """What both have learned of each mode, at equal shares of their time."""
    for group, shares in zip(bars, learned.values(), strict=True):
        for bar, share in zip(group, shares[frame], strict=True):
            bar.set_height(share)


moving = FuncAnimation(fig, draw, frames=frames)
