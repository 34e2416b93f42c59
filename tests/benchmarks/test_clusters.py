"""The scripts for clusters run here, on what stands in for one: devices of XLA, processes, a queue without waiting."""

import os
import re
import socket
import subprocess
import sys
import textwrap
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
# What the blocks of the page sweep.
PROBLEM = """
import jaxsolve as js
from pod import AXES as axes, problem, TIMES as ts

dynamics = js.theory.TwoLayerLine()
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


GLOO = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


@pytest.mark.slow
def test_pod(tmp_path):
    """Two processes fill one store, and both return all of it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        where = f"localhost:{free.getsockname()[1]}"
    command = [str(FOLDER / "pod.py"), str(tmp_path / "run.zarr"), where, "2"]
    processes = [start([*command, str(index)], tmp_path, **GLOO) for index in range(2)]
    assert [finished(one) for one in processes] == [f"process {i} of 2: 16 networks, 0 failed" for i in range(2)]
    with xarray.open_zarr(tmp_path / "run.zarr", chunks=None) as data:
        assert set(data.result.values.ravel()) == {0}


def of_page(first, folder):
    """The block of the page that begins with this line, with a store in the folder, after a problem to sweep."""
    page = (FOLDER.parent.parent / "docs" / "cluster.md").read_text("utf-8")
    (block,) = re.findall(rf"```text\n({re.escape(first)}\n.*?)```", page, re.DOTALL)
    assert block.count("/scratch/me") == 1
    return PROBLEM + block.replace("/scratch/me", str(folder))


@pytest.mark.slow
def test_the_page_runs_in_two_processes(tmp_path):
    """Told who is who by the variables that SLURM sets."""
    code = of_page("import jax", tmp_path) + "print(jax.process_count(), int((data.result == 0).sum()))"
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    processes = [
        start(["-c", code], tmp_path, **GLOO, **slurm, SLURM_PROCID=str(index), SLURM_LOCALID=str(index))
        for index in range(2)
    ]
    assert [finished(one) for one in processes] == ["2 16", "2 16"]


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
    """And its jobs fill the store."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").touch()  # of the user, at home
    script = tmp_path / "started.py"
    block = of_page("from dask_jobqueue import SLURMCluster", tmp_path)
    script.write_text(f"""
import re, slurm
from dask.distributed import Client

text = lambda cluster: re.sub(r"tcp://\\S+", "", cluster.job_script())
if __name__ == "__main__":
{textwrap.indent(block, "    ")}
    with cluster, slurm.slurm() as other:
        print(text(cluster) == text(other), "--lifetime 230m" in text(cluster), int((data.result == 0).sum()))
""")
    assert finished(start([str(script)], tmp_path, PATH=queue, HOME=str(tmp_path))) == "True True 16"
