"""`jaxsolve sweep` runs the sweep that a TOML file describes; `jaxsolve configs` lists such files to start from."""

import shlex
from pathlib import Path
from typing import Annotated, TYPE_CHECKING

from cyclopts import Parameter

from ._guard import choose_precision, look_here_last, one_line, warnings_after
from ._say import say


if TYPE_CHECKING:
    import xarray


INTERRUPTED = 130  # the exit code that shells expect after Ctrl-C


def sweep(
    config: Path,
    *,
    store: Path | None = None,
    resume: bool = True,
    retry_failed: bool = False,
    batch_size: int | None = None,
    dry_run: bool = False,
    allow_code: bool = False,
    float32: bool = False,
    quiet: bool = False,
) -> None:
    """Solve one problem per cell of a grid, as described by a TOML file, and write the results to a Zarr store.

    Ctrl-C lets the running batch finish and writes it; the same command then continues. `jaxsolve configs` lists
    files to start from.

    Parameters
    ----------
    config
        A TOML file. Nothing in it is run as code.
    store
        The folder to fill, instead of the one that the config names. Without either: the config's name with .zarr, in
        the working directory.
    resume
        Continue a store of the same sweep; with --no-resume, an existing store is an error.
    retry_failed
        Also repeat the runs of the store that failed.
    batch_size
        How many runs to compute at once, instead of the config's number.
    dry_run
        Say how many runs (lanes) and compilations there are and what they cost, without running them.
    allow_code
        If the config's problem is "my_module:make_problem", import that module, also from the working directory. This
        runs its code.
    float32
        Use single precision instead of double.
    quiet
        Show no progress.
    """
    if not config.is_file():
        raise FileNotFoundError(f"there is no file {config}; 'jaxsolve configs' lists some to start from")
    choose_precision(double=not float32)
    import jaxsolve

    from ..configs import read_config

    if allow_code:
        look_here_last()
    with warnings_after(), one_line(code=allow_code):
        read = read_config(config, allow_code=allow_code)
        problem = (read.problem_fn, read.axes, read.dynamics, read.ts)
        size = read.batch_size if batch_size is None else batch_size
        if dry_run:
            say(jaxsolve.plan(*problem, observe=read.observe, batch_size=size).describe())
            return
    path = store or read.store or Path(f"{config.stem}.zarr")
    try:
        with one_line(path, code=allow_code):
            found = jaxsolve.sweep(
                *problem,
                observe=read.observe,
                store=path,
                batch_size=size,
                resume=resume,
                retry_failed=retry_failed,
                progress=not quiet,
            )
    except KeyboardInterrupt as stop:
        given = {"--allow-code": allow_code, "--float32": float32, "--retry-failed": retry_failed}
        options = [*(["--store", str(store)] if store else []), *(flag for flag in given if given[flag])]
        options += [] if batch_size is None else ["--batch-size", str(batch_size)]
        again = shlex.join(["jaxsolve", "sweep", str(config), *options])
        say(f"jaxsolve: {stop or 'stopped before any run'}\nto carry on: {again}", error=True)
        raise SystemExit(INTERRUPTED) from None
    say(f"{_results(found)} in {path}")


def configs(
    name: str | None = None, *, output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None
) -> None:
    """List the configs that come with jaxsolve, or print one of them.

    Parameters
    ----------
    name
        The config to print; without it, all are listed.
    output
        Write it to this file instead.
    """
    from ..papers import configs as known

    found = known()
    if name is None and output is not None:
        raise ValueError(f"which config should be written to {output}? Give its name, one of {', '.join(found)}")
    if name is None:
        width = max(map(len, found))
        say("\n".join(f"{key:{width}}  {text.splitlines()[0].removeprefix('# ')}" for key, text in found.items()))
        return
    if name not in found:
        raise ValueError(f"there is no config {name!r}; there are {', '.join(found)}")
    if output is None:
        say(found[name].rstrip())
    elif output.exists():
        raise FileExistsError(f"{output} exists already and is not overwritten; choose another file")
    else:
        output.write_text(found[name], encoding="utf-8")
        say(f"written to {output}; run it with: jaxsolve sweep {shlex.quote(str(output))}")


def _results(found: "xarray.Dataset") -> str:
    """The number of lanes, and how many ended with each result, in words."""
    result = found["result"]
    names = result.attrs["flag_meanings"].split()
    counts = {name: int((result == code).sum()) for code, name in enumerate(names)}
    return f"{result.size} lanes ({', '.join(f'{count} {name}' for name, count in counts.items() if count)})"
