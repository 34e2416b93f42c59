"""The command line as a user calls it, and what the quickstart writes."""

import json
import subprocess
import sys

import numpy as np
import pytest
import xarray


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


def test_wrong_arguments_are_told_in_a_line(tmp_path):
    done = run("quickstart", str(tmp_path), "--seeds", "0")
    assert done.returncode == 2
    assert done.stderr.strip() == "jaxsolve: seeds must be an integer >= 1, got 0"
    assert "Traceback" not in done.stderr


def test_a_foreign_store_is_not_removed(tmp_path):
    (tmp_path / "sweep.zarr").mkdir()
    (tmp_path / "sweep.zarr" / "precious").write_text("keep")
    done = run("quickstart", str(tmp_path), "--seeds", "1", "--quiet")
    assert done.returncode == 2
    assert (tmp_path / "sweep.zarr" / "precious").read_text() == "keep"
    assert "sweep.zarr" in done.stderr


def test_help_and_version():
    helped = run("quickstart", "--help")
    assert "phase_diagram.png" in helped.stdout
    assert "--float32" in helped.stdout
    assert run("--version").stdout.strip().startswith("0.")


def test_phase_prints_table_1():
    rows = [line.split() for line in run("phase", "--table").stdout.splitlines()]
    frozen = [row for row in rows if "frozen" in row]
    assert len(frozen) == 1
    assert frozen[0][:3] == ["mean", "field", "standard"]
    assert sum("kernel" in row for row in rows) == 9
    assert sum("unstable" in row for row in rows) == 2


def test_phase_classifies_one_network():
    out = run("phase", "--width", "1000", "--sigma", "0.5", "--eta", "0.001", "--gamma", "1").stdout
    assert "regime: kernel" in out
    done = run("phase", "--sigma", "-1")
    assert done.returncode == 2
    assert done.stderr.strip() == "jaxsolve: sigma_u must be finite and >= 0, got -1.0"
