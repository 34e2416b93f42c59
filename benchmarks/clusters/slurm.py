"""A sweep whose batches are jobs of SLURM: `pip install distributed dask-jobqueue`, then `python slurm.py STORE`.

The process that runs this must live as long as the sweep: start it in `tmux`, or in a job of its own.

Tested: its jobs, which a stand-in for `sbatch` starts on one machine. Not tested: under SLURM, for which cores, memory,
times and the line that activates an environment must be made yours.
"""

import sys
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


def slurm() -> Any:
    """Up to 50 jobs, each a worker that runs one batch at a time on all its cores, and ends before its time is up."""
    from dask_jobqueue import SLURMCluster  # pyright: ignore[reportPrivateImportUsage]

    lifetime = ["--lifetime", "230m", "--lifetime-stagger", "4m"]
    activate = ["source ~/venv/bin/activate"]
    job = {"job_cpu": 8, "memory": "16GB", "walltime": "04:00:00", "job_script_prologue": activate}
    cluster = SLURMCluster(cores=1, processes=1, worker_extra_args=lifetime, **job)
    cluster.adapt(maximum_jobs=50)
    return cluster


def run(store: str, cluster: Any) -> "xarray.Dataset":
    """Fills a store, a folder that all workers see; the same call carries on what was interrupted."""
    from dask.distributed import Client

    with Client(cluster) as client:
        flow = js.GradientFlow()
        return js.sweep(problem, AXES, flow, TIMES, batch_size=4, store=store, executor=client, progress=False)


if __name__ == "__main__":
    with slurm() as jobs:
        print(run(sys.argv[1], jobs))
