"""The scripts for clusters run here, on what stands in for one: devices of XLA, two processes, dask's own cluster."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import xarray


FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "clusters"
MAX_LINES = 60
NODE = """
import jax, numpy as np, node
assert jax.device_count() == 4
everywhere, one = node.run(), node.run(devices=jax.devices()[:1])
for name in ("loss", "kernel_change"):
    np.testing.assert_allclose(everywhere[name], one[name], rtol=1e-6, atol=1e-9)
print(everywhere.result.size, int((everywhere.result >= 3).sum()))
"""
SLURM = """
import sys
from dask.distributed import LocalCluster
import slurm
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        data = slurm.run(sys.argv[1], cluster)
    print(data.result.size, int((data.result >= 3).sum()))
"""


def start(command, folder, **env):
    """A process that can import the scripts, in double precision."""
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parent.parent)])
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines()[-1]


def test_scripts_are_short_and_say_what_was_tested():
    scripts = sorted(FOLDER.glob("*.py"))
    assert [script.stem for script in scripts] == ["node", "pod", "slurm"]
    page = (FOLDER.parent.parent / "docs" / "cluster.md").read_text("utf-8")
    for script in scripts:
        text = script.read_text("utf-8")
        assert text.count("\n") < MAX_LINES
        assert "\nTested: " in text
        assert "Not tested: " in text
        assert f"`{script.name}`" in page


@pytest.mark.slow
def test_node(tmp_path):
    """Four devices give what one of them gives."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    assert finished(start(["-c", NODE], tmp_path, XLA_FLAGS=flags)) == "16 0"


@pytest.mark.slow
def test_pod(tmp_path):
    """Two processes fill one store, and both return all of it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        where = f"localhost:{free.getsockname()[1]}"
    command = [str(FOLDER / "pod.py"), str(tmp_path / "run.zarr"), where, "2"]
    gloo = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    processes = [start([*command, str(index)], tmp_path, **gloo) for index in range(2)]
    assert [finished(one) for one in processes] == [f"process {i} of 2: 16 networks, 0 failed" for i in range(2)]
    with xarray.open_zarr(tmp_path / "run.zarr", chunks=None) as data:
        assert set(data.result.values.ravel()) == {0}


@pytest.mark.slow
def test_slurm(tmp_path):
    """With dask's cluster on this machine in place of SLURM's."""
    script = tmp_path / "started.py"  # workers import what started them
    script.write_text(SLURM)
    assert finished(start([str(script), str(tmp_path / "run.zarr")], tmp_path)) == "16 0"
