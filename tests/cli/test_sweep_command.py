"""`jaxsolve sweep` as a user calls it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib

import pytest
import xarray

from jaxsolve.papers import configs


CONFIG = """
times = [0, 1, 2]
observe = ["loss"]
dynamics = "TwoLayerLine"

[axes]
sigma = { linspace = [-1, 1, 20] }
width = [2]

[problem]
data = { type = "line", n_train = 4, in_size = 3, key = 0 }

[problem.network]
type = "TwoLayerLinear"
in_size = 3
width_size = "=width"
scaling = { type = "ntk", sigma = "=sigma" }
key = 0
"""


@pytest.fixture
def command(command, tmp_path):
    """The command in a folder with a config."""
    (tmp_path / "config.toml").write_text(CONFIG)
    return command


def _open(path):
    with xarray.open_zarr(path, chunks=None) as data:
        return data.load()


SAID = "20 lanes (10 successful, 10 invalid) in"


def test_a_sweep_from_a_file(command, tmp_path):
    """Of which the half with a negative sigma fails."""
    (tmp_path / "config.toml").write_text(f'store = "mine.zarr"\n{CONFIG}')
    code, out, err = command("sweep", "config.toml", "--batch-size", "7")
    assert (code, out) == (0, f"{SAID} mine.zarr\n"), err
    assert err.splitlines()[-1].startswith("sweep: 20/20 runs in ")
    assert err.splitlines()[-1].endswith(", 10 failed")
    data = _open(tmp_path / "mine.zarr")
    assert dict(data.sizes) == {"sigma": 20, "width": 1, "t": 3}
    assert data["loss"].dtype == "float64"
    assert data.attrs["batch_size"] == 7
    manifest = json.loads((tmp_path / "mine.zarr" / "_jaxsolve" / "manifest.json").read_text())
    assert manifest["plan"]["problem_fn"]["table"] == tomllib.loads(CONFIG)["problem"]
    # a second time there is nothing to do
    assert command("sweep", "config.toml", "--quiet") == (0, out, "")
    code, out, err = command("sweep", "config.toml", "--no-resume", "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith("jaxsolve: ")
    assert "holds a sweep already" in err
    for options in ([], ["--store", "mine.zarr"]):
        code, _, err = command("sweep", "config.toml", "--quiet", "--float32", *options)
        assert code == 2
        assert "mine.zarr holds a sweep of another plan:\n  " in err
        assert "precision.x64: true in the store, false now" in err


def test_dry_run(command, tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG.replace("[2]", "[2, 3]"))
    code, out, err = command("sweep", "config.toml", "--dry-run", "--batch-size", "8")
    assert (code, err) == (0, "")
    assert out.startswith("40 lanes: sigma 20 x width 2\ntraced: sigma; static: width\nTwoLayerLine at 3 times")
    assert "\n2 compilations\n  width = 2: 20 lanes in batches of 8, " in out
    assert [item.name for item in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG.replace("sigma = {", "sigm = {"), "problem: 'sigma' is not a known axis; did you mean 'sigm'?"),
        (CONFIG.replace('TwoLayerLine"', 'TwoLayerLin"'), "dynamics: 'TwoLayerLin' is not a known dynamics; "),
        (CONFIG.replace("[0, 1, 2]", "[0, 1, 1e400x]"), "config.toml is not a TOML file: "),
        (CONFIG.replace('["loss"]', '["test_loss"]'), "this problem has no test set"),
    ],
)
def test_errors_are_one_line(command, tmp_path, text, message):
    (tmp_path / "config.toml").write_text(text)
    code, out, err = command("sweep", "config.toml", "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith("jaxsolve: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert [item.name for item in tmp_path.iterdir()] == ["config.toml"]


def test_a_file_that_is_not_there(command):
    said = "jaxsolve: there is no file absent.toml; 'jaxsolve configs' lists some to start from\n"
    assert command("sweep", "absent.toml") == (2, "", said)


MODULE = """
import itertools, os, signal
import jax.numpy as jnp
from tests import cases

CALLS = itertools.count()


def make(rate, kind):
    \"\"\"Ctrl-C is pressed while the second program is traced: before, only its shapes were looked at.\"\"\"
    if kind == 2 and next(CALLS) == 1:
        os.kill(os.getpid(), signal.SIGINT)
    return cases.modes([1.0, 2.0], rate * jnp.ones(2))
