"""The command line."""

from importlib.metadata import version
from pathlib import Path

import cyclopts
from rich.console import Console


app = cyclopts.App(
    name="jaxsolve",
    help="Simulate how neural networks learn, and solve it exactly where an exact solution is known.",
    version=lambda: version("jaxsolve"),
)


@app.command
def quickstart(
    folder: Path = Path("quickstart"), *, seeds: int = 2, float32: bool = False, quiet: bool = False
) -> None:
    """Train networks on real digits, find their regimes, and check the exact solution. About a minute.

    Parameters
    ----------
    folder
        Where to write phase_diagram.png, theory_vs_flow.png, sweep.zarr and summary.json.
    seeds
        Networks per cell of the phase diagram.
    float32
        Use single precision instead of double.
    quiet
        Show no progress bar.
    """
    _use_double(not float32)
    import jaxsolve

    Console().print(repr(jaxsolve.quickstart(folder, seeds=seeds, progress=not quiet)), highlight=False, soft_wrap=True)


def _use_double(wanted: bool) -> None:
    """The command line owns its process, so it may choose the precision; the library never does."""
    import jax

    jax.config.update("jax_enable_x64", wanted)


def main() -> None:
    """Entry point of `jaxsolve`: known errors are told in one line, others with their traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        Console(stderr=True).print(f"jaxsolve: {error}", style="bold", highlight=False, soft_wrap=True)
        raise SystemExit(2) from error
