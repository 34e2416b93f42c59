"""The command line as a user calls it, and what the quickstart writes."""

import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
import xarray

from tests.inside import app


def run(*arguments):
    command = [sys.executable, "-c", "from jaxsolve.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "quickstart"
    done = run("quickstart", str(folder), "--seeds", "1")
    assert done.returncode == 0, done.stderr
    return folder, done


def test_quickstart_writes_what_it_promises(quickstart):
    folder, done = quickstart
    assert sorted(p.name for p in folder.iterdir()) == [
        "phase_diagram.png",
        "summary.json",
        "sweep.zarr",
        "theory_vs_flow.png",
    ]
    for name in ("phase_diagram.png", "theory_vs_flow.png"):
        data = (folder / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 30_000
    assert "networks trained on handwritten 4s and 9s" in done.stdout
    assert "720/720" in done.stderr  # the progress bar
    assert "Warning" not in done.stderr


def test_quickstart_summary_holds_the_numbers(quickstart):
    summary = json.loads((quickstart[0] / "summary.json").read_text())
    assert summary["dtype"] == "float64"
    # Measured 7e-12, at rtol 1e-10 of the flow.
    assert summary["largest_relative_error_theory_vs_flow"] < 7e-11
    for counts in summary["cells_per_regime"].values():
        assert sum(counts.values()) == 360
        assert min(counts.values()) > 10  # all four regimes are met
    assert summary["agreement_with_theory"] > 0.97
    assert set(summary["results"]) == {"event", "max_time"}
    assert sum(summary["results"].values()) == summary["runs"] == 720


def test_quickstart_store_opens_with_xarray_alone(quickstart):
    folder, _ = quickstart
    summary = json.loads((folder / "summary.json").read_text())
    with xarray.open_zarr(folder / "sweep.zarr") as ds:
        assert ds["regime"].dims == ("network", "width", "sigma", "gamma", "eta")
        assert ds["loss"].dims == ("network", "width", "sigma", "gamma", "eta", "seed", "t")
        assert ds["loss"].attrs["units"] == "loss"
        assert ds.network.values.tolist() == ["two-layer linear", "MLP"]
        codes = dict(zip(ds["regime"].attrs["flag_meanings"].split(), ds["regime"].attrs["flag_values"], strict=True))
        frozen = int(np.sum(ds["regime"].sel(network="MLP").values == codes["frozen"]))
    assert frozen == summary["cells_per_regime"]["MLP"]["frozen"]


def test_wrong_arguments_are_told_in_a_line(command):
    said = "jaxsolve: seeds must be an integer >= 1, got 0\n"
    assert command("quickstart", "--seeds", "0") == (2, "", said)


def test_a_foreign_store_is_not_removed(command, tmp_path):
    (tmp_path / "sweep.zarr").mkdir()
    (tmp_path / "sweep.zarr" / "precious").write_text("keep")
    code, _, err = command("quickstart", ".", "--seeds", "1", "--quiet")
    assert code == 2
    assert (tmp_path / "sweep.zarr" / "precious").read_text() == "keep"
    assert err.startswith("jaxsolve: sweep.zarr is no Zarr store, so it is not replaced; ")


def test_help(command):
    _, helped, _ = command("quickstart", "--help")
    assert "phase_diagram.png" in helped
    assert "--float32" in helped


@pytest.mark.parametrize("name", [(), *((name,) for name in app if not name.startswith("-")), ("data", "fetch")])
def test_help_shows_an_example_that_is_accepted(command, name):
    code, helped, _ = command(*name, "--help")
    assert code == 0
    (example,) = re.findall(r"Example: jaxsolve (.*)", helped)
    words = shlex.split(example)
    assert tuple(words[: len(name)]) == name
    found, *_ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert found.__module__.startswith("jaxsolve.cli")  # no help page of cyclopts


def test_a_process_of_its_own():
    """Its exit codes, and that it starts without JAX: what needs none is quick."""
    version = run("--version")
    assert (version.returncode, version.stdout[:2]) == (0, "0.")
    wrong = run("sweep", "absent.toml")
    assert (wrong.returncode, wrong.stdout, wrong.stderr[:10]) == (2, "", "jaxsolve: ")


def test_phase_prints_table_1(command):
    rows = [line.split() for line in command("phase", "--table")[1].splitlines()]
    frozen = [row for row in rows if "frozen" in row]
    assert len(frozen) == 1
    assert frozen[0][:3] == ["mean", "field", "standard"]
    assert sum("kernel" in row for row in rows) == 9
    assert sum("unstable" in row for row in rows) == 2


def test_phase_classifies_one_network(command):
    code, out, _ = command("phase", "--width", "1000", "--sigma", "0.5", "--eta", "0.001", "--gamma", "1")
    assert code == 0
    assert "regime: kernel" in out
    zero = "jaxsolve: --sigma must be > 0, got 0: weights that are all zero never move\n"
    assert command("phase", "--sigma", "0") == (2, "", zero)
    assert command("phase", "--sigma", "-1") == (2, "", "jaxsolve: sigma_u must be finite and >= 0, got -1.0\n")


def test_errors_are_said_as_they_are(command, monkeypatch):
    """Brackets are no markup."""
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    said = "jaxsolve: a report needs plotly, which is not installed: pip install 'jaxsolve[plot]', "
    said += "or in a copy of the repository pip install '.[plot]' (see docs/errors.md#an-extra-is-missing)\n"
    assert command("report", ".") == (2, "", said)
