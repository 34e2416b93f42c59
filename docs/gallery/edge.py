"""At the edge of stability: descent jumps about 2/rate, the central flow stays, gradient flow leaves."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import jaxsolve as js


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
ts = rate * jnp.arange(0.0, 201.0, 2.0)
watched = [js.observe.loss(), js.observe.averaged_loss(), js.observe.stability(optax.sgd(rate))]
runs = {
    "descent": js.solve(problem, js.Descent(optax.sgd(rate)), ts, observe=watched),
    "gradient flow": js.solve(problem, js.GradientFlow(), ts, observe=watched),
    "central flow": js.solve(problem, js.CentralFlow(rate=rate), ts, observe=watched),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for color, (name, run) in zip(js.plot.COLORS, runs.items(), strict=False):
    style = {"color": color, "linewidth": 0.8 if name == "descent" else 1.5}
    left.plot(run.ts, run["stability"], label=name, **style)
    right.semilogy(run.ts, run["loss"], **style)
right.semilogy(ts, runs["central flow"]["averaged_loss"], "k--", label="averaged, predicted")
left.axhline(1.0, color="black", linewidth=0.8, linestyle="dotted")
left.set(xlabel=r"time $t$ (steps $\times$ rate)", ylabel="sharpness / (2 / rate)")
right.set(xlabel=r"time $t$ (steps $\times$ rate)", ylabel="training loss")
left.legend(frameon=False)
right.legend(frameon=False)
