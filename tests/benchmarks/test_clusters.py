"""The scripts for clusters run here, on what stands in for one: devices of XLA, processes, a queue without waiting."""

import os
import re
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
import slurm
if __name__ == "__main__":
    with slurm.slurm() as cluster:
        data = slurm.run(sys.argv[1], cluster)
    print(data.result.size, int((data.result >= 3).sum()))
"""
# A queue that starts each job at once. The file that holds a job is gone when `sbatch` returns.
SBATCH = """#!/bin/bash
cat "${@: -1}" > job.$$.sh
setsid bash job.$$.sh > job.$$.out 2>&1 < /dev/null &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/bash
for job in "$@"; do kill -- "-$job"; done
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


@pytest.fixture
def queue(tmp_path):
    """The PATH with commands of SLURM that start jobs here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
def test_slurm(tmp_path, queue):
    """Workers that jobs start fill the store."""
    script = tmp_path / "started.py"  # workers import what started them
    script.write_text(SLURM)
    process = start([str(script), str(tmp_path / "run.zarr")], tmp_path, PATH=queue)
    assert finished(process) == "16 0"


@pytest.mark.slow
def test_the_page_submits_the_job_of_the_script(tmp_path, queue):
    page = (FOLDER.parent.parent / "docs" / "cluster.md").read_text("utf-8")
    of_page = re.search(r"from dask_jobqueue import SLURMCluster\n\n(.*?)\ncluster\.adapt", page, re.DOTALL)
    assert of_page is not None
    code = f"""
import re, slurm
from dask_jobqueue import SLURMCluster
{of_page[1]}
text = lambda cluster: re.sub(r"tcp://\\S+", "", cluster.job_script())
with cluster, slurm.slurm() as other:
    print(text(cluster) == text(other), "--lifetime 230m" in text(cluster))
"""
    assert finished(start(["-c", code], tmp_path, PATH=queue)) == "True True"
