# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The benchmarks on another machine
#
# Runs `python -m benchmarks --quick` on the accelerator of this machine, and shows what it measured as a table.
#
# [Open in Colab](https://colab.research.google.com/github/jaxsolve/jaxsolve/blob/main/benchmarks/colab.ipynb)
#
# In Colab choose a GPU or TPU first (*Runtime*, *Change runtime type*). This notebook itself has been run on CPUs only.
# Benchmarks of the same quick suite on an NVIDIA H100 and an H200 gave those columns of
# [docs/performance.md](https://github.com/jaxsolve/jaxsolve/blob/main/docs/performance.md).

# %%
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd


REPOSITORY = "https://github.com/jaxsolve/jaxsolve"
clones = [path for path in (Path.cwd(), *Path.cwd().parents) if Path(path, "benchmarks", "__main__.py").is_file()]
folder = clones[0] if clones else Path("jaxsolve-benchmarks")  # the wheel does not hold the benchmarks
if not folder.exists():
    subprocess.run(["git", "clone", "--quiet", "--depth=1", REPOSITORY, str(folder)], check=True)
if any(importlib.util.find_spec(package) is None for package in ("jaxsolve", "psutil", "threadpoolctl")):
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", f"{folder.resolve()}[bench]"], check=True)

# %% [markdown]
# Without a name all benchmarks run, which takes a while; name some to run these alone, such as `["foundations",
# "kernels"]`.

# %%
names = []
kept = Path("colab.json").resolve()
subprocess.run([sys.executable, "-m", "benchmarks", *names, "--quick", "--json", str(kept)], cwd=folder, check=False)

# %%
found = json.loads(kept.read_text())
print(", ".join(f"{key} {value}" for key, value in found["machine"].items() if key != "versions"))
rows = [{"benchmark": name, **row} for name, part in found["benchmarks"].items() for row in part["rows"]]
with pd.option_context("display.max_rows", None, "display.max_colwidth", None):
    print(pd.DataFrame(rows, columns=["benchmark", "what", "measured", "sense", "goal", "met"]).to_string(index=False))
