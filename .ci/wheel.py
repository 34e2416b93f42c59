# /// script
# requires-python = ">=3.12"
# ///
"""Build the wheel, look at what is in it, and use it as a user would: in clean environments of several Pythons.

Usage: `uv run .ci/wheel.py`. The environments hold the newest versions of the dependencies, as pip would install them.
A Python that is not here and cannot be downloaded is passed over, and said; with CI=true that fails.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.12", "3.13")
# A linear network of two layers on a line learns as its closed form says.
USE = """
import jax, jaxsolve as js
line = js.data.line(8, 3, key=jax.random.key(0))
net = js.nets.TwoLayerLinear(in_size=3, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(1))
problem = js.Problem(net, *line.train)
flow, exact = (js.solve(problem, how, [1.0])["loss"][0] for how in (js.GradientFlow(), js.theory.TwoLayerLine()))
assert abs(flow - exact) < 1e-3 * exact, (flow, exact)
print(js.__version__, jax.__version__, js.__file__)
"""
# What a plain installation leaves out is named where it is asked for, with what to install.
MISSING = """
import importlib.metadata as metadata, jax, numpy, xarray, jaxsolve as js
assert (count := len(list(metadata.distributions()))) <= 22, count  # jaxsolve and 21 others
tried = {
    "plot": lambda: js.plot.gram(xarray.DataArray(numpy.eye(3))),
    "data": lambda: js.data.digits(task="parity", n_train=4, key=jax.random.key(0)),
    "sweeps": lambda: js.sweeps.load("."),
    "cli": lambda: __import__("jaxsolve.cli"),
    "torch": lambda: js.nets.from_torch(None, None),
}
for extra, use in tried.items():
    try:
        use()
    except ModuleNotFoundError as error:
        assert f"pip install 'jaxsolve[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"{extra} is there")
"""
# With the two packages that README names, and their dependencies left out.
INFINITE = """
import jax, jax.numpy as jnp, jaxsolve as js
net = js.nets.MLP(in_size=3, out_size=1, width_size=8, depth=1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
ntk = js.kernels.infinite(net, jnp.eye(3)).ntk
assert ntk.shape == (3, 3) and abs(ntk[0, 0] - 1 / 3) < 1e-5, ntk  # each layer has half of |x|^2/3
"""


def problems(wheel: Path) -> list[str]:
    """What is in a wheel and should not be, and the other way round."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("jaxsolve-")}
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "jaxsolve").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return [f"should not be there: {name}" for name in sorted(names - files)] + [
        f"is missing: {name}" for name in sorted(files - names)
    ]


def use(wheel: Path, python: str, folder: Path) -> None:
    """Installs the wheel and nothing else that is not a dependency of it; solves a small problem; asks the doctor."""
    environment = folder / python
    programs = environment / "bin"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    made = subprocess.run(
        ["uv", "venv", "--quiet", "--python", python, environment], cwd=folder, env=clean, check=False
    )
    if made.returncode and os.environ.get("CI", "") in ("", "0", "false"):
        sys.stderr.write(f"there is no Python {python}, and none can be had: the wheel was not tried with it\n")
        return
    made.check_returncode()
    for command in (
        ["uv", "pip", "install", "--quiet", "--python", environment, wheel],
        [programs / "python", "-c", USE],
        [programs / "python", "-c", MISSING],
        ["uv", "pip", "install", "--quiet", "--python", environment, f"{wheel}[all]"],
        [programs / "jaxsolve", "doctor"],
        ["uv", "pip", "install", "--quiet", "--python", environment, "--no-deps", "neural-tangents", "frozendict"],
        [programs / "python", "-c", INFINITE],
    ):
        subprocess.run(command, cwd=folder, env=clean, check=True)


def main() -> int:
    """Gives back the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
        (wheel,) = folder.glob("*.whl")
        if wrong := problems(wheel):
            sys.stderr.write("\n".join([f"{wheel.name} is not the package:", *wrong, ""]))
            return 1
        for python in PYTHONS:
            use(wheel, python, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
