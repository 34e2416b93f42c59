# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Problems: lazy, rich, width and learning-rate transfer
#
# How strongly a network learns features depends on its width and on the scales of its layers. Some powers decide: of
# the kernel's change, of the border between lazy and rich, of the rates that a wide network needs.
#
# Five problems. Each has a cell for your answer, a folded solution and a check, which takes the solution as long as
# your answer is `None`.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/problems_lazy_rich.ipynb)

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

import jaxsolve as js


jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## Problem 1: how lazy?
#
# A two-layer linear network $f = \frac{1}{\sqrt{h d}} \sum_{i=1}^h a_i\, w_i \cdot x$ starts with standard normal
# weights. The model is $\alpha (f - f_0)$, and gradient flow follows its loss divided by $\alpha^2$
# (`js.nets.Scaling.lazy(alpha)`), so that at large $\alpha$ the time to learn does not depend on $\alpha$.
#
# By how much does training move the kernel, $|K - K_0|/|K_0|$? At large $\alpha$ it is a power law, $h^p \alpha^q$.
# What are $p$ and $q$? Write the pair. Hint: one part of the kernel is $\frac1h \sum_i a_i^2\; x \cdot x'/d$. To first
# order its change is a sum over neurons. Do its terms have the same sign?

# %%
answer_1 = None  # for example: (p, q)

# %% tags=["hide-cell"]
# @title Solution 1

# The output must move by 1/alpha, to which all h neurons contribute: a_i moves by w_i.v/(sqrt(h) alpha), with a
# vector v of order 1. The kernel moves by 2/h times the sum of a_i w_i.v/(sqrt(h) alpha). Its h terms have random
# signs, so the sum over them has sqrt(h) and not h: in all 1/(h alpha).
solution_1 = (-1, -1)

# %%
p, q = solution_1 if answer_1 is None else answer_1
data = js.data.line(8, 5, key=jax.random.key(0))
widths, alphas = [64, 256, 1024], np.geomspace(1e-2, 1e2, 9)


def linear(width, alpha, seed):
    scaling, key = js.nets.Scaling.lazy(alpha), jax.random.key(seed)
    net = js.nets.TwoLayerLinear(in_size=5, width_size=width, scaling=scaling, key=key)
    return js.Problem(net, *data.train, centered=True)


# Inputs on a line: the end of training is a closed form, at any width and scale.
axes = {"width": widths, "alpha": alphas, "seed": range(16)}
runs = js.sweep(
    *js.sweeps.padded(linear, axes, "width"),
    js.theory.TwoLayerLine(),
    [jnp.inf],
    observe=js.observe.kernel_change(),
    progress=False,
)
change = runs["kernel_change"].isel(t=0).mean("seed")
over_width = np.polyfit(np.log(widths), np.log(change.isel(alpha=-1)), 1)[0]
over_alpha = np.polyfit(np.log(alphas[-3:]), np.log(change.isel(alpha=slice(-3, None))).T, 1)[0].mean()
print(f"over the width: {over_width:.2f}, predicted {p}")
print(f"over the scale: {over_alpha:.2f}, predicted {q}")
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for width, color, marker in zip(widths, js.plot.COLORS, "os^"):
    ax.loglog(alphas, change.sel(width=width), color=color, marker=marker, ms=4, label=f"$h = {width}$")
ax.loglog(alphas[-4:], 0.1 * alphas[-4:] ** float(q), "k:", label=r"$\alpha^q$")
ax.set(xlabel=r"output scale $\alpha$", ylabel="kernel change $|K-K_0|/|K_0|$")
ax.legend(frameon=False, fontsize=9)
plt.show()
assert abs(over_width - p) < 0.15
assert abs(over_alpha - q) < 0.05

# %% [markdown]
# ## Problem 2: where is the border?
#
# At small $\alpha$ the same networks learn features: their kernel changes many times over. The border is the scale
# $\alpha^*(h)$ at which the kernel changes by as much as it was. It goes like $h^r$. What is $r$?
#
# Hint: problem 1 does not reach so far. To second order, each $a_i^2$ grows by $(\delta a_i)^2$. Which sign do these
# terms have?

# %%
answer_2 = None  # for example: -2

# %% tags=["hide-cell"]
# @title Solution 2

# The second order is the mean of (delta a_i)^2 ~ 1/(h alpha^2): all its terms are positive. It is 1 at
# alpha ~ h^(-1/2), where the first order, 1/(h alpha), is still as small as h^(-1/2).
solution_2 = -1 / 2

