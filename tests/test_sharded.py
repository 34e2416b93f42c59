"""Parameters that are spread over devices stay so, and their numbers are those of one device."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest


ROOT = pathlib.Path(__file__).parent.parent

CODE = """
import json, sys
import equinox as eqx, jax, jax.numpy as jnp, jax.random as jr, optax
import jaxsolve as js

spread = sys.argv[1] == "spread"
mesh = jax.make_mesh((4,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
spec = lambda a: jax.P("model") if a.shape[0] % 4 == 0 else jax.P()
put = lambda a: jax.device_put(a, jax.NamedSharding(mesh, spec(a))) if spread and eqx.is_array(a) else a
net = jax.tree.map(put, eqx.nn.MLP(8, 4, 64, 2, jnp.tanh, key=jr.key(1)))
x = jr.normal(jr.key(0), (32, 8))
y = x[:, :4] * x[:, 4:]
problem = js.Problem(net, x, y)
run = js.solve(problem, js.Descent(optax.adam(1e-2), rate=1.0), [0.0, 5.0])
first = jax.tree.leaves(run.final.params)[0]
monitor = js.Monitor(problem, every=5)
monitor(0, net)
report = js.diagnose(net, x, y, optimizer=optax.adam(1e-2), steps=5, checkpoints=1)
print(json.dumps({
    "shard": first.addressable_shards[0].data.shape,
    "loss": run["loss"].tolist(),
    "kernel": js.kernels.empirical(net, x, trace=True).ntk.tolist(),
    "monitor": list(monitor(5, run.final.params).values()),
    "findings": {name: found.value for name, found in report.findings.items()},
}))
"""


def _run(how):
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", CODE, how],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.x64_only
def test_spread_parameters_stay_spread_and_are_as_on_one_device():
    """A descent, kernels, a monitor and a diagnosis; the first matrix, 64 x 8, lies in four parts."""
    one, four = _run("whole"), _run("spread")
    assert one["shard"] == [64, 8]
    assert four["shard"] == [16, 8]
    for name in ("loss", "kernel", "monitor"):
        np.testing.assert_allclose(four[name], one[name], rtol=1e-10, err_msg=name)
    for name, value in one["findings"].items():
        np.testing.assert_allclose(four["findings"][name], value, rtol=1e-6, err_msg=name)
