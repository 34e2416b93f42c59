"""At the edge of stability descent jumps across a valley and is held there; gradient flow goes on."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.animation import FuncAnimation

import jaxsolve as js


# A valley along b: its floor falls towards b = 10, and its walls grow steeper, with curvature (1 + 0.3 b)^2.
outputs = lambda params, x: jnp.array([params["a"] * (1 + 0.3 * params["b"]), 0.04 * (params["b"] - 10)]) * x
net = js.nets.Function(outputs, {"a": jnp.array(0.3), "b": jnp.array(3.2)})
problem, rate, steps = js.Problem(net, jnp.ones((1, 1)), jnp.zeros((1, 2))), 0.5, 180
ts, watched = rate * jnp.arange(steps + 1), js.observe.parameters()
runs = {
    "gradient flow": js.solve(problem, js.GradientFlow(), ts, observe=watched),
    "descent": js.solve(problem, js.Descent(optax.sgd(rate)), ts, observe=watched),
    "central flow": js.solve(problem, js.CentralFlow(rate=rate), ts, observe=watched),
}
edge = (np.sqrt(2 / rate) - 1) / 0.3
fig, ax = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
b, a = np.meshgrid(np.linspace(3, 4, 100), np.linspace(-0.8, 0.8, 100))
ax.contour(b, a, (a * (1 + 0.3 * b)) ** 2 / 2 + (0.04 * (b - 10)) ** 2 / 2, levels=14, cmap="Greys", linewidths=0.6)
ax.axvline(edge, color="black", linestyle="dashed", linewidth=0.8, label="edge of stability")
lines = [
    ax.plot([], [], color=color, linewidth=0.6 if name == "descent" else 2, label=name)[0]
    for color, name in zip(js.plot.COLORS, runs, strict=False)
]
ax.set(xlim=(3, 4), ylim=(-0.8, 0.8), xlabel="along the valley, $b$", ylabel="across it, $a$")
ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")


def draw(frame):
    """The three runs up to one step."""
    for line, run in zip(lines, runs.values(), strict=True):
        line.set_data(run["parameters"][: frame + 1, 1], run["parameters"][: frame + 1, 0])


moving = FuncAnimation(fig, draw, frames=range(0, steps + 1, 3))
