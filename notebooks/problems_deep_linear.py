# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Problems: deep linear networks and Muon
#
# A deep linear network $f(x) = W_L \cdots W_1 x$ learns a linear map $M$ one singular value after the other. Which one
# comes first, and when, depends on the depth, on the start and on the optimizer. All of it can be worked out.
#
# Five problems. Each has a cell for your answer, a folded solution and a check, which takes the solution as long as
# your answer is `None`.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/problems_deep_linear.ipynb)

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
# ## Problem 1: how long is the wait?
#
# All $L$ layers start as $a\,\mathbb 1$, and $M$ is diagonal. The loss is $\frac12 |M - W_L \cdots W_1|^2$. So each
# layer stays diagonal, and every mode has one weight $w$, the same in all layers. Its share of the loss is $\frac12 (s
# - w^L)^2$.
#
# When has $w^L$ come to $s/2$ by gradient flow, to leading order in a small $a$? Write a function of $(a, s, L)$.
# Hint: nearly all of the time passes while $w^L \ll s$. Two layers are a case of their own.

# %%
answer_1 = None  # for example: lambda a, s, L: ...

# %% tags=["hide-cell"]
# @title Solution 1


def solution_1(a, s, L):
    # w' = w^(L-1) (s - w^L), which is s w^(L-1) at first: w^(2-L) falls from a^(2-L) at the rate (L - 2) s. For L = 2
    # w grows exponentially, and u = w^2 obeys the logistic equation u' = 2 u (s - u).
    return np.log(s / a**2) / (2 * s) if L == 2 else a ** (2.0 - L) / ((L - 2) * s)


# %%
wait = answer_1 or solution_1


def network(layers, strengths):
    """A deep linear network with these layers, and a loss of half the squared distance to the diagonal target."""
    n, ones = len(strengths), [1.0] * len(layers)
    scaling, init = js.nets.Scaling(multiplier=ones, sigma=ones, eta=ones), js.nets.Given(layers)
    net = js.nets.DeepLinear(
        in_size=n,
        out_size=n,
        width_size=n,
        depth=len(layers) - 1,
        scaling=scaling,
        init=init,
        key=jax.random.key(0),
    )
    return js.Problem(net, n**0.5 * jnp.eye(n), n**0.5 * jnp.diag(jnp.asarray(strengths)))


def products(run):
    """The matrices W_L ... W_1 along a run."""
    outputs = run["outputs"]
    n = outputs.shape[-1]
    return np.swapaxes(np.asarray(outputs), 1, 2) / n**0.5


def modes(run):
    """Their diagonals, which are the modes."""
    return np.diagonal(products(run), axis1=1, axis2=2)


strengths = np.array([2.0, 1.0, 0.5])
fig, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained", sharey=True)
for ax, (L, a) in zip(axes, [(2, 1e-3), (3, 1e-2), (4, 5e-2)]):
    problem = network([a * jnp.eye(3)] * L, strengths)
    predicted = np.array([wait(a, s, L) for s in strengths])
    ts = jnp.linspace(0.0, 1.5 * predicted[-1], 1501)
    form, steps = js.exact(problem), js.GradientFlow(rtol=1e-7, atol=1e-10)
    exact, flow = (js.solve(problem, one, ts, observe=js.observe.outputs()) for one in (form, steps))
    learned = modes(exact) / strengths
    halves = np.array([np.interp(0.5, share, ts) for share in learned.T])
    off = np.abs(modes(exact) - modes(flow)).max()
    print(f"L = {L}: half-way at {halves.round(1)}, predicted {predicted.round(1)}; flow off {form.name} by {off:.0e}")
    assert np.all(np.abs(predicted / halves - 1) < 0.15)
    assert off < 1e-3
    for share, s, t, color in zip(learned.T, strengths, predicted, js.plot.COLORS):
        ax.plot(ts, share, color=color, label=f"$s = {s:g}$")
        ax.plot(t, 0.5, "o", color=color, ms=5)
    ax.set(xlabel="time $t$ (gradient-flow units)", title=f"$L = {L}$, $a = {a:g}$")
axes[0].set_ylabel("learned share $w^L/s$")
axes[0].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 2: what is kept
#
# Now two layers, of which the first starts as $a\,\mathbb 1$ and the second as $b\,\mathbb 1$. Gradient flow keeps
# $W_2^\top W_2 - W_1 W_1^\top$ what it was (`js.observe.conserved()`). Which weight $w_1$ does a mode of strength $s$
# have in the first layer at the end of training?
#
# Write a function of $(a, b, s)$.

# %%
answer_2 = None  # for example: lambda a, b, s: ...

# %% tags=["hide-cell"]
# @title Solution 2


def solution_2(a, b, s):
    # w_1^2 - w_2^2 = a^2 - b^2 =: d stays, and w_1 w_2 = s at the end: w_1^4 - d w_1^2 - s^2 = 0.
    d = a**2 - b**2
    return np.sqrt((d + np.sqrt(d**2 + 4 * s**2)) / 2)


