# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A Flax NNX transformer with dropout, watched while it trains
#
# A transformer learns to continue a text, character by character. Which of its parts move, and does it stay near its
# linearization? We ask before training, and watch it in a loop of Flax NNX and optax, with dropout.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/nnx_transformer.ipynb)

# %%
import importlib.util
import subprocess
import sys


sources = {"jaxsolve": "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve", "flax": "flax"}
for package, source in sources.items():
    if importlib.util.find_spec(package) is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)

# %%
from importlib.metadata import distribution

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import jaxsolve as js


text = distribution("jaxsolve").read_text("licenses/LICENSE")  # a text that is at hand
letters = sorted(set(text))
LENGTH, WIDTH = 32, 64
windows = np.lib.stride_tricks.sliding_window_view([letters.index(letter) for letter in text], LENGTH + 1)


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(len(letters), WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(3)])
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.read = nnx.Linear(WIDTH, len(letters), rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, tokens):
        h = self.embed(tokens) + self.places(jnp.arange(LENGTH))
        h += self.dropout(self.attention(self.norms[0](h), mask=nnx.make_causal_mask(tokens)))
        h += self.dropout(self.down(nnx.gelu(self.up(self.norms[1](h)))))
        return self.read(self.norms[2](h))


# %% [markdown]
# ## Before training: one question
#
# The network is the model in evaluation mode, of which all numbers are. `noise` is the model as it trains: in training
# mode, its dropout drawn by a key.

# %%
model = Transformer(nnx.Rngs(0))
model.eval()
net, noise = js.nets.from_nnx(model), lambda net, tokens, key: net(tokens, key=key)
some = np.random.default_rng(0).permutation(windows)[:256]
x, y, loss, optimizer = some[:, :-1], some[:, 1:], js.losses.CrossEntropy(), optax.adam(1e-3)
report = js.diagnose(net, x, y, loss=loss, optimizer=optimizer, steps=100, batch_size=32, probes=16, noise=noise)
print(f"{report.regime.label}: the linearized network misses {report['nonlinearity']:.0%} of what the network learns")

# %% [markdown]
# ## While it trains
#
# The monitor looks at 16 windows every 20 steps, without dropout.

# %%
monitor = js.Monitor(js.Problem(net, x[:16], y[:16], loss=loss), every=20)
trainer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
model.train()


@nnx.jit
def train_step(model, trainer, batch):
    def batch_loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(batch[:, :-1]), batch[:, 1:]).mean()

    trainer.update(model, nnx.grad(batch_loss)(model))


batches = np.random.default_rng(1)
for step in range(201):
    monitor(step, nnx.state(model, nnx.Param))
    train_step(model, trainer, windows[batches.integers(len(windows), size=32)])

# %%
rows = monitor.history
fig, axes = plt.subplots(1, 2, figsize=(7, 3.6), layout="constrained")
names = {"loss": "loss", "kernel_change": "kernel change", "nonlinearity": "missed by the linearized network"}
for color, (name, label) in zip(js.plot.COLORS, names.items()):
    axes[0].plot(rows.step, rows[name], color=color, marker="o", ms=3, label=label)
axes[0].axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--", label="border of the kernel regime")
axes[0].set(xlabel="step of Adam", ylim=(0, None))
axes[0].legend(frameon=False, fontsize=8)
for k, group in enumerate(rows.group.values):
    style = dict(color=js.plot.COLORS[k % 6], marker=js.plot.MARKERS[k % 6], ls="-" if k < 6 else ":")
    axes[1].plot(rows.step, rows.update_size.sel(group=group), ms=3, label=group.removeprefix("params"), **style)
axes[1].set(xlabel="step of Adam", ylabel=r"moved by $|\theta-\theta_0|/|\theta_0|$", ylim=(0, None))
fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
plt.show()
print(f"after {int(rows.step[-1])} steps: loss {rows.loss[-1]:.1f} (at the start {rows.loss[0]:.1f})")
most = rows.update_size.isel(step=-1).to_series().nlargest(2)
print("moved most:", ", ".join(f"{name} by {size:.1f} of its size" for name, size in most.items()))

# %% [markdown]
# It learns features, and early: by the first look, at step 20, the kernel is far above the border, and the network that
# was linearized at the start would miss most of what is learned. From then on the kernel comes back a little, while the
# loss goes on falling. So a theory of a kernel that stands still fails here within 20 steps. On the right, the read-out
# and the second matrix of the perceptron move most, by 0.4 of their size, and the gains and biases of the layer norms
# least.
#
# The panels of the diagnosis, of the first 100 steps. Its verdict is that of the loop:

# %%
report.plot()
