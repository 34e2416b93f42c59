# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Silent alignment
#
# A network that starts small learns in two phases: first its kernel turns towards the target while the loss stands
# still, then the kernel grows and the loss falls. So in the end the network is kernel regression with its *final*
# kernel (Atanasov, Bordelon and Pehlevan 2022).
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/silent_alignment.ipynb)

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
import numpy as np

import jaxsolve as js


jax.config.update("jax_enable_x64", True)
LOSS, NORM, TURN = js.plot.COLORS[:3]

# %% [markdown]
# ## A linear network, in theory and by gradient flow
#
# Two linear layers, whitened inputs, weights of scale $\sigma = 0.01$. `js.theory.SilentAlignment` is the paper's
# solution for small starts: it is asymptotic, and `check` says how small the start is.

# %%
x = js.data.gaussian(50, 10, whitened=True, key=jax.random.key(0)).x
beta = jax.random.normal(jax.random.key(1), (10, 1))
y = x @ (beta / jnp.linalg.norm(beta))
net = js.nets.TwoLayerLinear(
    in_size=10, width_size=30, scaling=js.nets.Scaling.standard(sigma=0.01), key=jax.random.key(2)
)
linear = js.Problem(net, x, y)

ts = jnp.linspace(0.0, 10.0, 81)
watched = [js.observe.loss(), js.observe.kernel_norm(), js.observe.kernel_alignment()]
flow = js.GradientFlow(rtol=1e-6, atol=1e-9)
both = js.compare(linear, [js.theory.SilentAlignment(), flow], ts, observe=watched)
print(both)

# %% [markdown]
# Lines are theory, dots gradient flow. The alignment (green) has risen before the loss (blue) has moved: the kernel
# turns while it is still tiny. Only then its norm (orange) grows, and the loss falls with it.


# %%
def draw(ax, run, **style):
    """Loss and norm as shares of their largest values, and the alignment, which is a cosine."""
    for name, color, dashes in (("loss", LOSS, "-"), ("kernel_norm", NORM, "-."), ("kernel_alignment", TURN, "--")):
        values = np.asarray(run[name])
        values = values if name == "kernel_alignment" else values / values.max()
        ax.plot(run.ts, values, color=color, **{"ls": dashes, "label": name.replace("_", " "), **style})
    ax.set(xlabel="time $t$ (gradient-flow units)", ylabel="share of the largest value; cosine")


def turned(run, fall=0.1):
    """The share of the alignment's rise that is done once the loss has fallen by so much."""
    at = int(np.argmax(np.asarray(run["loss"]) < (1 - fall) * run["loss"][0]))
    rise = np.asarray(run["kernel_alignment"])
    return (rise[at] - rise[0]) / (rise[-1] - rise[0])


theory, simulated = both.trajectories.values()
fig, ax = plt.subplots(figsize=(4.6, 3.3), layout="constrained")
draw(ax, theory)
draw(ax, simulated, ls="", marker="o", ms=2.5, markevery=4, label=None)
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()
print(f"when the loss has fallen by 10 %, {100 * turned(simulated):.0f} % of the alignment's rise is done")

# %% [markdown]
# ## A relu network on digits
#
# Theory is for linear networks. A relu network that tells handwritten zeros from ones does much the same on whitened
# pixels if it starts small (left). From a large start (right) the loss falls at once, and the kernel hardly changes:
# it is lazy.

# %%
digits = js.data.digits(task=(0, 1), n_train=60, n_test=100, pca=20, key=jax.random.key(0))
times = jnp.linspace(0.0, 20.0, 41)
runs, problems = {}, {}
for sigma in (0.03, 1.0):
    scaling = js.nets.Scaling.standard(sigma=sigma)
    net = js.nets.MLP(
        in_size=20, out_size=1, width_size=100, depth=1, activation="relu", scaling=scaling, key=jax.random.key(1)
    )
    problems[sigma] = js.Problem(net, *digits.train, test=digits.test)
    runs[sigma] = js.solve(problems[sigma], js.GradientFlow(rtol=1e-4, atol=1e-7), times, observe=watched)

fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained", sharey=True)
for ax, (sigma, run) in zip(axes, runs.items()):
    draw(ax, run)
    ax.set_title(rf"relu, $\sigma = {sigma:g}$", fontsize=9)
    print(f"sigma {sigma:g}: {100 * turned(run):.0f} % of the rise is done when the loss has fallen by 10 %")
axes[1].set_ylabel("")
axes[1].legend(frameon=False, loc="center right")
plt.show()

# %% [markdown]
# ## The final kernel predicts the network
#
# `FrozenKernel` is kernel regression: with the kernel at the start of the run, or with the one that the run has
# learned. From the small start the final kernel gives the outputs on test digits almost exactly, and the first kernel
# does not. From the large start both do, since the kernel has hardly changed.

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 3.1), layout="constrained")
for ax, (sigma, run) in zip(axes, runs.items()):
    outputs = np.asarray(run.final.test_outputs)[:, 0]
    kernels = {"final": js.FrozenKernel(run.final.net), "first": js.FrozenKernel()}
    for (name, machine), color, marker in zip(kernels.items(), (TURN, NORM), js.plot.MARKERS):
        predicted = np.asarray(js.solve(problems[sigma], machine, jnp.inf).final.test_outputs)[:, 0]
        ax.plot(outputs, predicted, ls="", marker=marker, ms=3, mfc="none", color=color, label=f"{name} kernel")
        error = np.linalg.norm(predicted - outputs) / np.linalg.norm(outputs)
        print(f"sigma {sigma:g}: regression with the {name} kernel is off by {100 * error:.0f} %")
    ends = np.array([outputs.min(), outputs.max()])
    ax.plot(ends, ends, color="0.4", lw=0.8)
    ax.set(xlabel="network, on a test digit (label units)", ylabel="kernel regression (label units)")
    ax.set_title(rf"$\sigma = {sigma:g}$", fontsize=9)
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# On the command line, `jaxsolve reproduce atanasov/fig1` draws the paper's figure;
# [docs/errata.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/errata.md) lists what its equations miss.