# %%
first_weight = answer_2 or solution_2
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (a, b), color in zip([(0.1, 0.1), (1.0, 0.1), (0.1, 1.0)], js.plot.COLORS):
    problem = network([a * jnp.eye(3), b * jnp.eye(3)], strengths)
    watched = [js.observe.conserved(), js.observe.parameters()]
    run = js.solve(problem, js.GradientFlow(rtol=1e-8, atol=1e-10), [0.0, 1.0, 3.0, 10.0, 100.0], observe=watched)
    drift = np.abs(run["conserved_0"] - run["conserved_0"][0]).max()
    ends = np.diag(run["parameters"][-1, :9].reshape(3, 3))
    predicted = first_weight(a, b, strengths)
    print(f"a = {a}, b = {b}: w_1 = {ends.round(3)}, predicted {predicted.round(3)}")
    assert drift < 1e-6
    assert np.allclose(ends, predicted, rtol=1e-3)
    fine = np.linspace(0.3, 2.2, 50)
    ax.plot(fine, first_weight(a, b, fine), color=color, label=f"$a = {a:g}$, $b = {b:g}$")
    ax.plot(strengths, ends, "o", color=color, ms=5)
ax.set(xlabel="strength $s$ of the mode", ylabel="weight $w_1$ at the end")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 3: from saddle to saddle
#
# From very small random weights the modes come one after the other, and between two of them the loss stands still: the
# network is near a saddle. In which order do they come? What is the loss on the plateau after $m$ of them?
#
# Write a function of the strengths, in any order, and $m$.

# %%
answer_3 = None  # for example: lambda strengths, m: ...

# %% tags=["hide-cell"]
# @title Solution 3


def solution_3(strengths, m):
    # A mode waits for a time like 1/s, so that the largest comes first. What is left is that of all the others.
    return 0.5 * np.sum(np.sort(strengths)[::-1][m:] ** 2)


# %%
plateau = answer_3 or solution_3


def random_layers(size, count, seed, n=3):
    return [size * jax.random.normal(key, (n, n)) for key in jax.random.split(jax.random.key(seed), count)]


problem = network(random_layers(1e-5, 2, seed=0), strengths)
drops = js.AlternatingFlow(drops=3).drops(problem)  # what theory predicts of this very start
ts = jnp.linspace(0.0, 1.3 * drops.times[-1], 1001)
flow = js.solve(problem, js.GradientFlow(), ts)
between = [0.5 * drops.times[0], *(0.5 * (drops.times[:-1] + drops.times[1:])), ts[-1]]
levels = np.interp(between, ts, flow["loss"])
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
ax.plot(ts, flow["loss"], color=js.plot.COLORS[0], label="gradient flow")
for m, (level, t) in enumerate(zip(levels, between)):
    print(f"{m} modes learned, t = {t:.1f}: loss {level:.4f}, predicted {plateau(strengths, m):.4f}")
    assert abs(level - plateau(strengths, m)) < 0.02 * plateau(strengths, 0)
    ax.axhline(plateau(strengths, m), color="0.4", ls=":", label=None if m else "predicted")
for m, t in enumerate(drops.times):
    ax.axvline(t, color=js.plot.COLORS[1], ls="--", lw=1, label=None if m else "AlternatingFlow")