"""


def test_ctrl_c_says_how_to_carry_on(command, tmp_path):
    """What had run is in the store, the exit code is that of shells, and the same command does the rest."""
    (tmp_path / "stopped_by_hand.py").write_text(MODULE)
    text = """
problem = "stopped_by_hand:make"
times = [0, 0.5]
dynamics = { type = "Descent", optimizer = { type = "sgd", learning_rate = 0.25 } }

[axes]
kind = [1, 2]
rate = [0.5, 1.0, 2.0]
"""
    (tmp_path / "config.toml").write_text(text)
    try:
        code, out, err = command("sweep", "config.toml", "--store", "run.zarr", "--quiet", "--allow-code")
        assert (code, out) == (130, "")
        lines = err.splitlines()
        assert lines[-2].startswith("jaxsolve: stopped by SIGINT: ")
        assert lines[-2].endswith("call the sweep again with the same arguments to run the rest")
        assert lines[-1] == "to carry on: jaxsolve sweep config.toml --store run.zarr --allow-code"
        code, out, err = command("sweep", "config.toml", "--store", "run.zarr", "--quiet", "--allow-code")
        assert (code, out) == (0, "6 lanes (6 successful) in run.zarr\n"), err
    finally:
        sys.modules.pop("stopped_by_hand", None)


def test_configs_are_listed_and_written(command, tmp_path):
    code, out, _ = command("configs")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == sorted(configs())
    assert "Kunin et al., " in out
    assert tomllib.loads(command("configs", "kunin_grid")[1]) == tomllib.loads(configs()["kunin_grid"])
    code, out, _ = command("configs", "kunin", "-o", "mine.toml")
    assert (code, out) == (0, "written to mine.toml; run it with: jaxsolve sweep mine.toml\n")
    assert (tmp_path / "mine.toml").read_text() == configs()["kunin"]
    assert command("configs", "kunin", "-o", "mine.toml")[0] == 2
    code, _, err = command("configs", "-o", "other.toml")
    assert code == 2
    assert err.startswith("jaxsolve: which config should be written to other.toml? Give its name, one of atanasov, ")
    code, _, err = command("configs", "kunin", "-o", "absent/mine.toml")
    assert (code, err) == (2, "jaxsolve: absent/mine.toml: No such file or directory\n")
    code, _, err = command("configs", "kunim")
    assert (code, err) == (
        2,
        "jaxsolve: there is no config 'kunim'; there are atanasov, geiger, kunin, kunin_grid, xu_ziyin\n",
    )


@pytest.mark.slow
def test_ctrl_c_in_a_process_of_its_own(tmp_path):
    """A real signal, at a random moment of a real sweep; then the rest, equal to an uninterrupted one."""
    # Lanes of thousands of steps: the first chunk is on disk long before the last lane has run.
    flow = '{ type = "GradientFlow", integrator = "Tsit5", rtol = 1e-9 }'
    text = (
        CONFIG.replace('"TwoLayerLine"', flow).replace("[-1, 1, 20]", "[0.1, 1, 120]").replace("1, 2]", "1, 3000]", 1)
    )
    (tmp_path / "config.toml").write_text(text)
    program = [sys.executable, "-c", "from jaxsolve.cli import main; main()", "sweep", "config.toml"]
    begin = subprocess.Popen(
        [*program, "--store", "run.zarr", "--batch-size", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    watch = threading.Thread(target=_interrupt_after_first_chunk, args=(begin, tmp_path / "run.zarr"))
    watch.start()
    out, err = begin.communicate(timeout=300)
    watch.join()
    assert begin.returncode == 130, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "to carry on: jaxsolve sweep config.toml --store run.zarr --batch-size 2"
    assert 0 < int((_open(tmp_path / "run.zarr").result >= 0).sum()) < 120
    for store in ("run.zarr", "whole.zarr"):
        options = ["--store", store, "--batch-size", "2", "--quiet"]
        subprocess.run([*program, *options], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    one, other = _open(tmp_path / "run.zarr"), _open(tmp_path / "whole.zarr")
    assert one["loss"].values.tobytes() == other["loss"].values.tobytes()


def _interrupt_after_first_chunk(process, path):
    while process.poll() is None and not list((path / "result").glob("c/**/[0-9]*")):
        time.sleep(0.01)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
