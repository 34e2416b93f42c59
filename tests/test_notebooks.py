"""The notebooks run: every code cell, in order, in a fresh Python; and are stored with what they print and draw."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import jupytext
import pytest


ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
COLAB = ROOT / "benchmarks" / "colab.ipynb"  # measures the machine on which it runs: stored without results
EXPECTED = {
    "accelerator",
    "diagnose",
    "exact",
    "gpt2_torch",
    "hyperparameters",
    "limits",
    "nnx_transformer",
    "problems_deep_linear",
    "problems_edge",
    "problems_lazy_rich",
    "problems_online",
    "quickstart",
    "silent_alignment",
    "upstream_downstream",
    "vision",
    "width_and_scale",
    "your_model",
}
WITH_TORCH = {"gpt2_torch"}  # `.ci/run torch` runs these
MOST_SECONDS = 2 * 180  # of processor time: a notebook is to take less than three minutes on two cores
# Run after the cells: a notebook needs only what jaxsolve itself installs.
AFTER = """
import sys
heavy = {"neural_tangents", "tensorflow"} & set(sys.modules)
assert not heavy, f"a notebook must not need {heavy}"
"""

EACH = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
WITH_COLAB = pytest.mark.parametrize("notebook", [*NOTEBOOKS, COLAB], ids=lambda path: path.stem)


def all_cells(notebook):
    return json.loads(notebook.read_text("utf-8"))["cells"]


def cells(notebook):
    return [c for c in all_cells(notebook) if c["cell_type"] == "code"]


def repository():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def test_all_notebooks_are_there():
    assert {notebook.stem for notebook in NOTEBOOKS} == EXPECTED


@pytest.mark.slow
@EACH
def test_notebook_runs(notebook, tmp_path):
    if notebook.stem in WITH_TORCH and not (find_spec("torch") and find_spec("transformers")):
        pytest.skip("it needs torch and transformers")
    code = "\n".join("".join(cell["source"]) for cell in cells(notebook)) + AFTER
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg", "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert "UserWarning" not in done.stderr, done.stderr
    after = os.times()  # not by the clock: other tests run beside this one
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < MOST_SECONDS
    printed = ["".join(out["text"]) for cell in cells(notebook) for out in cell["outputs"] if "text" in out]
    assert printed
    assert done.stdout == "".join(printed)  # what is stored is what it prints


@WITH_COLAB
def test_script_and_notebook_hold_the_same_cells(notebook):
    """The script is the source: `uv run --group docs .ci/notebooks.py NAME` brings the notebook up to it."""
    script = [(cell.cell_type, cell.source) for cell in jupytext.read(notebook.with_suffix(".py")).cells]
    assert script == [(cell["cell_type"], "".join(cell["source"])) for cell in all_cells(notebook)]


@EACH
def test_notebook_is_stored_with_its_results(notebook):
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    outputs = [out for cell in cells(notebook) for out in cell["outputs"]]
    for out in outputs:
        assert out["output_type"] != "error"
        assert out.get("name") != "stderr"
    pictures = sum("image/png" in out.get("data", {}) for out in outputs)
    assert pictures >= 2
    assert any(re.search(r"\d", "".join(out.get("text", ""))) for out in outputs)  # prints a number


@WITH_COLAB
def test_notebook_begins_with_its_link_and_the_installation(notebook):
    title, install = all_cells(notebook)[:2]
    where = repository().removeprefix("https://github.com/")
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", where)
    path = notebook.relative_to(ROOT).as_posix()
    link = f"[Open in Colab](https://colab.research.google.com/github/{where}/blob/main/{path})"
    text = "".join(title["source"])
    assert title["cell_type"] == "markdown"
    assert text.startswith("# ")
    assert link in text
    assert install["cell_type"] == "code"
    assert all(word in "".join(install["source"]) for word in ("find_spec(", '"jaxsolve"', '"pip", "install"'))


@WITH_COLAB
def test_notebook_asks_for_nothing_else(notebook):
    """No picture from elsewhere, which a page of the site would request; links lead to the repository or to Colab."""
    text = "\n".join("".join(cell["source"]) for cell in all_cells(notebook) if cell["cell_type"] == "markdown")
    assert "![" not in text
    assert "<img" not in text
    allowed = (repository(), "https://colab.research.google.com/github/")
    assert not [link for link in re.findall(r"https?://[^\s)]+", text) if not link.startswith(allowed)]
    for link in re.findall(r"https://github\.com/[^\s)]+?/blob/main/([^\s)]+)", text):
        assert (ROOT / link).exists(), link


@EACH
def test_solutions_are_folded(notebook):
    """On the site, in Jupyter and in Colab; nothing else is."""
    for cell in cells(notebook):
        solution = "".join(cell["source"]).startswith("# @title Solution")
        shown = {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["hide-cell"]} if solution else {}
        assert cell["metadata"] == shown


@EACH
def test_notebook_is_in_the_docs(notebook):
    page = (ROOT / "docs" / "notebooks.md").read_text("utf-8").splitlines()
    assert f"notebooks/{notebook.stem}" in page
    assert any(line.startswith(f"| {{doc}}`{notebook.stem} <notebooks/{notebook.stem}>` |") for line in page)


def test_cells_of_the_benchmarks_parse():
    for cell in cells(COLAB):
        ast.parse("".join(cell["source"]))
        assert not cell["outputs"]
