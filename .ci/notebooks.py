"""Execute notebooks, and store what they print and draw: `uv run --group docs .ci/notebooks.py [NAME ...]`.

A notebook is written as a script in the percent format of jupytext, notebooks/NAME.py; this writes NAME.ipynb beside
it, without times, versions and random names: it differs from its last version only where a cell or a result does.
benchmarks/colab.py becomes a notebook too, but is not executed: it measures the machine on which it is opened.
"""

import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat


ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {script.stem: script for script in sorted(ROOT.glob("notebooks/*.py"))}
NOT_EXECUTED = {"colab": ROOT / "benchmarks" / "colab.py"}
LONGEST = 600  # seconds for one cell
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["hide-cell"]}


def write(script: Path, *, execute: bool) -> None:
    """Writes a notebook beside its script, with the results of its cells in a fresh kernel or with none."""
    notebook = jupytext.read(script)
    if execute:
        client = importlib.import_module("nbclient").NotebookClient  # of the group `docs`, which pyright may lack
        with tempfile.TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            client(notebook, timeout=LONGEST, resources=where, record_timing=False, coalesce_streams=True).execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        folded = "hide-cell" in cell.metadata.get("tags", [])  # a solution: folded on the site, in Jupyter, in Colab
        cell["id"], cell["metadata"] = f"cell-{number}", dict(FOLDED) if folded else {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _progress(output)]
    nbformat.write(notebook, script.with_suffix(".ipynb"))


def _progress(output: Any) -> bool:
    """True for what a diagnosis says on stderr of the seconds that it takes."""
    return output.get("name") == "stderr" and all(line.startswith("diagnose: ") for line in output.text.splitlines())


def main() -> None:
    """Writes the notebooks named, or all of them."""
    known = SCRIPTS | NOT_EXECUTED
    names = sys.argv[1:] or list(known)
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"there is no notebook {unknown[0]!r}: choose from {', '.join(known)}")
    for name in names:
        begin = time.perf_counter()
        write(known[name], execute=name in SCRIPTS)
        sys.stdout.write(f"{name}: {time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main()
