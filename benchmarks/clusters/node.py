"""A sweep on one machine with several devices: `python benchmarks/clusters/node.py [STORE]`.

Tested: on four devices that XLA makes of one processor (XLA_FLAGS=--xla_force_host_platform_device_count=4), against
the same sweep on one of them. Not tested: on a machine with several GPUs, and what it gains there.
"""

import sys
from collections.abc import Sequence
from typing import Any, TYPE_CHECKING

import jax
import numpy as np

import jaxsolve as js


if TYPE_CHECKING:
    import xarray

AXES = {"gamma": np.geomspace(0.1, 10.0, 4), "seed": range(4)}
TIMES = [0.0, 1.0, 10.0]


def problem(gamma: Any, seed: Any) -> js.Problem:
    """One cell of the grid: replace it, AXES and TIMES by yours."""
    data = js.data.digits(task="parity", n_train=32, n_test=32, pca=10, key=jax.random.key(0))
    scaling = js.nets.Scaling.ntk(gamma, eta=gamma**-2)
    net = js.nets.MLP(
        in_size=10, out_size=1, width_size=16, depth=1, activation="tanh", scaling=scaling, key=jax.random.key(seed)
    )
    return js.Problem(net, *data.train, test=data.test, centered=True)


def run(store: str | None = None, devices: Sequence[Any] | None = None) -> "xarray.Dataset":
    """Lanes of a batch are dealt out to all devices: all of this machine, unless some are given."""
    devices = jax.devices() if devices is None else devices
    watched = [js.observe.loss(), js.observe.kernel_change()]
    return js.sweep(problem, AXES, js.GradientFlow(), TIMES, observe=watched, store=store, devices=devices)


if __name__ == "__main__":
    data = run(*sys.argv[1:2])
    kind = jax.devices()[0].device_kind
    print(f"{data.result.size} networks on {jax.device_count()} x {kind}: {int((data.result >= 3).sum())} failed")
    print(data)
