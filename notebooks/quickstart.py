# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first look at jaxsolve
#
# Is a network in the kernel regime, or does it learn features? We ask a two-layer linear network, for which the answer
# is known exactly, and then a nonlinear one on handwritten digits.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/quickstart.ipynb)

# %%
import importlib.util
import subprocess
import sys


if importlib.util.find_spec("jaxsolve") is None:
    source = "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxsolve as js


jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## Exact, and simulated
#
# A problem is a network at its start, data and a loss. Inputs on a line make the two-layer linear network exactly
# solvable at any width (Xu & Liu Ziyin). `compare` runs the closed form and gradient flow from the same start.

# %%
line = js.data.line(30, 5, key=jax.random.key(0))
scaling = js.nets.Scaling.ntk(gamma=0.3)
net = js.nets.TwoLayerLinear(in_size=5, width_size=20, scaling=scaling, key=jax.random.key(1))
problem = js.Problem(net, *line.train)

ts = jnp.geomspace(1e-1, 1e2, 40)
watched = [js.observe.loss(), js.observe.layer_alignment(), js.observe.kernel_change()]
both = js.compare(problem, [js.exact(problem), js.GradientFlow()], ts, observe=watched)
both

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained")
for ax, what in zip(axes, ("loss", "kernel_change")):
    js.plot.comparison(both, what, ax=ax).get_legend().remove()
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## The time scale, and what makes it
#
# Equation (17) of the paper splits the rate of learning into a feature-learning and a kernel term. The larger one
# names the regime.

# %%
for gamma in (0.1, 1.0, 10.0):
    net = js.nets.TwoLayerLinear(in_size=5, width_size=20, scaling=js.nets.Scaling.ntk(gamma), key=jax.random.key(1))
    scale = js.theory.TwoLayerLine().reduce(js.Problem(net, *line.train)).timescale
    print(f"gamma {gamma:5}: t_c {scale.t_c:8.3f}, feature {scale.feature:7.3f}, kernel {scale.kernel:7.3f}")

# %% [markdown]
# ## Real digits, a nonlinear network
#
# Small output scale: the kernel moves, features are learned. Large: it stays, and training is kernel regression.

# %%
data = js.data.digits(task="parity", n_train=100, pca=10, key=jax.random.key(0))
fig, ax = plt.subplots(figsize=(3.6, 2.6), layout="constrained")
for gamma, color in ((0.1, js.plot.COLORS[0]), (1.0, js.plot.COLORS[1]), (10.0, js.plot.COLORS[2])):
    scaling = js.nets.Scaling.ntk(gamma, eta=gamma**-2)
    net = js.nets.MLP(
        in_size=10, out_size=1, width_size=64, depth=2, activation="tanh", scaling=scaling, key=jax.random.key(1)
    )
    problem = js.Problem(net, *data.train, test=data.test, centered=True)
    run = js.solve(problem, js.GradientFlow(), jnp.geomspace(1e-2, 1e2, 30), observe=js.observe.kernel_change())
    ax.plot(run.ts, run["kernel_change"], color=color, label=rf"$\gamma={gamma}$")
ax.set(xscale="log", yscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="kernel change $|K-K_0|/|K_0|$")
ax.legend(frameon=False)
plt.show()
run
