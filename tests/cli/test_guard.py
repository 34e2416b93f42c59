"""What the command imports, and from where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


TABLES = """
times = [0, 1]
dynamics = "TwoLayerLine"
[axes]
sigma = [0.5, 1.0]
[problem]
data = { type = "line", n_train = 4, in_size = 3, key = 0 }
[problem.network]
type = "TwoLayerLinear"
in_size = 3
width_size = 2
scaling = { type = "ntk", sigma = "=sigma" }
key = 0
"""
CODE = """
problem = "models_of_mine:make"
times = [0, 1]
dynamics = "TwoLayerLine"
[axes]
sigma = [0.5, 1.0]
"""
MODULE = """
import jax, jaxsolve as js
def make(sigma):
    scaling = js.nets.Scaling.ntk(sigma=sigma)
    line = js.data.line(4, 3, key=jax.random.key(0))
    net = js.nets.TwoLayerLinear(in_size=3, width_size=2, scaling=scaling, key=jax.random.key(0))
    return js.Problem(net, *line.train)
"""
# What jaxsolve imports late. Each of these in the working directory leaves a note and fails.
LATE = ("xarray", "zarr", "filelock", "matplotlib", "tomllib", "sklearn", "jaxsolve_plugin")
TRAP = "import pathlib\npathlib.Path(__file__).with_suffix('.sprung').touch()\nraise SystemExit(99)\n"


@pytest.fixture
def run(tmp_path):
    """Runs the command in a folder with configs, a module and traps: its code, output, errors, and the traps sprung."""
    (tmp_path / "tables.toml").write_text(TABLES)
    (tmp_path / "code.toml").write_text(CODE)
    (tmp_path / "models_of_mine.py").write_text(MODULE)
    for name in LATE:
        (tmp_path / f"{name}.py").write_text(TRAP)

    def run(*arguments, command=("-c", "from jaxsolve.cli import main; main()"), **environment):
        done = subprocess.run(
            [sys.executable, *command, *arguments],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr, [path.stem for path in tmp_path.glob("*.sprung")]

    return run


def test_modules_of_the_working_directory_are_not_imported(run):
    said = "2 lanes (2 successful) in tables.zarr\n"
    assert run("sweep", "tables.toml", "--quiet") == (0, said, "", [])


@pytest.mark.slow
def test_neither_by_the_installed_command_with_an_empty_python_path(run):
    """`PYTHONPATH=$PYTHONPATH:...` with an unset variable adds the working directory."""
    script = Path(sys.executable).with_name("jaxsolve")
    said = "2 lanes (2 successful) in tables.zarr\n"
    assert run("sweep", "tables.toml", "--quiet", command=(str(script),), PYTHONPATH=":") == (0, said, "", [])


def test_a_function_of_the_working_directory_when_asked_for(run):
    """What is installed comes first even then."""
    code, out, err, sprung = run("sweep", "code.toml", "--quiet")
    assert (code, out, sprung) == (2, "", [])
    assert err.startswith("jaxsolve: code.toml: problem: 'models_of_mine:make' is code, which a config may run only if")
    assert "give --allow-code on the command line" in err
    assert len(err.splitlines()) == 1
    said = "2 lanes (2 successful) in code.zarr\n"
    assert run("sweep", "code.toml", "--quiet", "--allow-code") == (0, said, "", [])
