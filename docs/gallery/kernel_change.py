"""How far the kernel moves, by output scale, in closed form."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxsolve as js


line = js.data.line(30, 5, key=jax.random.key(0))
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for gamma in (0.1, 1.0, 10.0):
    net = js.nets.TwoLayerLinear(in_size=5, width_size=100, scaling=js.nets.Scaling.ntk(gamma), key=jax.random.key(1))
    problem = js.Problem(net, *line.train)
    ts = jnp.geomspace(1e-3, 1e3, 60)
    run = js.solve(problem, js.theory.TwoLayerLine(), ts, observe=js.observe.kernel_change())
    ax.plot(run.ts, run["kernel_change"], label=rf"$\gamma = {gamma:g}$")
ax.set(xscale="log", yscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="kernel change $|K-K_0|/|K_0|$")
ax.legend(frameon=False)
