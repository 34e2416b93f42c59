"""Networks of growing width come to the rich limit (dashed): eight of each width, and their distance."""

import diffrax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsolve as js


data = js.data.gaussian(20, 3, key=jax.random.key(0))
ts = jnp.linspace(0.0, 10.0, 41)
widths, seeds = [10, 40, 160, 640], np.arange(8)


def problem(width, seed):
    """A network and the data."""
    rule = js.nets.Scaling.mean_field()
    return js.Problem(
        js.nets.MLP(
            in_size=3, out_size=1, width_size=width, depth=1, activation="tanh", scaling=rule, key=jax.random.key(seed)
        ),
        *data.train,
    )


watched = [js.observe.loss(), js.observe.outputs()]
axes = {"width": widths, "seed": seeds}
runs = js.sweep(problem, axes, js.GradientFlow(diffrax.Tsit5()), ts, observe=watched, progress=False)
limit = js.solve(problem(640, 0), js.RichLimit(), ts, observe=watched)

fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for color, width in zip(js.plot.COLORS, widths, strict=False):
    for seed in seeds:
        label = f"width {width}" if seed == 0 else None
        left.plot(ts, runs["loss"].sel(width=width, seed=seed), color=color, linewidth=0.8, label=label)
left.plot(limit.ts, limit["loss"], color="black", linestyle="dashed", label="limit")
left.set(xlabel="time $t$ (gradient-flow units)", ylabel="training loss")
left.legend(frameon=False)
off = np.asarray(runs["outputs"]) - np.asarray(limit["outputs"])  # (width, seed, time, sample, output)
far = np.sqrt(np.mean(off**2, axis=(2, 3, 4)))
right.loglog(widths, far, ".", color=js.plot.COLORS[0])
right.loglog(widths, np.median(far, 1), color=js.plot.COLORS[0], label="networks, and their median")
right.loglog(widths, 0.35 / np.sqrt(widths), "k:", label=r"$\propto N^{-1/2}$")
right.set(xlabel="width $N$", ylabel="rms distance of outputs")
right.legend(frameon=False)
