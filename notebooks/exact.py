# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exact solutions, and errors in print
#
# Some networks can be solved: their loss, weights and kernel at any time are a formula. We check such formulas with
# gradient flow, and then three equations of papers that the same check shows to be wrong.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/exact.ipynb)

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

import jaxsolve as js


jax.config.update("jax_enable_x64", True)
flow = js.GradientFlow(rtol=1e-8, atol=1e-10)

# %% [markdown]
# ## Which formula?
#
# `js.exact` looks at a problem and picks the closed form that solves it. Here are three problems: a two-layer linear
# network whose inputs lie on a line, one linear neuron on whitened inputs, and three linear layers that start with one
# mode.

# %%
line = js.data.line(30, 5, key=jax.random.key(0))
net = js.nets.TwoLayerLinear(in_size=5, width_size=20, scaling=js.nets.Scaling.ntk(), key=jax.random.key(1))
along = jnp.linalg.svd(line.x, full_matrices=False)[2][0]
aside = jnp.array([1.0, 0.0, 0.0, 0.0, 0.0])
aside = aside - (aside @ along) * along  # no input has a part in this direction
two_layers = js.Problem(net, *line.train, test=(aside[None, :], jnp.zeros((1, 1))))


def scaling(*sigma):
    ones = [1.0] * len(sigma)
    return js.nets.Scaling(multiplier=ones, sigma=sigma, eta=ones)


# f = a w.x from a = 0.9, w = (0.8, -0.9); the inputs are unit vectors, so the targets are the function to be learned.
start = js.nets.Given([jnp.array([[0.8, -0.9]]), jnp.array([[0.9]])])
net = js.nets.SingleNeuron(in_size=2, scaling=scaling(1.0, 1.0), init=start, key=jax.random.key(0))
neuron = js.Problem(net, jnp.eye(2), jnp.array([[-1.0], [0.5]]))

net = js.nets.DeepLinear(
    in_size=3,
    out_size=1,
    width_size=8,
    depth=2,
    scaling=scaling(0.05, 0.05, 0.05),
    init=js.nets.LambdaBalanced(),
    key=jax.random.key(0),
)
mode = (net.weights[2] @ net.weights[1] @ net.weights[0])[0]
x = js.data.gaussian(40, 3, whitened=True, key=jax.random.key(0)).x
size = 1.0  # of the target, along the start's only mode
deep = js.Problem(net, x, size * x @ mode[:, None] / jnp.linalg.norm(mode))

for problem in (two_layers, neuron, deep):
    print(js.exact(problem).name)

# %% [markdown]
# ## Formula and simulation
#
# `js.compare` runs both from the same start, and observes what you ask for: loss and kernel of all three, and for each
# something more, for later. The broad lines below are formulas, the dotted ones gradient flow: they cover each other,
# as their largest difference, relative to the largest value, is below one in a million.

# %%
ts = jnp.linspace(0.0, 20.0, 401)
weights = [
    js.observe.Observable("a", lambda view: view.params.weights[1][0, 0], js.Quantity.PARAMS),
    js.observe.Observable("w", lambda view: view.params.weights[0][0], js.Quantity.PARAMS, ("input",)),
    js.observe.kernel_distance(),
]
cases = {
    "two layers": (two_layers, [js.observe.test_outputs()]),
    "neuron": (neuron, weights),
    "deep": (deep, []),
}
formulas, flows = {}, {}
fig, axes = plt.subplots(1, 2, figsize=(7, 3.1), layout="constrained")
for (name, (problem, more)), color in zip(cases.items(), js.plot.COLORS):
    watched = [js.observe.loss(), js.observe.kernel_change(), *more]
    both = js.compare(problem, [js.exact(problem), flow], ts, observe=watched)
    formulas[name], flows[name] = both.trajectories.values()
    (errors,) = both.errors.values()
    print(f"{name}: largest error below 1e-6: {max(errors['loss'], errors['kernel_change']) < 1e-6}")
    for ax, what in zip(axes, ("loss", "kernel_change")):
        ax.plot(ts[1:], formulas[name][what][1:], color=color, lw=3, alpha=0.4, label=f"{name}, formula")
        ax.plot(ts[1:], flows[name][what][1:], color=color, ls=":", label=f"{name}, flow")
