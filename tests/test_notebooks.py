"""The notebooks run: every code cell, in order, in a fresh Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(notebook):
    return [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]


def test_there_is_a_notebook():
    assert [notebook.name for notebook in NOTEBOOKS] == ["diagnose.ipynb", "quickstart.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(notebook, tmp_path):
    code = "\n".join("".join(cell["source"]) for cell in cells(notebook))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    printed = ["".join(out["text"]) for cell in cells(notebook) for out in cell["outputs"] if "text" in out]
    assert printed
    assert done.stdout == "".join(printed)  # what is stored is what it prints


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_with_its_results(notebook):
    for cell in cells(notebook):
        assert cell["execution_count"] is not None
        for out in cell["outputs"]:
            assert out["output_type"] != "error"
            assert out.get("name") != "stderr"
