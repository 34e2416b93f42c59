"""A sweep in all processes of a pod slice: start `python pod.py STORE` on every host of it.

On TPUs, under SLURM and under Open MPI `jax.distributed.initialize()` finds out who is who; elsewhere give each process
the coordinator's address, the number of processes and its own index: `python pod.py STORE 10.0.0.1:1234 2 0`.

Tested: with two processes on one machine, which were given these three. Not tested: on TPUs, or on several machines.
On processors the others wait only 30 s (gloo's limit) for process 0 to trace the first program and open the store.
"""

import sys
from typing import Any

import jax
import numpy as np

import jaxsolve as js


AXES = {"gamma": np.geomspace(0.1, 10.0, 4), "seed": range(4)}
TIMES = [0.0, 1.0, 10.0]


def problem(gamma: Any, seed: Any) -> js.Problem:
    """One cell of the grid: replace it, AXES and TIMES by yours."""
    line = js.data.line(30, 5, key=jax.random.key(0))
    net = js.nets.TwoLayerLinear(in_size=5, width_size=20, scaling=js.nets.Scaling.ntk(gamma), key=jax.random.key(seed))
    return js.Problem(net, *line.train)


def main(store: str, coordinator: str | None = None, count: str | None = None, index: str | None = None) -> None:
    """Fills this process's share of a store, a folder that all processes see, and waits for the others."""
    if coordinator is None:
        jax.distributed.initialize()
    else:
        jax.distributed.initialize(coordinator, num_processes=int(count or 1), process_id=int(index or 0))
    hosts = js.sweeps.Hosts()
    exact = js.theory.TwoLayerLine()
    data = js.sweep(problem, AXES, exact, TIMES, batch_size=4, store=store, executor=hosts, progress=False)
    where = f"process {jax.process_index()} of {jax.process_count()}"
    print(f"{where}: {data.result.size} networks, {int((data.result >= 3).sum())} failed")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 5:
        sys.exit("usage: pod.py STORE [COORDINATOR COUNT INDEX]")
    main(*sys.argv[1:])