# %%
r = solution_2 if answer_2 is None else answer_2
# The change falls with alpha: interpolate for where it is 1.
border = [np.exp(np.interp(0.0, -np.log(change.sel(width=width).values), np.log(alphas))) for width in widths]
measured = np.polyfit(np.log(widths), np.log(border), 1)[0]
print(f"border at {', '.join(f'{alpha:.3f}' for alpha in border)}: exponent {measured:.2f}, predicted {r}")
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for width, color, marker in zip(widths, js.plot.COLORS, "os^"):
    scaled = alphas * width ** -float(r)
    ax.loglog(scaled, change.sel(width=width), color=color, marker=marker, ms=4, label=f"$h = {width}$")
ax.axhline(1, color="0.4", ls=":", label="border")
ax.set(xlabel=r"output scale over its border, $\alpha\, h^{-r}$", ylabel="kernel change $|K-K_0|/|K_0|$")
ax.legend(frameon=False, fontsize=9)
plt.show()
assert abs(measured - r) < 0.1

# %% [markdown]
# ## Problem 3: how long is the plateau?
#
# The richest network of all is one neuron $f = a\, w\, x$ that starts near zero, with $a = w = \epsilon$, and learns
# $y = s x$ with $x = 1$. The loss is $\frac12 (a w - s)^2$. It stays on a plateau until the neuron has grown, then
# falls at once. When has $a w$ come to $s/2$, in gradient flow?
#
# Write a function of $(\epsilon, s)$. Hint: $a = w$ stays true. Write an equation for $u = a w$.

# %%
answer_3 = None  # for example: lambda epsilon, s: ...

# %% tags=["hide-cell"]
# @title Solution 3


def solution_3(epsilon, s):
    # a' = w (s - u) and w' = a (s - u), so u' = (a^2 + w^2) (s - u) = 2 u (s - u): a logistic curve.
    return np.log(s / epsilon**2 - 1) / (2 * s)


# %%
half_time = answer_3 or solution_3
ones = [1.0, 1.0]
ts = jnp.linspace(0.0, 16.0, 1601)
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (epsilon, s), color in zip([(0.1, 1.0), (0.01, 1.0), (0.01, 0.5)], js.plot.COLORS):
    net = js.nets.SingleNeuron(
        in_size=1,
        scaling=js.nets.Scaling(multiplier=ones, sigma=ones, eta=ones),
        init=js.nets.Given([jnp.full((1, 1), epsilon)] * 2),
        key=jax.random.key(0),
    )
    run = js.solve(js.Problem(net, jnp.ones((1, 1)), jnp.full((1, 1), s)), js.GradientFlow(rtol=1e-8, atol=1e-10), ts)
    u = s - np.sqrt(2 * np.asarray(run["loss"]))
    measured, predicted = np.interp(s / 2, u, ts), half_time(epsilon, s)
    print(f"epsilon = {epsilon}, s = {s}: half-way at {measured:.3f}, predicted {predicted:.3f}")
    assert abs(measured - predicted) < 1e-3
    ax.plot(ts, u / s, color=color, label=rf"$\epsilon = {epsilon}$, $s = {s}$")
    ax.plot(predicted, 0.5, "ko", ms=5)
ax.set(xlabel="time $t$ (gradient-flow units)", ylabel="learned share $a w/s$")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 4: rates for a rich limit
#
# Let $f = \frac1N \sum_{i=1}^N a_i \tanh(w_i \cdot x/\sqrt d)$, with standard normal weights, learn by gradient flow.
# At equal rates its kernel moves less and less as $N$ grows, and so does $f$. At which rates of both layers do the
# change of the kernel, and the time to learn, come to a limit?
#
# Write a function of $N$ that returns the rates $\eta$ of the first and the last layer, with factors of 1. The check
# compares with `js.RichLimit`, the limit itself.

# %%
answer_4 = None  # for example: lambda width: [1.0, 1.0]

# %% tags=["hide-cell"]
# @title Solution 4


def solution_4(width):
    # The gradient of a_i and w_i has the factor 1/N. Each neuron must move by order 1 in a time of order 1, so the
    # rates are N: then every neuron moves in the mean field of all others, whose number no longer matters.
    return [width, width]


# %%
rates = answer_4 or solution_4
points = js.data.gaussian(10, 3, key=jax.random.key(0))
ts, neurons = jnp.linspace(0.0, 4.0, 9), [16, 64, 256]
watched = [js.observe.outputs(), js.observe.kernel_change()]


def rich(width, seed):
    scaling = js.nets.Scaling(
        multiplier=[3**-0.5, 1 / width], sigma=[1.0, 1.0], eta=[1.0 * rate for rate in rates(width)]
    )
    key = jax.random.key(seed)
    net = js.nets.MLP(in_size=3, out_size=1, width_size=width, depth=1, activation="tanh", scaling=scaling, key=key)
    return js.Problem(net, *points.train)


