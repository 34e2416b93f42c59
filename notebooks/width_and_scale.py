# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Width and output scale
#
# The same network learns features at a small output scale $\alpha$ and is lazy at a large one, where its kernel stays.
# We sweep the scale and the width $h$ (Geiger, Spigler, Jacot and Wyart 2020), and see where the border lies and how
# much networks differ that started elsewhere.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/width_and_scale.ipynb)

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

# %% [markdown]
# ## A sweep over both
#
# A sweep is a function that makes one problem, and named axes. Here it is a network with one hidden layer that tells
# odd from even digits, by gradient flow, until every training digit has a margin of 1. `Scaling.lazy(alpha)` is the
# paper's: the model is $\alpha\,(f - f_0)$, and time is measured so that scales can be compared.
#
# Networks of all widths share one compiled program: `padded` fills up the narrow ones with zeros.

# %%
digits = js.data.digits(task="parity", n_train=32, n_test=1000, pca=10, key=jax.random.key(0))


def problem(width, alpha, seed):
    scaling = js.nets.Scaling.lazy(alpha, gain=True)
    net = js.nets.MLP(
        in_size=10,
        out_size=1,
        width_size=width,
        depth=1,
        activation=js.nets.softplus(5.0),
        scaling=scaling,
        key=jax.random.key(seed),
    )
    return js.Problem(net, *digits.train, test=digits.test, loss=js.losses.SoftHinge(20.0), centered=True)


axes = dict(width=[16, 64, 256], alpha=np.geomspace(1e-2, 1e2, 5), seed=range(8))
flow = js.GradientFlow(rtol=1e-3, until=js.until.margin_above(1.0))
watched = [js.observe.kernel_change(), js.observe.test_outputs()]
runs = js.sweep(*js.sweeps.padded(problem, axes, "width"), flow, [jnp.inf], observe=watched, progress=False)
runs = runs.isel(t=0)
print(f"{runs.result.size} networks, {int((runs.result >= 3).sum())} failed")

# %% [markdown]
# ## Where the kernel stops moving
#
# Left: how far training has moved the kernel. Wide networks and large scales are lazy: below the dashed line. Right:
# the same over $\sqrt{h}\,\alpha$, the paper's measure of the regime. Where features are learned the widths lie on one
# curve. At the lazy end they part again: smooth networks move their kernel by $1/(h \alpha)$ there, not by
# $1/(\sqrt{h}\, \alpha)$ as the paper has it. Bands are the range over seeds.

# %%
change = runs["kernel_change"]
fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained", sharey=True)
for ax, power in zip(axes, (0.0, 0.5)):
    js.plot.collapse(change, "alpha", "width", power=power, ax=ax)
    ax.axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--", label="border of the kernel regime")
axes[0].set(xlabel=r"output scale $\alpha$", ylabel="kernel change $|K-K_0|/|K_0|$")
axes[1].set(xlabel=r"$\sqrt{h}\,\alpha$")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
plt.show()

laws = js.theory.lazy_scaling(depth=1)
for name, index, law in (("features", 0, laws.kernel_change_feature), ("lazy", -1, laws.kernel_change_lazy)):
    found = js.sweeps.power_law(change.isel(alpha=index), "width")
    print(f"{name}: kernel change ~ h^{found.exponent:.2f} +- {found.uncertainty:.2f} (theory: {law.width:g})")

# %% [markdown]
# ## Networks that started elsewhere
#
# Left: the variance of the trained outputs over seeds, at both ends of the sweep. It falls about as $1/h$: wide
# networks agree with each other. Right: the test error of single networks (lines), and of the average of all eight
# (broken).

# %%
outputs = runs["test_outputs"]
variance = js.sweeps.ensemble_variance(outputs)
average = js.sweeps.ensemble_error(outputs, digits.y_test)
wrong = outputs.isel(output=0) * np.asarray(digits.y_test)[:, 0] <= 0
single = wrong.mean(["test_sample", "seed"])
widths = outputs["width"].values
fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained")
for index, name, color in ((0, "features", js.plot.COLORS[0]), (-1, "lazy", js.plot.COLORS[1])):
    at = dict(alpha=index)
    axes[0].plot(widths, variance.isel(at), color=color, marker="o", ms=4, label=name)
    axes[1].plot(widths, single.isel(at), color=color, marker="o", ms=4, label=f"{name}, single")
    axes[1].plot(widths, average.isel(at), color=color, marker="s", ms=4, ls="--", label=f"{name}, average")
    slope = np.polyfit(np.log(widths), np.log(variance.isel(at)), 1)[0]
    print(f"{name}: variance ~ h^{slope:.2f}")
    error = f"one network of width 256 {100 * float(single.isel(at)[-1]):.1f} %"
    print(f"{name}: wrong digits, {error}; average of eight of width 16 {100 * float(average.isel(at)[0]):.1f} %")
axes[0].plot(
    widths, 1.5 * float(variance.isel(alpha=-1)[0]) * widths[0] / widths, color="0.4", ls=":", label="$h^{-1}$"
)
axes[0].set(xscale="log", yscale="log", xlabel="width $h$", ylabel="variance over seeds")
axes[1].set(xscale="log", xlabel="width $h$", ylabel="share of test digits wrong")
for ax in axes:
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# At width 256 the lazy networks are ahead here, where the paper finds features ahead: 32 digits and one hidden layer
# decide nothing. On the command line, `jaxsolve reproduce geiger/fig2 geiger/fig3` draws the
# paper's figures, with five hidden layers;
# [docs/reproduction.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/reproduction.md) judges each claim.
