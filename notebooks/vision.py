# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A ResNet with batch norm, watched while it trains
#
# A small residual network with batch normalization learns handwritten digits. Does it learn features? We ask before
# training, and watch it in a loop of Equinox and optax.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/vision.ipynb)

# %%
import importlib.util
import subprocess
import sys


if importlib.util.find_spec("jaxsolve") is None:
    source = "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)

# %%
import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsolve as js


class ResNet(eqx.Module):
    stem: eqx.nn.Conv2d
    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    read: eqx.nn.Linear

    def __init__(self, channels, depth, key):
        first, last, *keys = jax.random.split(key, depth + 2)
        self.stem = eqx.nn.Conv2d(1, channels, 3, padding=1, key=first)
        self.convs = [eqx.nn.Conv2d(channels, channels, 3, padding=1, key=each) for each in keys]
        self.norms = [eqx.nn.BatchNorm(channels, "batch", momentum=0.9, mode="batch") for _ in keys]
        self.read = eqx.nn.Linear(channels, 10, key=last)

    def __call__(self, x, state):
        h = self.stem(x.reshape(1, 8, 8))
        for conv, norm in zip(self.convs, self.norms):
            seen, state = norm(conv(h), state)
            h += jax.nn.relu(seen)
        return self.read(h.mean((1, 2))), state


data = js.data.digits(n_train=1024, n_test=400, key=jax.random.key(0))
(x, y), (x_test, y_test) = data.train, data.test
net, state = eqx.nn.make_with_state(ResNet)(16, 3, jax.random.key(1))
optimizer, loss = optax.adam(3e-3), js.losses.CrossEntropy()

# %% [markdown]
# ## Before training: one question
#
# A network with batch norm is given with its state. It trains in training mode, by the statistics of its batches.
# Kernels, which compare samples one by one, are those of the network in inference mode.

# %%
report = js.diagnose(net, x, y, loss=loss, optimizer=optimizer, steps=100, batch_size=64, probes=16, state=state)
print(f"{report.regime.label}: the linearized network misses {report['nonlinearity']:.0%} of what the network learns")

# %% [markdown]
# ## While it trains
#
# The monitor gets the same network and state, and 32 digits to look at. Two numbers of the kernel: its change counts
# all, size as well as direction; its distance, 1 minus a cosine (both kernels centered), counts the direction alone.

# %%
watched = [js.observe.traced(item) for item in (js.observe.kernel_change(), js.observe.kernel_centered_distance())]
watched = [js.observe.loss(), js.observe.nonlinearity(), *watched]
monitor = js.Monitor(js.Problem(net, x[:32], y[:32], loss=loss, state=state), observe=watched, every=10)


@eqx.filter_jit
def train_step(net, state, opt_state, x, y):
    def batch_loss(net, state):
        f, state = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
        return optax.softmax_cross_entropy(f, y).mean(), state

    gradient, state = eqx.filter_grad(batch_loss, has_aux=True)(net, state)
    updates, opt_state = optimizer.update(gradient, opt_state)
    return eqx.apply_updates(net, updates), state, opt_state


batches, opt_state = np.random.default_rng(0), optimizer.init(eqx.filter(net, eqx.is_inexact_array))
for step in range(201):
    monitor(step, net)
    batch = batches.integers(len(x), size=64)
    net, state, opt_state = train_step(net, state, opt_state, x[batch], y[batch])
f = jax.vmap(lambda x: eqx.nn.inference_mode(net)(x, state)[0])(x_test)
accuracy = (f.argmax(1) == y_test.argmax(1)).mean()

# %%
rows = monitor.history
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
axes[0].plot(rows.step, rows.loss, color=js.plot.COLORS[0], marker="o", ms=3, label="32 digits")
axes[0].set(xlabel="step of Adam", ylabel="cross entropy", ylim=(0, None))
names = {
    "kernel_change": "kernel change",
    "kernel_centered_distance": "kernel distance",
    "nonlinearity": "missed by the linearized network",
}
for color, (name, label) in zip(js.plot.COLORS[1:], names.items()):
    axes[1].plot(rows.step[1:], rows[name][1:], color=color, marker="o", ms=3, label=label)
axes[1].axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--", label="border of the kernel regime")
axes[1].set(xlabel="step of Adam", yscale="log", ylim=(0.01, 5000))
for ax in axes:
    ax.legend(frameon=False, fontsize=8)
plt.show()
change, distance = rows.kernel_change[-1], rows.kernel_centered_distance[-1]
print(f"test accuracy {accuracy:.1f}; the kernel has changed by {change:.0f}, and turned by {distance:.1f}")

# %% [markdown]
# It learns features. At step 10 the kernel has already left its regime, and the numbers say how. By the end it has
# changed by 40 times its size at the start: most of that is growth, which a distance of 0.3 does not see. It turned in
# the first 10 steps, and little after that, while the loss fell. The share that the linearized network misses grew
# with the kernel.
#
# The panels of the diagnosis, of the first 100 steps. Most of the kernel is that of the first convolution after the
# stem, `convs[0]`:

# %%
report.plot()