runs = js.sweep(
    rich,
    {"width": neurons, "seed": range(6)},
    js.GradientFlow(diffrax.Tsit5(), rtol=1e-3),
    ts,
    observe=watched,
    progress=False,
)
limit = js.solve(rich(256, 0), js.RichLimit(at_any_richness=True), ts, observe=watched)
moved = runs["kernel_change"].isel(t=-1).mean("seed").values
off = np.sqrt(np.mean((np.asarray(runs["outputs"]) - np.asarray(limit["outputs"])) ** 2, axis=(1, 2, 3, 4)))
slope = np.polyfit(np.log(neurons), np.log(off), 1)[0]
print("kernel change", ", ".join(f"{value:.2f} at N = {width}" for value, width in zip(moved, neurons)))
print(f"in the limit  {limit['kernel_change'][-1]:.2f}; outputs are off by N^{slope:.2f}")
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for index, (width, color) in enumerate(zip(neurons, js.plot.COLORS)):
    mean = runs["kernel_change"].isel(width=index).mean("seed")
    axes[0].plot(ts, mean, color=color, label=f"$N = {width}$, mean of 6")
axes[0].plot(ts, limit["kernel_change"], "k--", label="limit")
axes[0].set(xlabel="time $t$ (gradient-flow units)", ylabel="kernel change $|K-K_0|/|K_0|$")
axes[0].legend(frameon=False, fontsize=9)
axes[1].loglog(neurons, off, "o", color=js.plot.COLORS[0], label="networks")
axes[1].loglog(neurons, off[0] * (np.array(neurons) / neurons[0]) ** -0.5, "k:", label="$N^{-1/2}$")
axes[1].set(xlabel="width $N$", ylabel="rms distance of outputs\nto the limit")
axes[1].set_xticks(neurons, [str(width) for width in neurons])
axes[1].xaxis.minorticks_off()
axes[1].legend(frameon=False, fontsize=9)
plt.show()
assert abs(moved[-1] / limit["kernel_change"][-1] - 1) < 0.1
assert abs(slope + 0.5) < 0.15

# %% [markdown]
# ## Problem 5: a rate that transfers
#
# Three layers, $f = v \cdot \tanh(U \tanh(W x))$, of width $h$: $W$ and $U$ start with variances $1/\text{fan-in}$, and
# $v$ with $1/h^2$. They are trained by Adam, which moves every single weight by about the rate at each step, whatever
# its gradient. With one rate for all layers the best rate of a wide network is lower than that of a narrow one, and has
# to be searched anew.
#
# By which powers of $h$ must the rates of $W$, $U$ and $v$ be multiplied so that the best rate is the same at all
# widths? Write the three powers. Hint: activations must move by order 1 at any width, and updates are aligned with the
# activations that they multiply.

# %%
answer_5 = None  # for example: (0, 0, 0)

# %% tags=["hide-cell"]
# @title Solution 5

# An update of an entry of U by the rate, aligned with h activations, moves what comes out by rate times h: its rate
# must fall as 1/h. So must that of v. The inputs that W multiplies have a fixed number. This is muP, for Adam.
solution_5 = (0, -1, -1)

# %%
powers = solution_5 if answer_5 is None else answer_5
x = jax.random.normal(jax.random.key(1), (128, 8))
y = jnp.sign(x[:, :1] * x[:, 1:2])


def maker(powers, first=32):
    def make(width, key):
        sigma = [8**-0.5, width**-0.5, 1 / width]
        eta = [(width / first) ** power for power in powers]
        scaling = js.nets.Scaling(multiplier=[1.0, 1.0, 1.0], sigma=sigma, eta=eta)
        return js.nets.MLP(
            in_size=8, out_size=1, width_size=width, depth=2, activation="tanh", scaling=scaling, key=key
        )

    return make


tried = 2.0 ** np.arange(-9, -1)
checks = {
    "one rate": js.transfer_check(maker((0, 0, 0)), [32, 64, 128], tried, x, y, steps=15, seeds=3),
    "yours": js.transfer_check(maker(powers), [32, 64, 128], tried, x, y, steps=15, seeds=3),
}
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained", sharey=True)
for ax, (name, check) in zip(axes, checks.items()):
    print(f"{name}: {check}")
    for width, losses, color, marker in zip(check.widths, check.losses.mean(-1), js.plot.COLORS, "os^"):
        ax.loglog(check.rates, losses, color=color, marker=marker, ms=4, label=f"$h = {width}$")
    ax.set(xlabel="rate of Adam (per step)", ylim=(8e-2, 2))
    ax.set_title(name, fontsize=10)
axes[0].set(ylabel="training loss after 15 steps")
axes[0].legend(frameon=False, fontsize=9)
plt.show()
assert not checks["one rate"].passed
assert checks["yours"].passed

# %% [markdown]
# More of this: [width and output scale](https://github.com/jaxsolve/jaxsolve/blob/main/notebooks/width_and_scale.ipynb),
# [limits](https://github.com/jaxsolve/jaxsolve/blob/main/notebooks/limits.ipynb).
