"""What stands beside the pages of the site: reports of shipped sweeps, and the numbers of the explorer."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from sphinx.application import Sphinx

import jaxsolve as js


REPORTS = ("xu_ziyin", "kunin", "atanasov")  # of `jaxsolve configs`, those that take less than a minute
TIMES = np.concatenate([[0.0], np.geomspace(1e-2, 1e2, 20)])
AXES = {
    "sigma": [0.1, 0.3, 1.0, 3.0],
    "eta": [1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3],
    "gamma": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    "width": [2, 8, 32, 128, 512],
}
WATCHED = {
    "loss": js.observe.loss(),
    "layer_alignment": js.observe.layer_alignment(),
    "kernel_change": js.observe.kernel_change(),
}


def reports(folder: Path) -> None:
    """Writes the page of each of these sweeps, as the two commands of docs/report.md do."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", "import jaxsolve.cli; jaxsolve.cli.main()"]
    with tempfile.TemporaryDirectory() as work:
        for name in REPORTS:
            steps = (
                ["configs", name, "-o", f"{name}.toml"],
                ["sweep", f"{name}.toml"],
                ["report", f"{name}.zarr", "-o", str((folder / f"{name}.html").absolute())],
            )
            for step in steps:
                subprocess.run([*command, *step], cwd=work, check=True, capture_output=True)


def numbers() -> dict:
    """The closed form of a two-layer linear network on a line, at every setting of the explorer."""
    line = js.data.line(30, 5, key=jax.random.key(0))

    def problem(sigma, eta, gamma, width):
        scaling = js.nets.Scaling.ntk(gamma, sigma=sigma, eta=eta)
        net = js.nets.TwoLayerLinear(in_size=5, width_size=width, scaling=scaling, key=jax.random.key(1))
        return js.Problem(net, *line.train, centered=True)

    arrays = {name: values if name == "width" else np.array(values) for name, values in AXES.items()}
    padded, axes = js.sweeps.padded(problem, arrays, "width")
    watched = list(WATCHED.values())
    runs = js.sweep(padded, axes, js.theory.TwoLayerLine(), TIMES, observe=watched, progress=False)
    runs = runs.isel(pair=0).transpose(*AXES, "t")
    half = js.observe.half_loss_time(TIMES, runs["loss"].values)
    regime = js.observe.classify(half, runs["kernel_change"].isel(t=-1).values, np.array([0.0, 0.1, 10.0]))
    digits = {name: [float(f"{value:.3g}") for value in runs[name].values.ravel()] for name in WATCHED}
    labels = [regime.label for regime in js.observe.Regime]
    times = [float(f"{time:.3g}") for time in TIMES]
    return {"axes": AXES, "times": times, "regimes": labels, "regime": regime.ravel().tolist(), **digits}


def finished(app: Sphinx, failure: Exception | None) -> None:
    """Called by Sphinx when the pages are written."""
    if failure is None and app.builder.format == "html":
        reports(Path(app.outdir) / "reports")
        data = json.dumps(numbers(), separators=(",", ":"), allow_nan=False)
        (Path(app.outdir) / "_static" / "explorer-data.js").write_text(f"const EXPLORER = {data};\n", "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
