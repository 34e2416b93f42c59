# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A sweep on an accelerator
#
# A sweep batches its networks, so that a GPU or TPU trains many of them at once, and nothing in the code changes. This
# notebook says which device it found, makes the sweep as large as fits it, and draws a map of regimes. (In Colab:
# *Runtime*, *Change runtime type*.)
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/accelerator.ipynb)

# %%
import importlib.util
import subprocess
import sys


if importlib.util.find_spec("jaxsolve") is None:
    source = "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsolve as js


jax.config.update("jax_default_matmul_precision", "highest")  # accelerators round float32 products otherwise
device = jax.devices()[0]
accelerated = device.platform != "cpu"
print(f"{jax.device_count()} device(s) of kind {device.platform}; the sweep is", "large" if accelerated else "small")

# %% [markdown]
# Single precision, JAX's default, is fast on accelerators. They also round the factors of its products unless told
# otherwise, as in the cell above. On a CPU the grid is small, so that it takes a minute.

# %%
scales, rates, width, n_train = (32, 32, 256, 512) if accelerated else (7, 7, 32, 64)
digits = js.data.digits(task="parity", n_train=n_train, pca=10, key=jax.random.key(0))


def problem(gamma, eta, seed):
    scaling = js.nets.Scaling.ntk(gamma, eta=eta / gamma**2)
    net = js.nets.MLP(
        in_size=10, out_size=1, width_size=width, depth=1, activation="tanh", scaling=scaling, key=jax.random.key(seed)
    )
    return js.Problem(net, *digits.train, centered=True)


# %% [markdown]
# ## A map of regimes
#
# Each cell is one network, trained by 300 steps of gradient descent at an output scale $\gamma$ and a learning rate
# $\eta$ (divided by $\gamma^2$, so that rates can be compared). All of them run in one batch.

# %%
gammas, etas = np.geomspace(0.03, 30.0, scales), np.geomspace(1e-4, 1e2, rates)
axes = dict(gamma=gammas, eta=etas, seed=range(1))
steps = np.array([0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
watched = [js.observe.loss(), js.observe.kernel_change()]
runs = js.sweep(problem, axes, js.Descent(optax.sgd(1.0)), steps, observe=watched, progress=False).isel(seed=0)
change = runs["kernel_change"].isel(t=-1).values
regimes = js.observe.regimes(steps, runs["loss"].values, change)
print(f"{regimes.size} networks:", ", ".join(f"{np.sum(regimes == r)} {r.label}" for r in js.observe.Regime))

# %% [markdown]
# Gray networks have learned nothing in 300 steps, dark ones diverged, or fitted in the first step. In between the
# output scale decides: features on the left, the kernel regime on the right.

# %%
fig, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
js.plot.phase_diagram(gammas, etas, regimes.T, ax=ax)
ax.set(xlabel=r"output scale $\gamma$", ylabel=r"learning rate $\eta$ (per step, over $\gamma^2$)")
fig.legend(handles=js.plot.phase_legend_handles(), loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## What a batch is worth here
#
# The same networks again, a few at a time. `ds.wall` holds the seconds of each network, without compilation; one that
# ran in a batch has its share. The picture is a measurement of the machine that ran this notebook, which its title
# names. The smallest batches show what each call costs, and the curve goes flat where the device is busy.

# %%
lanes = regimes.size
sizes = sorted({max(1, lanes // 49), max(1, lanes // 7), lanes})
speed = []
for size in sizes:
    again = js.sweep(problem, axes, js.Descent(optax.sgd(1.0)), steps, batch_size=size, progress=False)
    speed.append(lanes / float(again["wall"].sum()))
fig, ax = plt.subplots(figsize=(4.2, 2.9), layout="constrained")
ax.plot(sizes, speed, color=js.plot.COLORS[0], marker="o", ms=4)
ax.set(xscale="log", xlabel="networks in a batch", ylabel="networks per second")
ax.set_ylim(0, None)
ax.set_title(f"{jax.device_count()} x {device.device_kind}", fontsize=9)
plt.show()

# %% [markdown]
# `devices=` chooses among several; `js.plan(...).describe()` says what a sweep will take before it runs.
# [docs/sweeps.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/sweeps.md) and
# [docs/cluster.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/cluster.md) go on from here.
