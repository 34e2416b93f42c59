# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Limits: lazy, rich, and the edge of stability
#
# A network in training is close to simpler things: a kernel that stands still, a network of infinite width, a flow in
# place of steps. Here are four of them beside the runs that they describe.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/limits.ipynb)

# %%
import importlib.util
import subprocess
import sys


if importlib.util.find_spec("jaxsolve") is None:
    source = "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)

# %%
import diffrax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsolve as js


jax.config.update("jax_default_matmul_precision", "highest")  # accelerators round float32 products otherwise

# %% [markdown]
# ## Wide networks: two limits
#
# What decides is how large the read-out is. With `Scaling.ntk` it is a sum of order 1 at the start, and features
# hardly have to move: the lazy limit. With `Scaling.mean_field` it is small, of order 1/sqrt(N), and features must
# move: the rich limit.

# %%
data = js.data.gaussian(20, 3, key=jax.random.key(0))
ts = jnp.linspace(0.0, 10.0, 21)
watched = [js.observe.loss(), js.observe.outputs(), js.observe.kernel_change()]


def problem(rule, width, seed=0):
    scaling = js.nets.Scaling.mean_field() if rule == "mean field" else js.nets.Scaling.ntk()
    return js.Problem(
        js.nets.MLP(
            in_size=3,
            out_size=1,
            width_size=width,
            depth=1,
            activation="tanh",
            scaling=scaling,
            key=jax.random.key(seed),
        ),
        *data.train,
    )


for rule in ("mean field", "ntk"):
    print(f"{rule:10}", js.limits(problem(rule, 1000)))

# %% [markdown]
# Networks of four widths, four of each, under both scalings:

# %%
widths = [10, 40, 160, 640]
axes = {"rule": ["mean field", "ntk"], "width": widths, "seed": range(4)}
runs = js.sweep(problem, axes, js.GradientFlow(diffrax.Tsit5()), ts, observe=watched, progress=False)
limit = js.solve(problem("mean field", 640), js.RichLimit(), ts, observe=watched)
moved = runs["kernel_change"].isel(t=-1).mean("seed")
for rule in ("mean field", "ntk"):
    said = ", ".join(f"{float(moved.sel(rule=rule, width=width)):.2f}" for width in widths)
    print(f"{rule:10} the kernel moves by {said} at widths 10 to 640")
print(f"rich limit the kernel moves by {float(limit['kernel_change'][-1]):.2f}")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for color, rule in zip(js.plot.COLORS, ("mean field", "ntk"), strict=False):
    left.loglog(widths, moved.sel(rule=rule), "o-", color=color, label=rule)
left.axhline(float(limit["kernel_change"][-1]), color="black", linestyle="dashed", label="rich limit")
left.set(xlabel="width $N$", ylabel="kernel change, $t = 10$")
left.legend(frameon=False)
off = np.asarray(runs["outputs"].sel(rule="mean field")) - np.asarray(limit["outputs"])  # (width, seed, time, ...)
far = np.sqrt(np.mean(off**2, axis=(2, 3, 4)))
right.loglog(widths, far, ".", color=js.plot.COLORS[0])
right.loglog(widths, far.mean(1), color=js.plot.COLORS[0], label="mean field")
right.loglog(widths, 0.35 / np.sqrt(widths), "k:", label=r"$\propto N^{-1/2}$")
right.set(xlabel="width $N$", ylabel="rms distance of outputs\nto the rich limit")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# Left: the kernel of `ntk` networks moves less and less as they widen; that of mean-field networks goes to the
# limit's. Right: single networks approach the limit like 1/sqrt(N), since that is how large their random outputs are
# at the start.
#
# ## Which limit explains a network?
#
# `compare` runs them beside each other. The first is the reference.

# %%
js.compare(problem("mean field", 640), [js.GradientFlow(), js.RichLimit(), js.FrozenKernel()], ts)

# %% [markdown]
# ## Finite steps: the edge of stability
#
# Gradient flow is the limit of small steps. At the learning rates used in practice, the loss sharpens until steps of
# descent oscillate, at a sharpness of 2/rate. There descent follows the central flow, on average over its oscillation.

# %%
jax.config.update("jax_enable_x64", True)
keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (60, 6))
y = jnp.sign(x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3])
net = js.nets.MLP(
    in_size=6,
    out_size=1,
    width_size=16,
    depth=2,
    activation="tanh",
    bias=True,
    scaling=js.nets.Scaling.xavier(),
    key=keys[2],
)
sharp, rate = js.Problem(net, x, y), 0.5
ts = rate * jnp.arange(0.0, 201.0, 4.0)
watched = [js.observe.loss(), js.observe.averaged_loss(), js.observe.stability(optax.sgd(rate))]
edge = {
    "descent": js.solve(sharp, js.Descent(optax.sgd(rate)), ts, observe=watched),
    "gradient flow": js.solve(sharp, js.GradientFlow(), ts, observe=watched),
    "central flow": js.solve(sharp, js.CentralFlow(rate=rate), ts, observe=watched),
}
for name, run in edge.items():
    print(f"{name:14} sharpness x rate/2 at the end {float(run['stability'][-1]):.1f}")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for color, (name, run) in zip(js.plot.COLORS, edge.items(), strict=False):
    width = 0.8 if name == "descent" else 1.5
    left.plot(run.ts, run["stability"], color=color, linewidth=width, label=name)
    right.semilogy(run.ts, run["loss"], color=color, linewidth=width)
right.semilogy(ts, edge["central flow"]["averaged_loss"], "k--", label="averaged, predicted")
left.axhline(1.0, color="black", linewidth=0.8, linestyle="dotted")
left.set(xlabel=r"time $t$ (steps $\times$ rate)", ylabel="sharpness / (2 / rate)")
right.set(xlabel=r"time $t$ (steps $\times$ rate)", ylabel="training loss")
left.legend(frameon=False)
right.legend(frameon=False)
plt.show()

# %% [markdown]
# Descent is thrown back whenever it is beyond the edge; the central flow stays at it, and says what the loss is on
# average; gradient flow knows no edge. How well each of them describes descent, with numbers:
# [docs/edge-of-stability.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/edge-of-stability.md).