axes[0].set(xlabel="time $t$ (gradient-flow units)", ylabel="loss", yscale="log", ylim=(1e-6, 3))
axes[1].set(xlabel="time $t$ (gradient-flow units)", ylabel="kernel change $|K-K_0|/|K_0|$", yscale="log")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %% [markdown]
# ## Three errors in print
#
# Such a comparison also finds slips. All of them that we know are in the
# [errata](https://github.com/jaxsolve/jaxsolve/blob/main/docs/errata.md), each with its error; these are three.
#
# **1. Xu & Liu Ziyin, below eq. 16 (first version):** where there is no data, the output stays as it was, $f(x', t) =
# f(x', 0)$. The first layer does stay there. But the second layer moves, and the output is their product: $f(x', t) =
# \gamma \sum_i u_i(t)\, w_i(0) \cdot x'$.

# %%
simulated_off = flows["two layers"]["test_outputs"][:, 0, 0]
corrected_off = formulas["two layers"]["test_outputs"][:, 0, 0]
printed_off = jnp.full_like(ts, corrected_off[0])

# %% [markdown]
# **2. Kunin et al., notebook `Single_Neuron`:** in the kernel distance of one neuron $f = a\, w \cdot x$, with which a
# figure is drawn, the norm of the later kernel is $\sqrt{2 a_t^4 + 2 a_0^2 |w_t|^2 + |w_t|^4}$. It must be $a_t$ in
# the middle term.

# %%
run = formulas["neuron"]
a, w = run["a"], run["w"]
ww = jnp.sum(w**2, axis=1)
overlap = 2 * a[0] ** 2 * a**2 + a[0] ** 2 * ww + a**2 * ww[0] + (w @ w[0]) ** 2
norm = lambda middle: jnp.sqrt(2 * a**4 + 2 * middle**2 * ww + ww**2)
corrected_distance = 1 - overlap / norm(a)[0] / norm(a)
printed_distance = 1 - overlap / norm(a)[0] / norm(a[0])
simulated_distance = flows["neuron"]["kernel_distance"]

# %% [markdown]
# **3. Atanasov et al., eq. 39:** the size $c$ of the one mode of $L$ linear layers grows as $\dot c = c^{2-2/L} (s -
# c)$. A factor $L$ is missing: their curve is the right one, but $L$ times as late.

# %%
layers = 3
# Inputs are whitened, so the loss is (s - c)^2/2.
corrected_c, simulated_c = (size - jnp.sqrt(2 * run["loss"]) for run in (formulas["deep"], flows["deep"]))
printed_c = jnp.interp(ts / layers, ts, corrected_c)
half = jnp.argmin(jnp.abs(simulated_c - size / 2))
ratio = jnp.gradient(simulated_c, ts)[half] / (simulated_c ** (2 - 2 / layers) * (size - simulated_c))[half]
print(f"half-way, c grows {ratio:.1f} times as fast as eq. 39 says")

# %%
panels = (
    (simulated_off, printed_off, corrected_off, "1. output off the line", "$f(x', t)$"),
    (simulated_distance, printed_distance, corrected_distance, "2. one neuron", "kernel distance"),
    (simulated_c, printed_c, corrected_c, "3. three linear layers", "size of the mode $c$"),
)
fig, axes = plt.subplots(1, 3, figsize=(7, 2.7), layout="constrained")
for ax, (simulated, printed, corrected, title, label) in zip(axes, panels):
    ax.plot(ts, corrected, color=js.plot.COLORS[0], label="corrected")
    ax.plot(ts, printed, color=js.plot.COLORS[1], ls="--", label="published")
    ax.plot(ts[::20], simulated[::20], color="black", marker="o", ms=3, ls="", label="gradient flow")
    ax.set(xlabel="time $t$ (flow units)", ylabel=label)
    ax.set_title(title, fontsize=9)
    wrong, right = (jnp.max(jnp.abs(curve - simulated) / jnp.max(jnp.abs(simulated))) for curve in (printed, corrected))
    print(f"{title}: published, off by {100 * wrong:.0f} %; corrected, by less than 1e-6: {right < 1e-6}")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %% [markdown]
# The dots lie on the corrected line in every panel. On the command line, `jaxsolve errata` recomputes all of them;
# [docs/theory.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/theory.md) lists the closed forms, and
# what each of them needs.