ax.set(xlabel="time $t$ (gradient-flow units)", ylabel="training loss")
ax.legend(framealpha=1, edgecolor="none", fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 4: Muon
#
# Muon moves every matrix against the polar factor of its gradient: of the singular value decomposition $U S V^\top$ it
# takes $U V^\top$. `js.MuonFlow` is that in small steps, $W_l' = -\mathrm{polar}(\partial L/\partial W_l)$; its time is
# rate times steps. Take the start of problem 1, $a\,\mathbb 1$ in all $L$ layers.
#
# When has a mode of strength $s$ arrived? Write a function of $(a, s, L)$. Which mode is the first one?

# %%
answer_4 = None  # for example: lambda a, s, L: ...

# %% tags=["hide-cell"]
# @title Solution 4


def solution_4(a, s, L):
    # All gradients are diagonal, with entries of the sign of w^L - s: w' = 1 until w^L = s, whatever s is. The weakest
    # mode has the shortest way. There its gradient is 0, and it stays.
    return s ** (1 / L) - a


# %%
arrival = answer_4 or solution_4
a, L, h = 0.1, 3, 1e-3
strengths = np.array([2.0, 1.0, 0.5, 0.25])
problem, ts = network([a * jnp.eye(4)] * L, strengths), h * jnp.arange(1400)
# optax's Muon has momentum, and finds the polar factor by five iterations that are fast but rough: singular values come
# out between 0.7 and 1.2. Thirty of Newton and Schulz, and no momentum, make it exact.
exact_polar = optax.contrib.muon(h, beta=0.0, nesterov=False, ns_coeffs=(1.5, -0.5, 0.0), ns_steps=30)
ways = {
    "MuonModes": js.theory.MuonModes(),
    "MuonFlow": js.MuonFlow(),
    "steps, exact polar": js.Descent(exact_polar),
    "steps, as in optax": js.Descent(optax.contrib.muon(h)),
}
runs = {name: js.solve(problem, way, ts, observe=js.observe.outputs()) for name, way in ways.items()}
predicted = arrival(a, strengths, L)
print(f"{'predicted':19} {predicted.round(2)}")
fig, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained", sharey=True)
for name, run in runs.items():
    learned = modes(run) / strengths
    # Close to arrival, as the flow slows down there and steps chatter about it.
    there = np.array([np.interp(0.97, share, ts) if share.max() > 0.97 else np.inf for share in learned.T])
    print(f"{name:19} {there.round(2)}")
    if name == "steps, as in optax":
        assert np.all(there[1:] < there[:-1])
        assert np.all(np.abs(there[1:] / predicted[1:] - 1) < 0.15)
    else:
        assert np.all(np.abs(there - predicted) < 0.02)
assert np.allclose(js.theory.MuonModes().arrival_times(problem), predicted)
descent = js.solve(problem, js.GradientFlow(), jnp.linspace(0.0, 60.0, 601), observe=js.observe.outputs())
shown = [("gradient flow", descent), ("MuonFlow", runs["MuonFlow"]), ("Muon, as in optax", runs["steps, as in optax"])]
for ax, (name, run) in zip(axes, shown):
    for share, s, t, color in zip((modes(run) / strengths).T, strengths, predicted, js.plot.COLORS):
        ax.plot(run.ts, share, color=color, label=f"$s = {s:g}$")
        if name != "gradient flow":
            ax.plot(t, 1, "o", color=color, ms=5)
    ax.set(title=name, xlabel="time $t$ (rate times steps)" if "Muon" in name else "time $t$ (gradient-flow units)")
axes[0].set_ylabel("learned share $w^L/s$")
axes[0].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Problem 5: a start that is not aligned
#
# Two layers, and all their weights normal with the standard deviation $\sigma$: the start knows nothing of the
# singular vectors of $M$. Still the product of the layers follows $\min(t^2, s)$, but for an error. It goes like
# $\sigma^p$. What is $p$?
#
# Hint: let $W_2 = \sigma B + t P$ with an orthogonal matrix $P$. What is the polar factor of $W_2^\top M$ for $t \gg
# \sigma$, and what does $W_1$ become?

# %%
answer_5 = None  # for example: 2

# %% tags=["hide-cell"]
# @title Solution 5

# polar(P^T M) = P^T U V^T for any P, as M = U S V^T has positive singular values here: W_1 = sigma A + t P^T U V^T, and
# W_2 W_1 = t^2 U V^T + O(sigma t). Every mode grows like t^2, in a frame P between the layers that the start has chosen
# within a time of order sigma. Alignment costs nothing but that time: Muon aligns as fast as it grows.
solution_5 = 1

# %%
p = solution_5 if answer_5 is None else answer_5
sizes, ts, seeds = np.array([0.1, 0.03, 0.01, 0.003]), jnp.array([0.6, 1.2]), range(8)
wanted = np.stack([np.diag(np.minimum(t**2, strengths)) for t in ts])
errors = np.array(
    [
        [
            np.abs(
                products(
                    js.solve(
                        network(random_layers(size, 2, seed, n=4), strengths),
                        js.MuonFlow(eps=1e-2 * size),
                        ts,
                        observe=js.observe.outputs(),
                    )
                )
                - wanted
            ).max()
            for seed in seeds
        ]
        for size in sizes
    ]
)
middle = np.exp(np.log(errors).mean(1))
slope = np.polyfit(np.log(sizes), np.log(middle), 1)[0]
said = ", ".join(f"{error:.4f} at {size:g}" for error, size in zip(middle, sizes))
print(f"largest error, mean of {len(seeds)} starts: {said}")
print(f"exponent {slope:.2f}, predicted {p}")
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
ax.loglog(sizes, errors, "o", color=js.plot.COLORS[0], ms=4, alpha=0.5)
ax.loglog(sizes, middle, color=js.plot.COLORS[0], label="mean")
ax.loglog(sizes, middle[0] * (sizes / sizes[0]) ** float(p), "k:", label=r"$\sigma^p$")
ax.set(xlabel=r"size $\sigma$ of the start", ylabel=r"largest error of $W_2 W_1$")
ax.legend(frameon=False, fontsize=9)
plt.show()
assert abs(slope - p) < 0.15

# %% [markdown]
# More of this: [which limit or flow describes which training](https://github.com/jaxsolve/jaxsolve/blob/main/docs/mechanics.md).
