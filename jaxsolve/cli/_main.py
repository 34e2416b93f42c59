"""The command line."""

import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import cyclopts
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._data import data
from ._doctor import doctor
from ._guard import choose_precision, installed_modules_only
from ._kept import kept_programs
from ._report import report
from ._reproduce import reproduce
from ._say import say
from ._sweep import configs, sweep


app = cyclopts.App(
    name="jaxsolve",
    help=(
        "Simulate how neural networks learn, and solve it exactly where an exact solution is known. Compiled "
        "programs are kept in the user's cache folder, so a command starts faster the next time; --no-cache, "
        "anywhere on the line, turns this off."
    ),
    help_epilogue="Example: `jaxsolve quickstart`",
    version=lambda: version("jaxsolve"),
)

app.command(sweep, help_epilogue="Example: `jaxsolve sweep grid.toml --dry-run`")
app.command(configs, help_epilogue="Example: `jaxsolve configs kunin_grid -o grid.toml`")
app.command(report, help_epilogue="Example: `jaxsolve report run.zarr -o report.html`")
app.command(reproduce, help_epilogue="Example: `jaxsolve reproduce xu_ziyin/table1 geiger/fig3`")
app.command(data)
app.command(doctor, help_epilogue="Example: `jaxsolve doctor`")


@app.command(help_epilogue="Example: `jaxsolve quickstart --seeds 4`")
def quickstart(
    folder: Path = Path("quickstart"), *, seeds: int = 2, float32: bool = False, quiet: bool = False
) -> None:
    """Train networks on real digits, find their regimes, and check the exact solution. Takes about a minute.

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
    choose_precision(double=not float32)
    import jaxsolve

    say(repr(jaxsolve.quickstart(folder, seeds=seeds, progress=not quiet)))


@app.command(help_epilogue="Example: `jaxsolve phase --width 1000 --sigma 0.5 --eta 0.001`")
def phase(
    *,
    table: bool = False,
    width: int = 100,
    sigma: float = 1.0,
    eta: float = 1.0,
    gamma: float = 1.0,
    rho: float = 1.0,
    target: float = 1.0,
) -> None:
    """Predict the regime in which a two-layer network f = gamma sum_i u_i w_i.x will train.

    Parameters
    ----------
    table
        Print Table 1 of Xu & Liu Ziyin instead: the phases of common scalings.
    width
        Number of hidden units.
    sigma
        Standard deviation of all initial weights.
    eta
        Learning rate of both layers.
    gamma
        Output scale.
    rho
        Root mean square of the inputs along their line.
    target
        The reduced target.
    """
    choose_precision(double=True)
    from .. import theory

    if table:
        Console().print(_table_1())
        return
    if sigma == 0:
        raise ValueError("--sigma must be > 0, got 0: weights that are all zero never move")
    found = theory.classify_network(
        width, sigma_u=sigma, sigma_w=sigma, eta_u=eta, eta_w=eta, gamma=gamma, rho=rho, y=target
    )
    scale = found.timescale
    lines = [
        f"regime: {found.regime.label}",
        f"time scale t_c = {float(scale.t_c):.4g}",
        f"feature-learning term 2 k |y| = {float(scale.feature):.4g}",
        f"kernel term 2 k^2 sqrt(P Q) = {float(scale.kernel):.4g}",
        f"kernel change at the end = {float(found.kernel_change):.4g}",
    ]
    say("\n".join(lines))


def _table_1() -> Table:
    """Table 1, with a row for each scaling and each way to choose eta and gamma."""
    from .. import theory

    table = Table("scaling", "chosen by", "c_d", "c_gamma", "c_w", "c_u", "c_eta", "phase", box=box.SIMPLE)
    for entry in theory.table_1():
        e = entry.exponents
        numbers = (f"{value:g}" for value in (e.d, e.gamma, e.w, e.u, e.eta_u))
        table.add_row(entry.scaling, entry.chosen_by, *numbers, entry.regime.label)
    return table


@app.command(help_epilogue="Example: `jaxsolve errata --write errata.md`")
def errata(*, write: Path | None = None) -> None:
    """Recompute the errors found in the papers: printed and corrected equations against integration. Takes a minute.

    Parameters
    ----------
    write
        Also write them as a Markdown page to this path.
    """
    choose_precision(double=True)
    from .. import papers
    from ..papers._internal import ALL_ERRATA, document

    with Console(stderr=True).status(f"recomputing {len(ALL_ERRATA)} errata"):
        results = papers.errata()
    for table in _errata_tables(results):
        Console().print(table)
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(document(results), encoding="utf-8")
        say(f"written to {write}")


def _errata_tables(results: tuple) -> list[Table]:
    """One table per paper, with one row per erratum."""
    from ..papers._internal import show_error

    tables = {}
    for paper in dict.fromkeys(result.erratum.paper for result in results):
        tables[paper] = Table(title=paper, box=box.SIMPLE, title_justify="left")
        for column in ("where", "printed", "corrected"):
            tables[paper].add_column(column, overflow="fold")
        for column in ("error of printed", "error of corrected"):
            tables[paper].add_column(column, justify="right")
    for result in results:
        erratum = result.erratum
        words = [Text(re.sub("[`$]", "", part)) for part in (erratum.equation, erratum.printed, erratum.corrected)]
        errors = [show_error(error) for error in (result.printed_error, result.corrected_error)]
        tables[erratum.paper].add_row(*words, *errors)
    return list(tables.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `jaxsolve`. Expected errors take one line; others show their traceback.

    While it runs, nothing is imported from the working directory, except by `jaxsolve sweep --allow-code`.

    Arguments:
        arguments: what follows `jaxsolve` on the command line; None takes it from `sys.argv`.

    Raises:
        SystemExit: always; its code is 0 if the command succeeded.

    Example:
        >>> import contextlib
        >>> from jaxsolve.cli import main
        >>> with contextlib.suppress(SystemExit):  # a command ends its process
        ...     main(["configs"])
        atanasov ...
        geiger ...
        kunin ...
        kunin_grid ...
        xu_ziyin ...
    """
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        with installed_modules_only(), kept_programs("--no-cache" not in given):
            app([word for word in given if word != "--no-cache"])
    except (ValueError, TypeError, OSError) as error:
        say(f"jaxsolve: {_words(error)}", error=True)
        raise SystemExit(2) from error


def _words(error: Exception) -> str:
    """The message of an error; for an error of the operating system, its file and reason without the number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
