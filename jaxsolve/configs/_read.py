"""The sweep that a TOML file describes."""

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core import AbstractDynamics, Problem
from ..observe import Observable
from ..sweeps import padded, Zip
from ._catalogue import kinds, names_in, read_object
from ._functions import ConfiguredDynamics, ConfiguredProblem, import_problem, SIDE_BY_SIDE
from ._refusals import check_grid, check_values, ConfigError, errors_of, read_text, shown, unknown


SPACINGS: dict[str, Callable[..., Any]] = {"geomspace": np.geomspace, "linspace": np.linspace, "range": range}
PADDED = "padded"  # the key of an axis of widths that share one compilation
KEYS = ("problem", "axes", "zip", "dynamics", "times", "observe", "store", "batch_size")
NEEDED = ("problem", "dynamics", "times")
MAX_COUNT = 1_000_000  # values from one table, for an axis or for times
MAX_VALUES = 2 * MAX_COUNT  # values for all axes together, and for times


@dataclasses.dataclass(frozen=True)
class Config:
    """The arguments of a sweep, as `js.configs.read_config` returns them.

    Attributes:
        problem_fn, axes, dynamics, ts, observe, store, batch_size: as for `js.sweep`.
    """

    problem_fn: Callable[..., Problem]
    axes: tuple[Zip, ...]
    dynamics: AbstractDynamics | ConfiguredDynamics
    ts: np.ndarray
    observe: tuple[Observable, ...]
    store: Path | None
    batch_size: int | None


def read_config(path: str | os.PathLike, *, allow_code: bool = False) -> Config:
    """Reads a sweep from a TOML file; `docs/sweeps.md` says what it may hold.

    Networks and data have JAX's default precision. Nothing in the file is run as code, and sizes are bounded, so files
    of unknown origin can be read.

    Arguments:
        path: path of the file.
        allow_code: whether the problem may be `"my_module:make_problem"`, a function in a module of your own. Importing
            that module runs its code.

    Returns:
        The arguments of `js.sweep`: `problem_fn`, `axes`, `dynamics`, `ts`, `observe`, `store` and `batch_size`.

    Raises:
        ConfigError: the file is not TOML, does not describe a sweep, asks for too much, or names code that is not
            allowed.
        OSError: the file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "mine.toml"
        ...     _ = path.write_text(js.papers.configs()["kunin"])  # one that comes with jaxsolve
        ...     config = js.configs.read_config(path)
        >>> config.dynamics.name
        'SingleNeuronFlow'
    """
    file = Path(path)
    with errors_of(f"{path} is not a TOML file"):
        table = tomllib.loads(read_text(file))
    try:
        check_values(table)
        return parse_config(table, allow_code=allow_code)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(table: Mapping[str, Any], *, allow_code: bool = False) -> Config:
    """Reads a sweep from the content of a TOML file. Raises ConfigError as `read_config` does."""
    for key in table:
        if key not in KEYS:
            raise ConfigError(unknown(key, KEYS, "part of a config"))
    missing = [key for key in NEEDED if key not in table]
    if missing:
        raise ConfigError(f"a config also needs {', '.join(missing)}")
    axes, padded_names = _read_axes(table)
    moves = ConfiguredDynamics(table["dynamics"])
    if moves.labels:
        axes.append(Zip(**{SIDE_BY_SIDE: moves.labels}))
    check_grid(axes, padded_names)
    ts = _read_times(table["times"])  # before making data, which takes longer
    names = [argument.name for axis in axes for argument in axis.arguments]
    problem_fn = _read_problem(table["problem"], names, moves, allow_code)
    if padded_names:
        with errors_of("axes"):
            problem_fn, axes = padded(problem_fn, axes, *padded_names)
    observed = table.get("observe", ["loss"])
    if not isinstance(observed, list):
        raise ConfigError(f"observe must be a list of names and tables, got {shown(observed)}")
    seen = tuple(read_object(item, kinds()["observe"], f"observe[{i}]") for i, item in enumerate(observed))
    for i, names in enumerate(map(names_in, seen)):
        if names:
            raise ConfigError(
                f"observe[{i}] must not depend on axes, but depends on {sorted(names)}; only the problem and the "
                "dynamics may"
            )
    return Config(
        problem_fn=problem_fn,
        axes=tuple(axes),
        dynamics=moves if moves.names else moves(),
        ts=ts,
        observe=seen,
        store=None if "store" not in table else Path(_one_of(table, "store", str)),
        batch_size=_one_of(table, "batch_size", int),
    )


def _one_of(table: Mapping[str, Any], key: str, accepted: type) -> Any:
    value = table.get(key)
    if value is not None and type(value) is not accepted:
        raise ConfigError(f"{key} must be {accepted.__name__}, got {shown(value)}")
    return value


