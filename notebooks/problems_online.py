# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Problems: scaling laws and online learning
#
# A linear model that sees every sample once is the simplest model with scaling laws: power laws of the loss over steps,
# a batch size beyond which more samples do not help, a floor of noise, and a best schedule. Its mean loss is known
# exactly (`js.theory.online_sgd`), so all of this can be worked out on paper and checked at once.
#
# Six problems. Each has a cell for your answer, a folded solution and a check, which takes the solution as long as
# your answer is `None`.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/problems_online.ipynb)

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
import optax

import jaxsolve as js


jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The model
#
# Inputs are Gaussian with covariance eigenvalues $\lambda_k$. Targets are $y = w^* \cdot x$ plus noise of variance
# $\sigma^2$. A step of SGD takes $B$ new samples: $w \leftarrow w - \eta \frac1B \sum_i (w \cdot x_i - y_i)\, x_i$.
#
# The mean square errors $d_k = \langle (w_k - w^*_k)^2 \rangle$ then obey
#
# $$d_k \leftarrow \big((1 - \eta\lambda_k)^2 + \tfrac1B (\eta\lambda_k)^2\big)\, d_k
# + \tfrac1B \eta^2 \lambda_k \big(L + \sigma^2\big), \qquad L = \sum_j \lambda_j d_j.$$
#
# $L$ is the mean square error on a new input, without the noise. `js.theory.online_sgd(eigenvalues, errors, rates,
# batch_size=, noise_variance=)` returns it before each step and after the last.
#
# ## Problem 1: the exponent of the loss over steps
#
# Let $\lambda_k = k^{-a}$ with $a > 1$, and let mode $k$ hold $\lambda_k d_k = k^{-c}$ of the loss at the start, with
# $c > 1$. There is no noise, batches are large and the rate is small, so that only the first term above counts. Then
# $L \propto n^{-\beta}$ over steps $n$. What is $\beta$?
#
# Write a function of $(a, c)$. Hint: replace the sum over modes by an integral.

# %%
answer_1 = None  # for example: lambda a, c: ...

# %% tags=["hide-cell"]
# @title Solution 1


def solution_1(a, c):
    # d_k falls as exp(-2 rate k^-a n): at step n modes up to k ~ n^(1/a) are learned. The others hold the integral of
    # k^-c from there on, which is k^(1 - c)/(c - 1) ~ n^(-(c - 1)/a).
    return (c - 1) / a


# %%
exponent = answer_1 or solution_1
k = jnp.arange(1.0, 2001.0)
steps = jnp.arange(4001)
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (a, c), color in zip([(1.5, 2.2), (2.0, 2.5), (1.25, 2.7)], js.plot.COLORS):
    losses = js.theory.online_sgd(k**-a, k ** (a - c), jnp.full(4000, 0.05), batch_size=1000)
    measured = -np.log(losses[4000] / losses[400]) / np.log(10)
    print(f"a = {a}, c = {c}: measured {measured:.2f}, predicted {exponent(a, c):.2f}")
    assert abs(measured - exponent(a, c)) < 0.05
    ax.loglog(steps[1:], losses[1:], color=color, lw=2, label=f"$a = {a}$, $c = {c}$")
    law = losses[2000] * (steps / 2000) ** -exponent(a, c)
    ax.loglog(steps[100:], law[100:], "k:", lw=1, label="power laws" if a == 1.25 else None)
ax.set(xlabel="steps $n$", ylabel="loss $L$")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 2: the critical batch size
#
# Now all $d$ eigenvalues are 1, and there is still no noise. A batch is finite, and the loss falls by the same factor
# at every step.
#
# Which rate makes it fall fastest, and what is the factor then? Write a function of $(d, B)$ that returns the two. From
# which batch size on do twice as many samples a step no longer halve the number of steps?

# %%
answer_2 = None  # for example: lambda d, batch: (rate, factor)

# %% tags=["hide-cell"]
# @title Solution 2


