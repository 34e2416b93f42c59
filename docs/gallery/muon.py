"""Muon finishes weak modes first, gradient flow strong ones: shares of the target that four modes have learned."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxsolve as js


strengths, ones = jnp.array([3.0, 1.4, 0.6, 0.3]), [1.0] * 3
scaling = js.nets.Scaling(multiplier=ones, sigma=ones, eta=ones)
init = js.nets.Given([0.1 * jnp.eye(4)] * 3)
net = js.nets.DeepLinear(
    in_size=4, out_size=4, width_size=4, depth=2, scaling=scaling, init=init, key=jax.random.key(0)
)
problem = js.Problem(net, 2 * jnp.eye(4), 2 * jnp.diag(strengths))
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained", sharey=True)
for ax, flow, end in zip(axes, (js.MuonFlow(), js.GradientFlow()), (1.6, 60.0), strict=True):
    ts = jnp.linspace(0.0, end, 300)
    run = js.solve(problem, flow, ts, observe=js.observe.outputs())
    for mode, color in enumerate(js.plot.COLORS[:4]):
        learned = run["outputs"].reshape(-1, 4, 4)[:, mode, mode] / (2 * strengths[mode])
        ax.plot(ts, learned, color=color, label=f"target {strengths[mode]:g}")
    ax.set(xlabel="time $t$", title=flow.name)
axes[0].set(ylabel="share learned")
axes[1].legend(frameon=False)
