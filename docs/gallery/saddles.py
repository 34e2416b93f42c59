"""Linear attention learns one principal component after another: gradient flow, and the limit of small weights."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxsolve as js


values, context = jnp.array([0.4, 0.3, 0.2, 0.1]), 31
data = js.data.in_context_moments(values, context)
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for color, size in zip(js.plot.COLORS, (0.1, 0.03, 0.01), strict=False):
    scaling = js.nets.Scaling([1.0] * 3, sigma=[size] * 3, eta=[1.0] * 3)
    net = js.nets.LinearAttention(in_shape=data.x.shape[1:], heads=8, rank=1, scaling=scaling, key=jax.random.key(1))
    problem = js.Problem(net, *data.train)
    ts = jnp.geomspace(10.0, 1e4, 300)
    run = js.solve(problem, js.GradientFlow(), ts)
    ax.plot(run.ts, 2 * run["loss"], color=color, label=f"weights of {size:g}")
    drops = js.AlternatingFlow(drops=4).drops(problem)
    steps = jnp.concatenate([ts[:1], drops.times, ts[-1:]])
    ax.stairs(2 * drops.losses, steps, baseline=None, color="black", linestyle="dashed", linewidth=0.8)
for loss in js.theory.in_context_losses(values, context):
    ax.axhline(float(loss), color="gray", linewidth=0.5, linestyle="dotted")
ax.set(xscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="mean squared error")
ax.legend(frameon=False)