def solution_2(d, batch):
    # The sum over modes of the recursion is L <- (1 - 2 rate + rate^2 (1 + (d + 1)/B)) L, a parabola in the rate.
    # The number of steps goes as -1/log(factor): about (d + 1)/B for small batches, so that the number of samples is
    # the same for all of them. Beyond B ~ d + 1 the factor is small, and steps are saved by the logarithm only.
    rate = 1 / (1 + (d + 1) / batch)
    return rate, 1 - rate


# %%
fastest = answer_2 or solution_2
d = 99
batches = np.array([1, 3, 10, 30, 100, 300, 1000, 3000])


def loss_after(steps, rate, batch):
    return js.theory.online_sgd(jnp.ones(d), jnp.ones(d) / d, jnp.full(steps, rate), batch_size=batch)[-1]


needed = []
for batch in batches:
    rate, factor = fastest(d, batch)
    one = loss_after(1, rate, batch)
    assert abs(one - factor) < 1e-12
    assert min(loss_after(1, 0.99 * rate, batch), loss_after(1, 1.01 * rate, batch)) > one
    needed.append(np.log(1e-6) / np.log(factor))
    print(f"batches of {batch:4}: rate {rate:.3f}, factor {factor:.3f}, {needed[-1]:6.0f} steps to a loss of 1e-6")
needed = np.array(needed)
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
ax.loglog(batches, needed, "o-", ms=4, color=js.plot.COLORS[0], label="steps")
ax.loglog(batches, needed * batches, "s--", ms=4, color=js.plot.COLORS[1], label="samples")
ax.axvline(d + 1, color="0.4", ls=":", label="$B = d + 1$")
ax.set(xlabel="batch size $B$ (samples)", ylabel="number needed for $L = 10^{-6}$")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 3: the floor of noise
#
# Targets are noisy, and the rate stays constant. The loss falls to a floor and stays there. How high is the floor,
# exactly, for any eigenvalues?
#
# Write a function of (eigenvalues, rate, batch, noise variance). Hint: at the floor, $d_k$ no longer changes.

# %%
answer_3 = None  # for example: lambda eigenvalues, rate, batch, noise: ...

# %% tags=["hide-cell"]
# @title Solution 3


def solution_3(eigenvalues, rate, batch, noise):
    # d_k stands still where lambda_k d_k (2 - rate lambda_k (1 + 1/B)) = rate lambda_k (L + noise)/B. The sum over
    # modes is L = share (L + noise). To first order in the rate, share is rate/(2 B) times the sum of eigenvalues.
    share = jnp.sum(rate * eigenvalues / batch / (2 - rate * eigenvalues * (1 + 1 / batch)))
    return noise * share / (1 - share)


# %%
floor = answer_3 or solution_3
eigenvalues = jnp.arange(1.0, 21.0) ** -1.0
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (rate, batch), color in zip([(0.4, 2), (0.1, 2), (0.1, 8)], js.plot.COLORS):
    losses = js.theory.online_sgd(eigenvalues, jnp.ones(20), jnp.full(6000, rate), batch_size=batch, noise_variance=0.5)
    predicted = floor(eigenvalues, rate, batch, 0.5)
    print(f"rate {rate}, batches of {batch}: floor {losses[-1]:.5f}, predicted {predicted:.5f}")
    assert abs(predicted / losses[-1] - 1) < 1e-6
    ax.loglog(jnp.arange(1, 6001), losses[1:], color=color, lw=2, label=rf"$\eta = {rate}$, $B = {batch}$")
    ax.axhline(predicted, color=color, ls=":", lw=1)
ax.set(xlabel="steps $n$", ylabel="loss $L$")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 4: a schedule
#
# With noise a constant rate has to compromise: a large one learns quickly and ends high. Here is a problem of 1000
# steps. The best constant rate leaves more than 1.5 times the least loss that any schedule can leave, which
# `js.theory.optimal_schedule` finds.
#
# Write a function of the number of steps that returns that many rates, by a simple rule of your own, and ends within
# 12 % of the least loss.

# %%
answer_4 = None  # for example: lambda steps: ...
a, c, batch, noise = 1.5, 2.7, 4, 1.0
k = jnp.arange(1.0, 501.0)
eigenvalues, errors = k**-a, k ** (a - c)


