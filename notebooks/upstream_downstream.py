# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Upstream, balanced, downstream
#
# Two layers need not start at the same scale. If the last layer starts large (upstream) a network moves differently
# than when the first one does (downstream), and it may learn features at once or only late (Kunin et al., *Get rich
# quick*, 2024).
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/upstream_downstream.ipynb)

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
NAMES = {-4.0: "downstream", 0.0: "balanced", 4.0: "upstream"}
COLORS = dict(zip(NAMES, js.plot.COLORS))

# %% [markdown]
# ## One neuron: the same function, three ways
#
# $f(x) = a\, w \cdot x$ starts as the same function $\beta_0 = a w = (-1, 0)$ and has to become $(0, 1)$. The relative
# scale $\delta = a^2 - |w|^2$ does not change in training. Its closed form is `js.theory.SingleNeuronFlow`.

# %%
first, target = jnp.array([-1.0, 0.0]), jnp.array([0.0, 1.0])


def neuron(delta):
    a = jnp.sqrt((delta + jnp.sqrt(delta**2 + 4)) / 2)
    scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1.0, 1.0], eta=[2.0, 2.0])
    start = js.nets.Given([first[None, :] / a, a[None, None]])
    net = js.nets.SingleNeuron(in_size=2, scaling=scaling, init=start, key=jax.random.key(0))
    return js.Problem(net, jnp.eye(2), target[:, None])


ts = jnp.concatenate([jnp.linspace(0.0, 30.0, 301), jnp.array([100.0])])
watched = [
    js.observe.neuron_radius(),
    js.observe.neuron_direction(),
    js.observe.kernel_distance(),
    js.observe.loss(),
]
axes = dict(delta=np.array(list(NAMES)))
exact = js.sweep(neuron, axes, js.theory.SingleNeuronFlow(), ts, observe=watched, progress=False)
simulated = js.sweep(neuron, axes, js.GradientFlow(rtol=1e-8, atol=1e-10), ts, observe=watched, progress=False)
worst = float(np.abs(exact["kernel_distance"] - simulated["kernel_distance"]).max())
print(f"closed form and gradient flow: kernel distances differ by {worst:.0e} at most")

# %% [markdown]
# Left: upstream the function goes nearly straight to the target, as linear regression would; there is a mark every
# unit of time. Downstream it first shrinks almost to zero, and then grows in the new direction. Right: the kernel
# distance. Upstream the kernel keeps its direction. Balanced it turns while the network learns. Downstream it stays
# for long, and then turns farthest.

# %%
paths = (exact["neuron_radius"] * exact["neuron_direction"]).isel(neuron=0)
fig, (plane, change) = plt.subplots(1, 2, figsize=(7, 3.0), layout="constrained")
for delta, name in NAMES.items():
    path = paths.sel(delta=delta).transpose("input", "t").values
    plane.plot(*path, color=COLORS[delta], marker=".", ms=3, markevery=10, label=rf"{name}, $\delta = {delta:g}$")
    distance = exact["kernel_distance"].sel(delta=delta)
    change.plot(ts[:-1], distance[:-1], color=COLORS[delta])
    print(f"{name}: kernel distance at the end {float(distance[-1]):.2f}")
plane.plot(*first, "ks", ms=5)
plane.plot(*target, "k*", ms=9)
plane.annotate("start", first, xytext=(4, 6), textcoords="offset points")
plane.annotate("target", target, xytext=(-48, -4), textcoords="offset points")
plane.set(xlabel=r"$\beta_1$", ylabel=r"$\beta_2$", aspect="equal")
change.set(xlabel="time $t$ (gradient-flow units)", ylabel="kernel distance $1-\\cos(K_0, K_t)$")
fig.legend(*plane.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %% [markdown]
# ## Many relu neurons
#
# A student of 50 relu neurons with two inputs learns a teacher's function. The overall scale of a start is $\tau$, and
# $\delta$ decides which layer holds it. Neurons come in pairs of opposite sign, so that the network is zero at first.

# %%
ones = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1.0, 1.0], eta=[1.0, 1.0])
teacher = js.nets.MLP(
    in_size=2,
    out_size=1,
    width_size=3,
    depth=1,
    activation="relu",
    scaling=ones,
    init=js.nets.Sphere(),
    key=jax.random.key(15),
)
data = js.data.teacher_student(teacher, 2, 20, n_test=100, sphere=True, key=jax.random.key(201))


