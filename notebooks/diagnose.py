# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your network: kernel or features?
#
# Does your network learn features, or does it fit with those that it started with? Put your own network, data and
# optimizer into the cell that begins with `import equinox`; the rest stays as it is.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/notebooks/diagnose.ipynb)

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
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import jaxsolve as js


jax.config.update("jax_default_matmul_precision", "highest")  # accelerators round float32 products otherwise
data = js.data.digits(task="parity", n_train=200, n_test=400, pca=10, key=jax.random.key(0))
(x, y), test = data.train, data.test
net = eqx.nn.MLP(10, 1, 64, 2, jnp.tanh, key=jax.random.key(1))
optimizer = optax.adam(3e-3)

# %% [markdown]
# ## One line
#
# It trains for 100 steps, and looks at how far the tangent kernel moves, what the linearized network misses, where
# features would no longer be learned, and how stable the steps are.

# %%
report = js.diagnose(net, x, y, optimizer=optimizer, test=test, steps=100, probes=100)
arrays = report.to_xarray()
expected = report.findings["expected_kernel_change"].value
print(f"{report.regime.label}: full training would move the kernel by {expected:.1f} times its size")

# %% [markdown]
# The kernel along the way. Above the dashed line the features are no longer those of the start.

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
axes[0].plot(arrays["step"], arrays["loss"], color=js.plot.COLORS[0], marker="o", ms=3)
axes[0].set(xlabel="step of the optimizer", ylabel="training loss", ylim=(0, None))
axes[1].plot(arrays["step"], arrays["kernel_change"], color=js.plot.COLORS[1], marker="o", ms=3, label="measured")
axes[1].axhline(js.observe.KERNEL_REGIME_LIMIT, color="0.4", ls="--", label="border of the kernel regime")
axes[1].set(xlabel="step of the optimizer", ylabel="kernel change $|K-K_0|/|K_0|$")
axes[1].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# The report draws one page of panels, among them what the linearized network would have done, and which layers learn:

# %%
report.plot()

# %% [markdown]
# All numbers, each with its limit and where the limit comes from:

# %%
report

# %% [markdown]
# `report.save("diagnosis.html")` writes the same as one page; `report.to_xarray()` has the arrays;
# `js.diagnose_checkpoints` takes networks that you have saved.
# [docs/diagnose.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/diagnose.md) says what every number is.