def last_loss(rates):
    return js.theory.online_sgd(eigenvalues, errors, rates, batch_size=batch, noise_variance=noise)[-1]


# %% tags=["hide-cell"]
# @title Solution 4


def solution_4(steps):
    # Linear decay to zero from the best peak: the loss is known exactly, so the peak is found without a run.
    shape = jnp.linspace(1.0, 0.0, steps, endpoint=False)
    peaks = jnp.geomspace(0.02, 0.5, 40)
    return shape * peaks[jnp.argmin(jax.lax.map(lambda peak: last_loss(peak * shape), peaks))]


# %%
schedule = answer_4 or solution_4
steps = 1000


def best_of(shape):
    """The rates of this shape that leave the least loss."""
    heights = jnp.geomspace(0.01, 0.5, 40)
    return shape * heights[jnp.argmin(jax.lax.map(lambda height: last_loss(height * shape), heights))]


progress = jnp.arange(steps) / steps
optimal, least = js.theory.optimal_schedule(eigenvalues, errors, steps, batch_size=batch, noise_variance=noise)
rates = {
    "constant": best_of(jnp.ones(steps)),
    "cosine": best_of((1 + jnp.cos(jnp.pi * progress)) / 2),
    "yours": schedule(steps),
    "optimal": optimal,
}
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for (name, values), color, style in zip(rates.items(), js.plot.COLORS, (":", "--", "-.", "-")):
    losses = js.theory.online_sgd(eigenvalues, errors, values, batch_size=batch, noise_variance=noise)
    print(f"{name:8} loss {losses[-1]:.5f}, {losses[-1] / least:.2f} times the least")
    axes[0].plot(values, color=color, ls=style, label=name)
    axes[1].semilogy(losses, color=color, ls=style, label=name)
axes[0].set(xlabel="step", ylabel=r"rate $\eta$")
axes[1].set(xlabel="step", ylabel="loss $L$", ylim=(5e-3, 0.3))
axes[0].legend(frameon=False, fontsize=9)
plt.show()
assert rates["yours"].shape == (steps,)
assert last_loss(rates["constant"]) > 1.5 * least
assert least <= last_loss(rates["yours"]) < 1.12 * least

# %% [markdown]
# ## Problem 5: exponents with noise
#
# The same power laws with noise, and the number of steps $n$ grows. What are the exponents $\beta$ of $L \propto
# n^{-\beta}$, of the best constant rate and of the best schedule? Take $1 < a < c$.
#
# Write a function of $(a, c)$ that returns both. Hint: balance the modes that are not yet learned against the noise of
# those that are. A constant rate has the floor of problem 3. With a schedule the noise can be averaged: every learned
# mode costs about $\sigma^2/(B n)$, as in least squares.

# %%
answer_5 = None  # for example: lambda a, c: (constant, best)

# %% tags=["hide-cell"]
# @title Solution 5


def solution_5(a, c):
    # Constant: (rate n)^(-(c - 1)/a) is not learned, and the floor is ~ rate. They balance at
    # rate ~ n^(-(c - 1)/(a + c - 1)), which is the loss.
    # Best: K learned modes leave K^(1 - c), and cost K/n. They balance at K ~ n^(1/c). Learning K modes in n steps
    # takes a rate of K^a/n ~ n^(a/c - 1), which does not grow as a < c.
    return (c - 1) / (a + c - 1), (c - 1) / c


# %%
exponents = answer_5 or solution_5
numbers = [250, 1000, 4000]
ends = {"constant": [], "best": []}
heights = jnp.geomspace(5e-3, 0.2, 40)
for number in numbers:
    best = js.theory.optimal_schedule(eigenvalues, errors, number, batch_size=batch, noise_variance=noise)
    ends["best"].append(best[1])
    flat = jnp.ones(number)
    ends["constant"].append(jnp.min(jax.lax.map(lambda height, flat=flat: last_loss(height * flat), heights)))
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (name, values), predicted, color in zip(ends.items(), exponents(a, c), js.plot.COLORS):
    values = np.array(values)
    measured = -np.polyfit(np.log(numbers), np.log(values), 1)[0]
    print(f"{name:8} measured {measured:.2f}, predicted {predicted:.2f}")
    assert abs(measured - predicted) < 0.04
    ax.loglog(numbers, values, "o", color=color, label=name)
    ax.loglog(numbers, values[1] * (np.array(numbers) / 1000) ** -predicted, color=color, ls=":")
