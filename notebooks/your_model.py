# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Bring your own model
#
# jaxsolve takes networks from elsewhere: any function of parameters and one sample, an Equinox module, a Flax module.
# For three such models we look at the kernel, follow gradient flow, ask for a diagnosis, and sweep.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/your_model.ipynb)

# %%
import importlib.util
import subprocess
import sys


sources = {"jaxsolve": "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve", "flax": "flax"}
for package, source in sources.items():
    if importlib.util.find_spec(package) is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import linen

import jaxsolve as js


jax.config.update("jax_enable_x64", True)
digits = js.data.digits(task=(3, 5), n_train=48, n_test=100, key=jax.random.key(0))
x, y = digits.train
labels = (np.asarray(y)[:, 0] > 0).astype(int)

# %% [markdown]
# ## Three models
#
# 1. A **function** of parameters and one sample: bumps around centers, whose places and widths are learned. 2. An
# **Equinox module**, as it is. 3. A **Flax module** with convolutions, by `js.nets.from_linen` (`from_nnx` and
# `from_haiku` are the others).
#
# All of them map one sample to a vector of outputs, here of length one.


# %%
def bumps(params, x):
    distance = jnp.sum((x - params["center"]) ** 2, axis=1)
    return params["height"] @ jnp.exp(-jnp.exp(params["sharpness"]) * distance)


class Residual(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    second: eqx.nn.Linear
    read: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(64, 32, dtype=float, key=keys[0])
        self.norm = eqx.nn.LayerNorm(32, dtype=float)
        self.second = eqx.nn.Linear(32, 32, dtype=float, key=keys[1])
        self.read = eqx.nn.Linear(32, 1, dtype=float, key=keys[2])

    def __call__(self, x):
        h = self.first(x)
        return self.read(h + jnp.tanh(self.second(self.norm(h))))


class Convolutions(linen.Module):
    @linen.compact
    def __call__(self, x):
        h = linen.tanh(linen.Conv(8, (3, 3), param_dtype=float)(x.reshape(8, 8, 1)))
        return linen.Dense(1, param_dtype=float)(linen.avg_pool(h, (2, 2), (2, 2)).ravel())


keys = jax.random.split(jax.random.key(1), 4)
centers = dict(
    center=0.5 + 0.2 * jax.random.normal(keys[0], (40, 64)),
    sharpness=jnp.full(40, -2.0),
    height=jax.random.normal(keys[1], (1, 40)) / 40**0.5,
)
module = Convolutions()
models = {
    "function": js.nets.Function(bumps, centers),
    "Equinox": Residual(keys[2]),
    "Flax": js.nets.from_linen(module, module.init(keys[3], x[0])),
}

# %% [markdown]
# ## Their kernels
#
# `js.kernels.empirical` gives the neural tangent kernel of any of them at any time. The digits are sorted, threes
# before fives. Brighter blocks on the diagonal, as of the Equinox and the Flax module, mean that a step on one three
# moves the output on other threes more than on fives. The bumps have no blocks at their start, and their kernel's
# alignment with the labels is near 0.

# %%
fig, axes = plt.subplots(1, 3, figsize=(7, 2.7), layout="constrained")
same = np.outer(2 * labels - 1, 2 * labels - 1)
order = np.argsort(labels, kind="stable")
for ax, (name, net) in zip(axes, models.items()):
    ntk = np.asarray(js.kernels.empirical(net, x, trace=True).ntk)
    image = ax.imshow((ntk / np.trace(ntk) * len(ntk))[np.ix_(order, order)], cmap="cividis")
    fig.colorbar(image, ax=ax, shrink=0.6, label="$\\Theta(x, x')/$mean of the diagonal" if ax is axes[-1] else None)
    ax.set(title=name, xlabel="digit, threes first", ylabel="digit" if ax is axes[0] else "")
    print(f"{name}: alignment of the kernel with the labels {np.sum(ntk * same) / np.linalg.norm(ntk) / len(ntk):.2f}")
plt.show()

# %% [markdown]
# ## Their flows
#
# A `Problem` is a model, data and a loss, and gradient flow is the limit of small steps. `centered=True` trains $f -
# f_0$. Left: the training loss. The bumps, whose kernel was not aligned, have only begun to learn. Right: how far the
# kernel has moved. A model that has learned and is still below the dashed line is in the kernel regime; the bumps are
# below it because they have hardly learned yet.

# %%
ts = jnp.geomspace(1e-2, 10.0, 25)
watched = [js.observe.loss(), js.observe.kernel_change(), js.observe.test_accuracy()]
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for (name, net), color in zip(models.items(), js.plot.COLORS):
    problem = js.Problem(net, x, y, test=digits.test, centered=True)
    run = js.solve(problem, js.GradientFlow(rtol=1e-5, atol=1e-7), ts, observe=watched)
    axes[0].plot(ts, run["loss"], color=color, label=name)
    axes[1].plot(ts, run["kernel_change"], color=color)
    print(f"{name}: kernel change {run['kernel_change'][-1]:.2g}, test accuracy {run['test_accuracy'][-1]:.2f}")
axes[0].set(xscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="training loss", ylim=(0, None))
axes[1].axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--")
axes[1].set(xscale="log", yscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="kernel change $|K-K_0|/|K_0|$")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %% [markdown]
# ## A diagnosis
#
# With your own optimizer `js.diagnose` says in which regime a model trains, and by how much its output would have to
# be multiplied to change that.

# %%
for name, net in models.items():
    report = js.diagnose(net, x, y, optimizer=optax.adam(3e-3), steps=60)
    multiplier = report.findings["crossover_multiplier"].value
    print(f"{name}: {report.regime.label}; the border is at a multiplier of about {multiplier:.2g}")

# %% [markdown]
# ## In a sweep
#
# The function that makes a problem may make any of them. Here the output of the bumps is multiplied by $\gamma$. What
# varies along an axis goes in with the parameters; `stop_gradient` keeps it from being trained. Each run ends when the
# loss has fallen to 0.1. From left to right the same model goes from features to kernel.


# %%
def scaled(params, x):
    return jax.lax.stop_gradient(params["gamma"]) * bumps(params, x)


def problem(gamma, seed):
    height = jax.random.normal(jax.random.key(seed), (1, 40)) / 40**0.5
    net = js.nets.Function(scaled, {**centers, "height": height, "gamma": gamma})
    return js.Problem(net, x, y, centered=True)


gammas = np.geomspace(0.1, 100.0, 4)
flow = js.GradientFlow(rtol=1e-4, atol=1e-6, until=js.until.loss_below(0.1))
axes = dict(gamma=gammas, seed=range(3))
data = js.sweep(problem, axes, flow, [jnp.inf], observe=[js.observe.kernel_change()], progress=False)
change = data["kernel_change"].isel(t=0)
fig, ax = plt.subplots(figsize=(3.8, 2.8), layout="constrained")
for seed, color in enumerate(js.plot.COLORS[:3]):
    ax.plot(gammas, change.isel(seed=seed), color=color, marker=js.plot.MARKERS[seed], ms=4, label=f"seed {seed}")
ax.axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--", label="border of the kernel regime")
ax.set(xscale="log", yscale="log", xlabel=r"multiplier $\gamma$", ylabel="kernel change $|K-K_0|/|K_0|$")
ax.legend(frameon=False, fontsize=8)
plt.show()
print(
    f"kernel change from {float(change[0].mean()):.2g} at gamma = 0.1 to {float(change[-1].mean()):.1g} at gamma = 100"
)
