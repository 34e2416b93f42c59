"""How many times as fast as what one would use instead: twelve ratios of benchmarks/results."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

import jaxsolve as js


RESULTS = Path("../../benchmarks/results")  # from the folder of this script, where the site runs it
LOOPS = "cpu-jax0.12"  # rows of `loops` are our time over theirs, others theirs over ours
SHOWN = (
    (
        "minibatches of SGD | jit(lax.scan)",
        LOOPS,
        "loops",
        "minibatches of 32 of 5,000 samples, 784-128-10, 300 steps: less 1 ms",
    ),
    (
        "9 million weights, Adam | jit(lax.scan)",
        LOOPS,
        "loops",
        "8 steps of Adam, 32 samples, 1000-2500-2500-10 (9 million parameters): less 1 ms",
    ),
    (
        "1000 small networks | jit(vmap(lax.scan))",
        LOOPS,
        "loops",
        "1000 networks 5-16-1, 30 samples, 500 steps: later sweep",
    ),
    ("easy gradient flow | diffrax", LOOPS, "loops", "flow, convolutions, gelu, 32 images: less 1 ms"),
    (
        "NTK of convolutions | jit(vmap(jacrev))",
        LOOPS,
        "loops",
        "kernel of convolutions 3-16-16, 200 images of 12 x 12, in jit",
    ),
    ("stiff gradient flow | best diffrax solver", "cpu", "flow", "gamma = 1: fastest rival / jaxsolve, time"),
    (
        "exact deep network | diffrax at error 1e-6",
        "cpu",
        "theory",
        "DeepBalanced: plain Tsit5 of diffrax at error 1e-06 / closed form, time",
    ),
    (
        "NTK of an MLP | neural-tangents",
        "cpu",
        "kernels",
        "A float32: the fastest of neural-tangents on this JAX / jaxsolve, time",
    ),
    ("NTK of an MLP | torch.func", "cpu", "pytorch", "NTK A float32: torch.func / jaxsolve, time"),
    ("sweep of flows | vmap(diffeqsolve)", "cpu", "sweeps", "width 64, tanh: vmap(diffeqsolve) / ours, time"),
    (
        "GPU: NTK of an MLP | neural-tangents",
        "h200",
        "throughput",
        "1,000 samples float32: JACOBIAN_CONTRACTION of neural-tangents / jaxsolve, time",
    ),
    ("GPU: sweep of flows | vmap(diffeqsolve)", "h200", "sweeps", "width 16, tanh: vmap(diffeqsolve) / ours, time"),
)


def times_as_fast(file, benchmark, what):
    """The time of the other over ours."""
    rows = json.loads((RESULTS / f"{file}.json").read_text())["benchmarks"][benchmark]["rows"]
    (measured,) = (row["measured"] for row in rows if row["what"] == what)
    return 1 / measured if benchmark == "loops" else measured


ratios = [times_as_fast(*where) for _, *where in SHOWN]
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
colors = [js.plot.COLORS[0] if ratio >= 1 else js.plot.COLORS[1] for ratio in ratios]
bars = ax.barh(range(len(SHOWN)), [ratio - 1 for ratio in ratios], left=1, color=colors)
ax.bar_label(bars, [f"{ratio:.3g}" for ratio in ratios], padding=3, fontsize=8)
ax.axvline(1, color="black", linewidth=0.8)
ax.set_yticks(range(len(SHOWN)), [label.replace(" | ", "\nagainst ") for label, *_ in SHOWN], fontsize=7)
ax.invert_yaxis()
ax.set(xscale="log", xlim=(0.2, 200), xlabel="times as fast as the other (blue: faster, orange: slower)")
