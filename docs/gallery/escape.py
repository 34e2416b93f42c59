"""The smaller the start, the longer the plateau: theory (dashed) and gradient flow."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxsolve as js


x, y = js.data.gaussian(40, 3, whitened=True, teacher=jnp.array([[1.0], [-0.5], [0.2]]), key=jax.random.key(0)).train
ts = jnp.linspace(0.0, 12.0, 60)
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for i, sigma in enumerate((0.3, 0.03, 0.003)):
    scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[sigma, sigma], eta=[1.0, 1.0], gamma=1.0)
    problem = js.Problem(js.nets.SingleNeuron(in_size=3, scaling=scaling, key=jax.random.key(3)), x, y)
    flow = js.solve(problem, js.GradientFlow(), ts)
    theory = js.solve(problem, js.theory.SingleNeuronFlow(), ts)
    ax.plot(flow.ts, flow["loss"], color=js.plot.COLORS[i], label=rf"$\sigma = {sigma:g}$")
    ax.plot(theory.ts, theory["loss"], color="black", linestyle="dashed", linewidth=0.8)
ax.set(xlabel="time $t$ (gradient-flow units)", ylabel="training loss")
ax.legend(frameon=False)
