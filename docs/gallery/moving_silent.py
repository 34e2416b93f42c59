"""Silent alignment: the kernel's ellipse turns to the target while the function has hardly left the origin."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

import jaxsolve as js


target = jnp.array([[1.2], [0.9]])
data = js.data.gaussian(40, 2, whitened=True, teacher=target, key=jax.random.key(0)).train
scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[3e-3, 3e-3], eta=[1.0, 1.0], gamma=1.0)
net = js.nets.TwoLayerLinear(in_size=2, width_size=20, scaling=scaling, key=jax.random.key(6))
ts = np.linspace(0.0, 8.0, 65)
run = js.solve(js.Problem(net, *data), js.GradientFlow(), ts, observe=[js.observe.parameters(), js.observe.loss()])
first, last = run["parameters"][:, :40].reshape(-1, 20, 2), run["parameters"][:, 40:]
function = jnp.einsum("th,thi->ti", last, first)  # the network is x -> function . x
# A step moves the function by `pace` times the gradient: its directions and sizes are the kernel's.
pace = jnp.einsum("thi,thj->tij", first, first) + jnp.eye(2) * jnp.sum(last**2, 1)[:, None, None]

angles = np.linspace(0, 2 * np.pi, 100)
circle = np.stack([np.cos(angles), np.sin(angles)])
fig, (plane, curve) = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")


def draw(frame):
    """The function and its kernel at one time, and the loss up to it."""
    plane.clear()
    plane.plot(*target, "*", color="black", markersize=10, label="target")
    plane.plot(*function[: frame + 1].T, color=js.plot.COLORS[1])
    unit = pace[frame] / jnp.linalg.norm(pace[frame], 2)
    plane.plot(*(function[frame][:, None] + 0.35 * unit @ circle), color=js.plot.COLORS[0], label="kernel (direction)")
    plane.set(xlim=(-0.5, 1.5), ylim=(-0.5, 1.5), xlabel="function, along $x_1$", ylabel="along $x_2$", aspect="equal")
    plane.legend(frameon=False, loc="upper left", fontsize=8)
    curve.clear()
    curve.plot(ts[: frame + 1], run["loss"][: frame + 1], color=js.plot.COLORS[1])
    curve.set(xlim=(0, ts[-1]), ylim=(0, 1.2), xlabel="time $t$ (gradient-flow units)", ylabel="training loss")


moving = FuncAnimation(fig, draw, frames=len(ts))