ax.set(xlabel="steps $n$ in all", ylabel="loss $L$ after the last step")
ax.set_xticks(numbers, [str(number) for number in numbers])
ax.xaxis.minorticks_off()
ax.legend(frameon=False, fontsize=9, title="rate")
plt.show()

# %% [markdown]
# ## Problem 6: a network on a stream
#
# A wide two-layer linear network $f = \frac{1}{\sqrt{h d}} \sum_i a_i\, w_i \cdot x$ (`js.nets.Scaling.ntk()`: all
# weights are standard normal, all rates $\eta$) sees every sample once. In the limit $h \to \infty$ it is a linear
# model again. At which rate must that model learn, so that its mean loss is that of the network?
#
# Write a function of $(\eta, d)$. Hint: the kernel $K(x, x') = \sum_p \partial_p f(x)\, \partial_p f(x')$ of a linear
# model is $x \cdot x'$.

# %%
answer_6 = None  # for example: lambda rate, d: ...

# %% tags=["hide-cell"]
# @title Solution 6


def solution_6(rate, d):
    # The gradient by w_i is a_i x/sqrt(h d), that by a_i is w_i.x/sqrt(h d). The sums of a_i^2/h and of w_i w_i^T/h
    # go to 1 and to the identity: K = 2 x.x'/d.
    return 2 * rate / d


# %%
effective = answer_6 or solution_6
d, rate, batch = 20, 2.5, 4
eigenvalues, target = jnp.arange(1.0, d + 1) ** -1.5, jnp.arange(1.0, d + 1) ** -0.6


def sample(key, size):
    x = jax.random.normal(key, (size, d)) * jnp.sqrt(eigenvalues)
    return x, (x @ target)[:, None]


def network(seed):
    key = jax.random.key(seed)
    net = js.nets.TwoLayerLinear(in_size=d, width_size=256, scaling=js.nets.Scaling.ntk(), key=key)
    return js.Stream(net, sample, key=jax.random.key(0), centered=True, size=4096)


steps = np.array([0, 1, 2, 5, 10, 20, 50, 100, 200])
descent = js.Descent(optax.sgd(rate), batch_size=batch, key=jax.random.key(1))
runs = js.sweep(network, {"seed": range(96)}, descent, rate * steps, progress=False)
measured = 2 * runs["loss"].values.mean(0)  # the loss is half the mean square error
theory = js.theory.online_sgd(eigenvalues, target**2, jnp.full(200, effective(rate, d)), batch_size=batch)[steps]
off = np.max(np.abs(measured[1:] / theory[1:] - 1))
print("steps   ", ", ".join(f"{step:5}" for step in steps[::2]))
print("networks", ", ".join(f"{loss:.3f}" for loss in measured[::2]))
print("theory  ", ", ".join(f"{loss:.3f}" for loss in theory[::2]))
assert off < 0.1, off
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for lane, losses in enumerate(runs["loss"].values[:10]):
    ax.loglog(steps[1:], 2 * losses[1:], color="0.75", lw=0.8, label="single networks" if lane == 0 else None)
ax.loglog(steps[1:], measured[1:], "o", color=js.plot.COLORS[0], label="mean of 96")
ax.loglog(steps[1:], theory[1:], color=js.plot.COLORS[1], label="theory")
ax.set(xlabel="steps $n$", ylabel="loss $L$")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# More of this: [samples seen once](https://github.com/jaxsolve/jaxsolve/blob/main/docs/theory.md), and
# [streams](https://github.com/jaxsolve/jaxsolve/blob/main/docs/mechanics.md) for networks that have no formula.
