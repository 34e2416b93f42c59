"""`jaxsolve report`: a sweep's store as a page."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ._say import say


def report(
    store: Path,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("report.html"),
    theory: Path | None = None,
) -> None:
    """Write a sweep's store as one HTML page: phase maps, trajectories, collapse plots, failures, manifest.

    Parameters
    ----------
    store
        The folder that a sweep wrote, such as run.zarr. It may be only partly filled.
    output
        The page to write; it can be viewed offline.
    theory
        The store of a sweep by theory.TwoLayerLine over the same axes, to draw theory's boundaries between regimes.
    """
    for name, given in (("store", store), ("--theory", theory)):
        if given is not None and not given.exists():  # checked first: the library takes seconds to import
            raise FileNotFoundError(f"{name}: there is no store at '{given}'; give the folder that a sweep wrote")
    from ..report import write

    try:
        path = write(store, output, theory=theory)
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        raise ValueError(str(error)) from error
    except MemoryError as error:
        raise ValueError(str(error)) from error
    megabytes = path.stat().st_size / 1e6
    say(f"written to {path} ({megabytes:.1f} MB); open it in a browser")
