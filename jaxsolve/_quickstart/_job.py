"""The quickstart: the regimes in which networks train on real handwritten digits, compared with theory."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TYPE_CHECKING

import jax
import jax.random as jr
import numpy as np

from .. import data, observe
from .._compare import Comparison
from .._results import RESULT_NAMES
from ..observe import Regime
from ..sweeps import save
from ._figures import draw_curves, draw_phases
from ._measure import COMPONENTS, DIGITS, ETAS, FIRST, GAMMAS, LAST, measure, NETWORKS, on_a_line, SAMPLES
from ._theory import predict, Prediction, theory_vs_flow


if TYPE_CHECKING:
    import xarray


class Quickstart(NamedTuple):
    """The findings of the quickstart, and the folder that it wrote them to."""

    folder: Path
    summary: dict[str, Any]
    sweep: "xarray.Dataset"
    comparisons: dict[str, Comparison]

    def __repr__(self) -> str:
        lines = [
            f"jaxsolve quickstart: {self.summary['runs']} networks trained on handwritten {DIGITS[0]}s and {DIGITS[1]}s"
        ]
        for network, counts in self.summary["cells_per_regime"].items():
            lines.append(f"  {network}: " + ", ".join(f"{count} {regime}" for regime, count in counts.items()))
        agreement = self.summary["agreement_with_theory"]
        lines.append(f"  theory's regime is the measured one in {agreement:.0%} of the two-layer linear cells")
        error = self.summary["largest_relative_error_theory_vs_flow"]
        lines.append(f"  closed form against gradient flow: largest relative error {error:.1e}")
        lines.append(f"  {self.summary['wall_seconds']:.0f} s; figures, data and numbers in {self.folder}/")
        return "\n".join(lines)


def quickstart(folder: str | os.PathLike = "quickstart", *, seeds: int = 2, progress: bool = True) -> Quickstart:
    """Sweeps (network, width, sigma, gamma, eta) on real digits, classifies every cell, and compares with theory.

    Writes `phase_diagram.png`, `theory_vs_flow.png`, `sweep.zarr` and `summary.json` into `folder`, replacing earlier
    ones. It computes in the precision of the session; the command line uses float64.

    Arguments:
        folder: where to write.
        seeds: networks per cell; a cell's regime is that of its median half-loss time and kernel change.
        progress: whether to show a progress bar on standard error.

    Raises:
        ValueError: seeds is not an integer >= 1.
        FileExistsError: `sweep.zarr` in the folder is not a Zarr store.

    Example:
        About a minute of work:

        >>> js.quickstart("quickstart")  # doctest: +SKIP
    """
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ValueError(f"seeds must be an integer >= 1, got {seeds!r}")
    start = time.perf_counter()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _check_replaceable(folder / "sweep.zarr")

    dataset = data.digits(task=DIGITS, n_train=SAMPLES, pca=COMPONENTS, key=jr.key(0))
    line = on_a_line(*dataset.train)
    swept = measure(dataset.train, line, seeds, progress)
    curves = theory_vs_flow(line)
    predicted = predict(line)

    _write_store(swept, folder / "sweep.zarr")
    draw_phases(swept, predicted, folder / "phase_diagram.png")
    draw_curves(curves, folder / "theory_vs_flow.png")
    summary = _summarize(swept, predicted, curves, time.perf_counter() - start)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return Quickstart(folder, summary, swept, curves)


def _check_replaceable(store: Path) -> None:
    if store.exists() and not (store / "zarr.json").exists():
        raise FileExistsError(f"{store} is no Zarr store, so it is not replaced; remove it or choose another folder")


def _write_store(swept: "xarray.Dataset", path: Path) -> None:
    _check_replaceable(path)
    if path.exists():
        shutil.rmtree(path)
    save(swept, path)


def _summarize(
    swept: "xarray.Dataset",
    predicted: dict[tuple[int, float], Prediction],
    curves: dict[str, Comparison],
    wall: float,
) -> dict[str, Any]:
    cells = {
        network: {r.label: int(np.sum(swept["regime"].sel(network=network).values == r)) for r in Regime}
        for network in NETWORKS
    }
    results = {name: int(np.sum(swept["result"].values == code)) for code, name in enumerate(RESULT_NAMES)}
    return {
        "digits": list(DIGITS),
        "training_samples": SAMPLES,
        "runs": int(swept["result"].size),
        "results": {name: count for name, count in results.items() if count},
        "cells_per_regime": cells,
        "agreement_with_theory": _agreement(swept, predicted),
        "largest_relative_error_theory_vs_flow": _largest_error(curves),
        "errors_theory_vs_flow": {
            start: {key: float(value) for errors in cmp.errors.values() for key, value in errors.items()}
            for start, cmp in curves.items()
        },
        "dtype": str(next(iter(curves.values())).trajectories["TwoLayerLine"].ts.dtype),
        "device": jax.devices()[0].device_kind,
        "versions": swept.attrs["versions"],
        "wall_seconds": round(wall, 1),
    }


def _largest_error(curves: dict[str, Comparison]) -> float:
    return max(float(error) for cmp in curves.values() for errors in cmp.errors.values() for error in errors.values())


def _agreement(swept: "xarray.Dataset", predicted: dict[tuple[int, float], Prediction]) -> float:
    """The share of two-layer linear cells whose measured regime is the one predicted by theory for a typical start."""
    same = []
    for (width, sigma), p in predicted.items():
        sites = np.ix_(nearest(p.etas, ETAS), nearest(p.gammas, GAMMAS))
        expected = observe.classify(p.half[sites], p.change[sites], np.array([0.0, FIRST, LAST]))
        cells = swept["regime"].sel(network=NETWORKS[0], width=width, sigma=sigma).transpose("eta", "gamma")
        same.append(cells.values == expected)
    return float(np.mean(same))


def nearest(grid: np.ndarray, values: Sequence[float]) -> np.ndarray:
    return np.argmin(np.abs(np.log(grid)[None, :] - np.log(np.asarray(values))[:, None]), axis=1)
