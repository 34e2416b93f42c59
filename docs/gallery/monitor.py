"""Rows of a monitor: a network on handwritten digits, in a loop of its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import jaxsolve as js


data = js.data.digits(n_train=1024, n_test=64, key=jax.random.key(0))
net = eqx.nn.MLP(64, 10, 128, 2, jax.nn.relu, key=jax.random.key(1))
optimizer = optax.adam(1e-3)
watched = [
    js.observe.loss(),
    js.observe.traced(js.observe.kernel_change()),
    js.observe.traced(js.observe.kernel_centered_alignment()),
    js.observe.nonlinearity(),
    js.observe.update_size(),
    js.observe.stability(optimizer),
]
monitor = js.Monitor(js.Problem(net, *data.test), observe=watched, every=25)
state = optimizer.init(eqx.filter(net, eqx.is_inexact_array))


@eqx.filter_jit
def train_step(net, state):
    """One step of Adam on all samples."""
    loss = lambda net: jnp.mean(jnp.sum((jax.vmap(net)(data.x) - data.y) ** 2, axis=1)) / 2
    updates, state = optimizer.update(eqx.filter_grad(loss)(net), state)
    return eqx.apply_updates(net, updates), state


for step in range(501):
    monitor(step, net, state)
    net, state = train_step(net, state)
plt.figure(monitor.plot())  # pyplot shows it from here on
