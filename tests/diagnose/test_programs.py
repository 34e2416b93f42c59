"""How many programs a diagnosis compiles, in a process of its own: nobody has compiled any before."""

import pytest

from tests.processes import fresh


CODE = """
import equinox as eqx, jax, jax.numpy as jnp, jax.random as jr, optax
import jaxsolve as js

compiled = []
heard = lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
x = jr.normal(jr.key(0), (64, 8))
net = eqx.nn.MLP(8, 1, 16, 2, jax.nn.gelu, key=jr.key(1))
jax.block_until_ready(jax.tree.leaves(eqx.filter(net, eqx.is_array)))
y, optimizers = jnp.sin(x[:, :1]), [optax.sgd(jnp.asarray(rate)) for rate in (0.1, 0.05)]
jax.monitoring.register_event_duration_secs_listener(heard)
for optimizer in optimizers:
    js.diagnose(net, x, y, optimizer=optimizer, steps=20)
    print(len(compiled))
    compiled.clear()
"""


@pytest.mark.slow
def test_a_first_diagnosis_compiles_few_programs_and_another_rate_none():
    first, other = map(int, fresh(CODE).split())
    assert 20 < first <= 25
    assert other == 0