def student(tau, delta, seed):
    size = jnp.sqrt(delta**2 + 4 * tau**4)
    sigma = jnp.stack([jnp.sqrt((size - delta) / 2), jnp.sqrt((size + delta) / 2)])
    scaling = js.nets.Scaling(multiplier=jnp.ones(2), sigma=sigma, eta=jnp.full(2, 2.0) / tau**2)
    start = js.nets.Mirrored(js.nets.Sphere())
    net = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=50,
        depth=1,
        activation="relu",
        scaling=scaling,
        init=start,
        key=jax.random.key(seed),
    )
    return js.Problem(net, *data.train, test=data.test)


STARTS = {"lazy": (2.0, 0.0), "downstream": (0.1, -1.0), "balanced": (0.1, 0.0), "upstream": (0.1, 1.0)}
tau, delta = np.array(list(STARTS.values())).T
step = 4e-5
times = step * np.unique(np.concatenate([[0], np.round(np.geomspace(1, 25_000, 40))]))
students = js.sweep(
    student,
    [js.Zip(tau=tau, delta=delta), dict(seed=range(100, 101))],
    js.Descent(optax.sgd(step)),
    times,
    observe=[*watched, js.observe.test_loss()],
    progress=False,
).isel(seed=0)

# %% [markdown]
# Each line is the path of one neuron $a_k w_k$, each dot its end; blue ones have $a_k > 0$. Lazy neurons barely move.
# From the small starts they turn, and gather along a few directions.

# %%
fig, axes = plt.subplots(2, 2, figsize=(5.4, 5.2), layout="constrained")
for index, (ax, name) in enumerate(zip(axes.ravel(), STARTS)):
    lane = students.isel(tau_delta=index)
    js.plot.neurons(lane["neuron_radius"], lane["neuron_direction"], ax=ax)
    ax.set_title(rf"{name}: $\tau = {tau[index]:g}$, $\delta = {delta[index]:g}$", fontsize=9)
plt.show()

# %% [markdown]
# How far the kernel has moved, and the test loss. The upstream student's kernel moves at once, the balanced one's
# later. Downstream and lazy students fit with a kernel that hardly moves: here the first layer or both start so large
# that they need not. All three small starts end at a smaller test loss than the lazy one.

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 3.0), layout="constrained")
for index, (name, color) in enumerate(zip(STARTS, js.plot.COLORS)):
    lane = students.isel(tau_delta=index)
    for ax, what in zip(axes, ("kernel_distance", "test_loss")):
        ax.plot(times[1:], lane[what][1:], color=color, label=name)
    half = float(lane["kernel_distance"][-1]) / 2
    reached = times[int(np.argmax(lane["kernel_distance"].values >= half))]
    print(
        f"{name}: kernel distance {float(lane['kernel_distance'][-1]):.3f}, half of it at t = {reached:.2g}; "
        f"test loss {float(lane['test_loss'][-1]):.1g}"
    )
axes[0].set(xscale="log", xlabel="time $t$ (flow units)", ylabel="kernel distance $1-\\cos(K_0, K_t)$")
axes[1].set(xscale="log", yscale="log", xlabel="time $t$ (flow units)", ylabel="test loss")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
plt.show()

# %% [markdown]
# The config `kunin_grid` has all starts of the paper's grid (ten core-hours); on the command line, `jaxsolve reproduce
# kunin/fig1` draws it at small scale.
