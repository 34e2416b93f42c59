"""The recipes of docs/recipes.md with Optuna and Hydra, which `.ci/run torch` installs beside."""

import subprocess
import sys

import pytest
import xarray

from tests.house import ROOT
from tests.test_readme import FENCE


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
BLOCKS = [fence["body"] for fence in FENCE.finditer((ROOT / "docs" / "recipes.md").read_text("utf-8"))]


def ran(folder, word: str, *arguments: str) -> str:
    """What the block with this word in it prints, run as a script in a folder."""
    (script,) = (body for body in BLOCKS if word in body)
    (folder / "script.py").write_text(script)
    command = [sys.executable, "script.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_optuna(tmp_path):
    pytest.importorskip("optuna")
    said = ran(tmp_path, "import optuna")
    values = [
        float(line.split("value: ")[1].split(" ")[0]) for line in said.splitlines() if "finished with value" in line
    ]
    assert len(values) == 20
    assert max(values) > 0.85 > min(values)  # the scale and the time decide
    assert "{'gamma': " in said


def test_hydra(tmp_path):
    pytest.importorskip("hydra")
    (tmp_path / "conf").mkdir()
    (config,) = (body for body in BLOCKS if "store: runs.zarr" in body)
    (tmp_path / "conf" / "config.yaml").write_text(config)
    ran(tmp_path, "import hydra")
    ran(tmp_path, "import hydra", "width=[32]", "store=wide.zarr")
    ran(tmp_path, "import hydra", "width=[32]", "store=wide.zarr")  # carried on: nothing is left to do
    runs, wide = (xarray.open_zarr(tmp_path / name) for name in ("runs.zarr", "wide.zarr"))
    assert dict(runs.sizes) == {"gamma": 3, "width": 2, "seed": 2, "t": 3}
    assert wide["width"].values.tolist() == [32]
    assert (runs["result"] == 0).all()
    assert (runs["loss"].isel(t=-1) < runs["loss"].isel(t=0)).all()