def _read_problem(
    value: Any, axes: Sequence[str], moves: ConfiguredDynamics, allow_code: bool
) -> Callable[..., Problem]:
    used = {"dynamics": moves.names}
    if isinstance(value, str):
        problem = import_problem(value, allow_code=allow_code)
    elif isinstance(value, Mapping):
        problem = ConfiguredProblem(value)
        used["problem"] = problem.names
    else:
        raise ConfigError(f"problem must be a table, or a string such as 'my_module:make_problem', got {shown(value)}")
    for where, names in used.items():
        for name in sorted(names.difference(axes)):
            raise ConfigError(f"{where}: {unknown(name, axes, 'axis')}")
    idle = [name for name in axes if not any(name in names for names in used.values())]
    if idle and "problem" in used:
        raise ConfigError(
            f"axes: nothing in [problem] refers to {', '.join(idle)}; use it, for example as '={idle[0]}'"
        )
    return problem


def _read_axes(table: Mapping[str, Any]) -> tuple[list[Zip], list[str]]:
    """The axes, and the names of those given as `{ padded = [16, 64, 256] }`."""
    alone, zips = table.get("axes", {}), table.get("zip", [])
    if not isinstance(zips, list) or not all(isinstance(item, Mapping) for item in zips):
        raise ConfigError(f"zip must be given as [[zip]], with axes that advance together, got {shown(zips)}")
    if not isinstance(alone, Mapping):
        raise ConfigError(f"axes must be a table of lists of values, got {shown(alone)}")
    parts = [("axes", {name: value}) for name, value in alone.items()] + [("zip", part) for part in zips]
    axes, padded_names, made = list[Zip](), list[str](), 0
    for where, part in parts:
        found = {}
        for name, value in part.items():
            found[name] = _read_axis(value, f"{where}.{name}", made)
            made += len(found[name])
            if isinstance(value, Mapping) and PADDED in value:
                padded_names.append(name)
        with errors_of(where):
            axes.append(Zip(**found))
    if not axes:
        raise ConfigError("a config needs [axes] with at least one list of values, or [[zip]]")
    return axes, padded_names


def _read_axis(value: Any, where: str, made: int) -> Any:
    if isinstance(value, list):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} must be a list or a table such as {{ geomspace = [0.1, 10, 5] }}, got {shown(value)}"
        )
    if PADDED not in value:
        return _spaced(value, where, made)
    if not isinstance(widths := value[PADDED], list):
        name = where.rpartition(".")[2]
        raise ConfigError(f"axes: widths of axis {name!r} must be a list of integers to be padded, got {shown(widths)}")
    if len(value) > 1:
        raise ConfigError(f"{where} must hold {PADDED} alone, got {', '.join(value)}")
    return widths


def _spaced(value: Mapping[str, Any], where: str, made: int) -> Any:
    """The values of `{ geomspace = [first, last, count] }` and its siblings; `made` values exist already."""
    if len(value) != 1:
        raise ConfigError(f"{where} must hold one of {', '.join(SPACINGS)}, got {', '.join(value) or 'nothing'}")
    [(name, numbers)] = value.items()
    if name not in SPACINGS:
        raise ConfigError(f"{where}: {unknown(name, SPACINGS, 'way to space values')}")
    given = numbers if isinstance(numbers, list) else [numbers]
    if name != "range" and len(given) != 3:
        raise ConfigError(f"{where}: {name} takes [first, last, count], got {numbers}")
    for place, number in enumerate(given):
        whole = name == "range" or place == 2
        if type(number) not in ((int,) if whole else (int, float)):
            needed = "an integer" if whole else "a number"
            raise ConfigError(f"{where}: {name} does not take {shown(number)}; it takes {needed} there")
    with errors_of(f"{where}: {name} does not take {numbers}"):
        count = len(range(*given) if name == "range" else range(given[2]))
        if count > MAX_COUNT:
            raise ConfigError(f"{where}: {name} would make {count} values; at most {MAX_COUNT} are accepted")
        if made + count > MAX_VALUES:  # a small file may have many such tables
            raise ConfigError(f"{where}: there would be {made + count} values; at most {MAX_VALUES} are accepted")
        return SPACINGS[name](*given)


def _read_times(value: Any) -> np.ndarray:
    found = list[float]()
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, Mapping):
            found.extend(_spaced(part, "times", len(found)))
        elif type(part) in (int, float):
            found.append(part)
        else:
            raise ConfigError(
                f"times must be numbers, or tables such as {{ geomspace = [0.01, 100, 9] }}, got {shown(part)}"
            )
    return np.array(found, dtype=float)
