# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The best initial scales and rates of a deep linear network
#
# How large should each layer start, and how fast should it learn? Here the answer is computed: the loss of an
# infinitely wide network is a smooth function of all these numbers, so that their optimum is found by following its
# derivative.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/hyperparameters.ipynb)

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
import scipy.optimize

import jaxsolve as js


jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The problem
#
# Five directions of the data with variances 1, 1/2, ..., 1/5, in all of which there is something to learn. A network
# with L hidden layers takes 16 steps of gradient descent on the full batch. Its hyperparameters are logarithms of
# sigma and of eta of every layer; multipliers are those of the mean-field scaling, so that the same numbers mean the
# same at any width.

# %%
DIRECTIONS, STEPS = 5, 16
x = jnp.diag(jnp.sqrt(DIRECTIONS / jnp.arange(1.0, DIRECTIONS + 1)))
y = jnp.sum(x, axis=1, keepdims=True)
y = y / jnp.sqrt(jnp.mean(y**2))
ts = jnp.arange(STEPS + 1.0)


def problem(numbers, width=64, key=jax.random.key(0)):
    depth = len(numbers) // 2 - 1
    sigma, eta = jnp.exp(numbers[: depth + 1]), jnp.exp(numbers[depth + 1 :])
    per_neuron = jnp.array([width] + [1] * (depth - 1) + [width])
    multiplier = [1.0, *[width**-0.5] * (depth - 1), 1 / width]
    scaling = js.nets.Scaling(multiplier=multiplier, sigma=list(sigma), eta=list(per_neuron * eta))
    net = js.nets.MLP(
        in_size=DIRECTIONS, out_size=1, width_size=width, depth=depth, activation="linear", scaling=scaling, key=key
    )
    return js.Problem(net, x, y)


def losses(numbers):
    limit = js.RichLimit(rate=1.0, nodes=STEPS, at_any_richness=True)
    return js.solve(problem(numbers), limit, ts, observe=js.observe.loss(), throw=False)["loss"]


# %%
def networks(numbers, width):
    """The losses of eight networks."""

    def one(key):
        run = js.solve(
            problem(numbers, width, key), js.Descent(optax.sgd(1.0)), ts, observe=js.observe.loss(), throw=False
        )
        return run["loss"]

    return jax.lax.map(one, jax.random.split(jax.random.key(1), 8))


networks = jax.jit(networks, static_argnums=1)

# %% [markdown]
# ## Down the derivative
#
# `RichLimit` passes derivatives forward (`jax.jacfwd`); SciPy's BFGS does the rest. We tune one sigma and one eta
# that all layers share, and then those of every layer by itself.


# %%
def with_slope(objective):
    """The logarithm of an objective and its slope in all numbers, compiled once for a depth."""
    value = lambda numbers: jnp.log(objective(numbers))
    return jax.jit(jax.jacfwd(lambda numbers: (value(numbers),) * 2, has_aux=True))


def best(both, start, shape):
    """Where an objective is smallest over numbers shape @ u, and how small."""

    def of(u):
        slope, value = both(jnp.asarray(shape @ u))
        fine = np.isfinite(value) and np.isfinite(slope).all()
        return (float(value), np.asarray(slope) @ shape) if fine else (9.0, np.zeros(len(u)))  # a step too far

    found = scipy.optimize.minimize(of, start, jac=True, method="BFGS", options={"gtol": 1e-4})
    return jnp.asarray(shape @ found.x), float(np.exp(found.fun))


mean_loss = with_slope(lambda numbers: jnp.mean(losses(numbers)[1:]))
last_loss = with_slope(lambda numbers: losses(numbers)[-1])
DEPTHS = (1, 2, 3)
shared = {depth: np.kron(np.eye(2), np.ones((depth + 1, 1))) for depth in DEPTHS}
start = {depth: np.array([0.0, -np.log(depth + 1)]) for depth in DEPTHS}

# %% [markdown]
# ## A small loss on the way
#
# First the mean of the loss over all steps, against depth.

# %%
even, tuned = {}, {}
print("depth  sigma 1, best eta  one sigma, one eta  every layer its own")
for depth in DEPTHS:
    _, plain = best(mean_loss, start[depth][1:], shared[depth][:, 1:])
    even[depth], uniform = best(mean_loss, start[depth], shared[depth])
    tuned[depth], own = best(mean_loss, np.asarray(even[depth]), np.eye(2 * depth + 2))
    print(f"{depth:5} {plain:18.4f} {uniform:19.4f} {own:20.4f}")

