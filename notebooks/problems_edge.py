# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Problems: the edge of stability
#
# Steps of descent are stable only below a certain sharpness, the largest eigenvalue of the Hessian. Training drives the
# sharpness up to that value, and holds it there.
#
# Four problems. Each has a cell for your answer, a folded solution and a check, which takes the solution as long as
# your answer is `None`.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/problems_edge.ipynb)

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
# ## Problem 1: the threshold
#
# The loss is $\frac12 S w^2$, and descent with momentum has the steps $m \leftarrow \beta m + S w$, $w \leftarrow w -
# \eta m$. Up to which sharpness $S$ do they stay bounded?
#
# Write a function of $(\eta, \beta)$. Hint: eliminate $m$, and ask when $w \propto (-1)^n$ is a solution.

# %%
answer_1 = None  # for example: lambda rate, beta: ...

# %% tags=["hide-cell"]
# @title Solution 1


def solution_1(rate, beta):
    # w_(n+1) = (1 + beta - rate S) w_n - beta w_(n-1). With w_n = (-1)^n: rate S = 2 (1 + beta).
    return 2 * (1 + beta) / rate


# %%
threshold = answer_1 or solution_1


def sizes(sharpness, rate, beta, steps=300):
    """The sizes of w at each step, from 1."""
    w, m, found = 1.0, 0.0, [1.0]
    for _ in range(steps):
        m = beta * m + sharpness * w
        w = w - rate * m
        found.append(abs(w))
    return np.array(found)


fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (rate, beta), color in zip([(0.5, 0.0), (0.1, 0.5), (0.1, 0.9)], js.plot.COLORS):
    edge = threshold(rate, beta)
    below, above = sizes(0.98 * edge, rate, beta), sizes(1.02 * edge, rate, beta)
    print(f"rate {rate}, momentum {beta}: edge at a sharpness of {edge:.1f}")
    assert below[-1] < 1 < above[-1]
    ax.semilogy(below, color=color, label=rf"$\eta = {rate}$, $\beta = {beta}$")
    ax.semilogy(above, color=color, ls="--")
ax.plot([], [], color="0.3", label="2 % below")
ax.plot([], [], color="0.3", ls="--", label="2 % above")
ax.set(xlabel="step", ylabel="$|w|$")
ax.legend(frameon=False, fontsize=8, ncols=2)
plt.show()

# %% [markdown]
# ## Problem 2: a network at the edge
#
# Here a small network learns by descent at a rate of 0.5, beside gradient flow and `js.CentralFlow`, which is descent
# averaged over its oscillation. At which sharpness does the central flow end? Write a function of the rate.

# %%
answer_2 = None  # for example: lambda rate: ...

# %% tags=["hide-cell"]
# @title Solution 2


def solution_2(rate):
    # Problem 1 without momentum: beyond it the oscillation grows, and pushes the weights to where the loss is flatter.
    return 2 / rate


# %%
level = answer_2 or solution_2
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
problem, rate = js.Problem(net, x, y), 0.5
ts = rate * jnp.arange(0.0, 161.0, 4.0)
watched = [js.observe.loss(), js.observe.averaged_loss(), js.observe.sharpness(), js.observe.oscillation()]
flows = {
    "descent": js.solve(problem, js.Descent(optax.sgd(rate)), ts, observe=[js.observe.loss(), js.observe.sharpness()]),
    "gradient flow": js.solve(problem, js.GradientFlow(), ts, observe=[js.observe.loss(), js.observe.sharpness()]),
    "central flow": js.solve(problem, js.CentralFlow(rate=rate), ts, observe=watched),
}
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
for (name, run), color in zip(flows.items(), js.plot.COLORS):
    print(f"{name:13} sharpness at the end {float(run['sharpness'][-1]):.1f}")
    ax.plot(ts, run["sharpness"], color=color, label=name)
ax.axhline(level(rate), color="0.4", ls=":", label="predicted")
ax.set(xlabel=r"time $t$ (steps $\times$ rate)", ylabel="sharpness (1/time)")
ax.legend(frameon=False, fontsize=9)
plt.show()
assert abs(flows["central flow"]["sharpness"][-1] / level(rate) - 1) < 0.03
assert abs(np.mean(flows["descent"]["sharpness"][-15:]) / level(rate) - 1) < 0.2
assert flows["gradient flow"]["sharpness"][-1] > 2 * level(rate)

# %% [markdown]
# ## Problem 3: the price of the oscillation
#
# The oscillation has a covariance $\Sigma$ along the eigenvectors at the edge. The loss of descent, on average, is
# above that of the central flow's weights. By how much, to second order? Write a function of the rate and
# $\mathrm{tr}\,\Sigma$.

# %%
answer_3 = None  # for example: lambda rate, trace: ...

# %% tags=["hide-cell"]
# @title Solution 3


def solution_3(rate, trace):
    # The second order is <H, Sigma>/2, and H is 2/rate wherever Sigma is not 0.
    return trace / rate


# %%
price = answer_3 or solution_3
run = flows["central flow"]
excess = np.asarray(run["averaged_loss"] - run["loss"])
predicted = price(rate, np.sum(np.asarray(run["oscillation"]), axis=-1))
print(f"mean price of the oscillation {excess.mean():.4f}, predicted {predicted.mean():.4f}")
fig, ax = plt.subplots(figsize=(4.4, 3), layout="constrained")
ax.semilogy(ts, flows["descent"]["loss"], color=js.plot.COLORS[0], lw=0.8, label="descent")
ax.semilogy(ts, run["loss"], color=js.plot.COLORS[2], label="central flow")
ax.semilogy(ts, run["loss"] + predicted, "k--", label="with the oscillation")
ax.set(xlabel=r"time $t$ (steps $\times$ rate)", ylabel="training loss")
ax.legend(frameon=False, fontsize=9)
plt.show()
assert excess.max() > 1e-3
assert np.max(np.abs(predicted - excess)) < 0.05 * excess.max()

# %% [markdown]
# ## Problem 4: momentum at the same edge
#
# At which rate does descent with momentum $\beta$ have the same edge as descent without at the rate $\eta$? Write a
# function of $(\eta, \beta)$.

# %%
answer_4 = None  # for example: lambda rate, beta: ...

# %% tags=["hide-cell"]
# @title Solution 4


def solution_4(rate, beta):
    # 2 (1 + beta)/rate' = 2/rate. Its steps are longer by 1/(1 - beta) too, so it comes to the edge sooner.
    return rate * (1 + beta)


# %%
same = answer_4 or solution_4
beta = 0.5
other = float(same(rate, beta))
steps = other * jnp.arange(0.0, 161.0, 4.0)
momentum = js.solve(problem, js.Descent(optax.sgd(other, momentum=beta)), steps, observe=js.observe.sharpness())
settled = float(np.mean(momentum["sharpness"][-20:]))
print(f"momentum {beta}, rate {other:.2f}: sharpness {settled:.1f} on average, edge of plain descent {2 / rate:.1f}")
assert abs(threshold(other, beta) - threshold(rate, 0.0)) < 1e-9
assert abs(settled * rate / 2 - 1) < 0.25

# %% [markdown]
# More of this: [the edge of stability](https://github.com/jaxsolve/jaxsolve/blob/main/docs/edge-of-stability.md).
