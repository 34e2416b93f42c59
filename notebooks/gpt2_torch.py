# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A Hugging Face GPT-2, watched in its PyTorch loop
#
# Does a small GPT-2 learn features, or does it fit with those that it started with? We ask before training, and watch
# it while PyTorch trains it. Besides jaxsolve it takes `pip install torch transformers`; the first cell does that where
# they are missing. Nothing else is downloaded: the weights are random, and the text is the license of jaxsolve.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/gpt2_torch.ipynb)

# %%
import importlib.util
import subprocess
import sys


sources = {"jaxsolve": "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve"}
for package in ("jaxsolve", "torch", "transformers"):
    if importlib.util.find_spec(package) is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", sources.get(package, package)], check=True)

# %%
from importlib.metadata import distribution

import matplotlib.pyplot as plt
import optax
import torch
import transformers

import jaxsolve as js


text = distribution("jaxsolve").read_text("licenses/LICENSE")
letters = sorted(set(text))
LENGTH = 32
windows = torch.tensor([letters.index(letter) for letter in text]).unfold(0, LENGTH + 1, 1)
torch.manual_seed(0)
sizes = dict(vocab_size=len(letters), n_positions=LENGTH, n_layer=2, n_embd=64, n_head=4)
config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
module = transformers.GPT2LMHeadModel(config)
print(
    f"{sum(p.numel() for p in module.parameters())} parameters, {len(text)} characters, {len(letters)} different ones"
)

# %% [markdown]
# ## Before training: one question
#
# `js.nets.from_torch` makes a network of the module; it needs one sample as an example. The targets are the next
# characters, as integers, one for each position. `js.diagnose` trains a copy for 100 steps, without dropout, and leaves
# the module as it is.

# %%
net = js.nets.from_torch(module, windows[0, :-1])
some = windows[torch.randperm(len(windows))[:256]].numpy()
x, y = some[:, :-1], some[:, 1:]
loss = js.losses.CrossEntropy()
report = js.diagnose(net, x, y, loss=loss, optimizer=optax.adamw(1e-3), steps=100, batch_size=32, probes=16)
print(f"{report.regime.label}: the linearized network misses {report['nonlinearity']:.0%} of what the network learns")

# %% [markdown]
# ## While it trains
#
# The loop is PyTorch's own, with the dropout of GPT-2. `js.nets.torch_params` reads the parameters for the monitor,
# which looks at 16 windows every 20 steps, without dropout. It changes nothing in the loop.

# %%
monitor = js.Monitor(js.Problem(net, x[:16], y[:16], loss=loss), every=20)
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
module.train()
for step in range(201):
    monitor(step, js.nets.torch_params(module))
    batch = windows[torch.randint(len(windows), (32,))]
    logits = module(batch[:, :-1]).logits
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
    optimizer.step()

# %%
rows = monitor.history
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
axes[0].plot(rows.step, rows.loss, color=js.plot.COLORS[0], marker="o", ms=3, label="16 windows, no dropout")
axes[0].set(xlabel="step of AdamW", ylabel="loss (nats per character)", ylim=(0, None))
names = {"kernel_change": "kernel change $|K-K_0|/|K_0|$", "nonlinearity": "missed by the linearized network"}
for color, (name, label) in zip(js.plot.COLORS[1:], names.items()):
    axes[1].plot(rows.step, rows[name], color=color, marker="o", ms=3, label=label)
axes[1].axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--", label="border of the kernel regime")
axes[1].set(xlabel="step of AdamW", ylabel="share", ylim=(0, None))
for ax in axes:
    ax.legend(frameon=False, fontsize=8)
plt.show()
moved = rows.update_size.isel(step=-1).to_series().sort_values()
print(f"after {int(rows.step[-1])} steps: loss {rows.loss[-1]:.1f} (at the start {rows.loss[0]:.1f})")
print(f"moved most, by {moved.iloc[-1]:.1f} times its size: {moved.index[-1]}")

# %% [markdown]
# It learns features, from the start. At step 20 the kernel has changed by 0.7 of its size; from step 40 on it stays at
# about half of its size away from the start, far above the border, while the loss goes on falling. The network that
# was linearized at the start would miss more than 80 % of what is learned. The table of characters, `wte`, which GPT-2
# uses as its read-out too, moves most: it starts small, and moves by almost three times its size.
#
# The panels of the diagnosis, of the first 100 steps:

# %%
report.plot()