# %%
fig, ax = plt.subplots(figsize=(3.6, 2.8), layout="constrained")
factors = np.linspace(0.3, 1.6, 27)
for color, depth in zip(js.plot.COLORS, DEPTHS, strict=False):
    along = [even[depth] + np.log(factor) * shared[depth][:, 1] for factor in factors]
    ax.semilogy(factors, [np.exp(mean_loss(numbers)[1]) for numbers in along], color=color, label=f"depth {depth}")
ax.set(xlabel="eta of all layers / best eta", ylabel="mean loss over 16 steps", ylim=(5e-3, 1))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# A rate that is 20 % too small raises the mean loss by about a quarter, one that is 20 % too large by more than half.
#
# One sigma and one rate for all layers, well chosen, are nearly as good as it gets: tuning every layer gains 3 %. And
# the optimum does not depend on depth: once its layers are tuned, a deep linear network is no better and no worse
# than a shallow one.
#
# What does it look like? A factor moved from one layer of a linear network to the next changes nothing, so single
# sigmas and etas say little. What such factors leave as it is: what each layer adds to the kernel at the start, eta_l
# times the square of the other layers' sigmas.
#
# In numbers: the best sigma and eta that all layers share, by depth; these parts of the kernel where every layer has
# its own; and the mean loss of networks of width 800 with these, beside that of the limit.

# %%
print("depth  sigma    eta   kernel at the start by layer, first to last   width 800   limit")
for depth in DEPTHS:
    net = problem(tuned[depth]).net
    scaling, hidden = net.scaling, len(net.weights) - 1
    squares = jnp.prod((scaling.multiplier * scaling.sigma) ** 2)
    shares = scaling.gamma**2 * net.widths[-1] ** hidden * squares * scaling.eta / scaling.sigma**2
    finite = np.median(jnp.mean(networks(tuned[depth], 800)[:, 1:], axis=1))
    sigma, eta = np.exp(np.asarray(even[depth])[[0, -1]])
    by_layer = " ".join(f"{share:9.1e}" for share in shares)
    print(f"{depth:5} {sigma:6.3f} {eta:6.3f}   {by_layer:42} {finite:12.4f} {np.exp(mean_loss(tuned[depth])[1]):7.4f}")

# %% [markdown]
# At every depth the same: a read-out that starts next to 0 and does all the work of the first step, from hidden
# layers that can move as soon as it has grown.
#
# ## A small loss at the end
#
# Now the loss after the last step alone, with one sigma and one eta.

# %%
aimed = {}
for depth in DEPTHS:
    aimed[depth], last = best(last_loss, start[depth], shared[depth])
    before = float(losses(tuned[depth])[-1])
    print(f"depth {depth}: loss after {STEPS} steps {last:.0e}, with the numbers from above {before:.0e}")

# %%
typical = lambda runs: jnp.median(jnp.nan_to_num(runs, nan=jnp.inf), axis=0)  # nothing where half have diverged
fig, panels = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained", sharey=True)
for ax, numbers, title in zip(panels, (tuned, aimed), ("tuned for the mean", "tuned for the last step"), strict=True):
    for color, depth in zip(js.plot.COLORS, DEPTHS, strict=False):
        ax.semilogy(ts, losses(numbers[depth]), color=color, label=f"depth {depth}")
        ax.semilogy(ts, typical(networks(numbers[depth], 800)), ".", color=color)
    ax.set(xlabel="steps", title=title, ylim=(1e-11, 10))
panels[0].set(ylabel="loss (dots: width 800)")
panels[0].legend(frameon=False)
plt.show()

# %% [markdown]
# On the right the loss first rises: rates are so large that the network is thrown out, to where its kernel is another
# one, and comes back faster than it could have gone directly. That is worth four decades after 16 steps. But it is
# aimed closely past divergence, with the help of a start that the limit knows exactly. Networks of width 800, which
# start with outputs of order 1/sqrt(N), may miss (dots end where half of them have diverged); on the left they do
# what the limit does.
#
# BFGS finds the minimum next to its start; elsewhere there may be lower ones.
