"""A sweep as a TOML file says it."""

import contextlib
import dataclasses
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._dynamics import AbstractDynamics
from .._problem import Problem
from ..observe import Observable
from ..sweeps import padded, Zip
from ._catalogue import kinds
from ._functions import ConfiguredDynamics, ConfiguredProblem, import_problem, SIDE_BY_SIDE
from ._recipe import names_in, read_object
from ._refusals import check_grid, check_values, ConfigError, MAX_COUNT, MAX_VALUES, read_text, shown, unknown


SPACINGS: dict[str, Callable[..., Any]] = {"geomspace": np.geomspace, "linspace": np.linspace, "range": range}
PADDED = "padded"  # the key of an axis of widths that share one compilation
KEYS = ("problem", "axes", "zip", "dynamics", "times", "observe", "store", "batch_size")
MAX_TABLES = 10  # of times, each of many
NEEDED = ("problem", "dynamics", "times")


@dataclasses.dataclass(frozen=True)
class Config:
    """The arguments of a sweep, as `js.configs.read_config` returns them.

    Attributes:
        problem_fn, axes, dynamics, ts, observe, store, batch_size: as for `js.sweep`.

    Example:
        >>> config = js.configs.read_config("mine.toml")  # doctest: +SKIP
        >>> data = js.sweep(config.problem_fn, config.axes, config.dynamics, config.ts)  # doctest: +SKIP
    """

    problem_fn: Callable[..., Problem]
    axes: tuple[dict[str, Any] | Zip, ...]
    dynamics: AbstractDynamics | ConfiguredDynamics
    ts: np.ndarray
    observe: tuple[Observable, ...]
    store: Path | None
    batch_size: int | None


def read_config(path: str | os.PathLike, *, allow_code: bool = False) -> Config:
    """Reads a sweep from a TOML file; `docs/sweeps.md` says what it may hold.

    Networks and data are of JAX's default precision. Nothing in the file is run as code, and sizes are bounded, so that
    a file of unknown origin can be read.

    Arguments:
        path: of the file.
        allow_code: whether its problem may be `"my_module:make_problem"`, a function of a module of yours. Importing
            that module runs its code.

    Raises:
        ConfigError: the file is not TOML, does not describe a sweep, asks for too much, or names code that is not
            allowed.
        OSError: it cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "mine.toml"
        ...     _ = path.write_text(js.papers.configs()["kunin"])  # one that comes with jaxsolve
        ...     config = js.configs.read_config(path)
        >>> config.dynamics.name
        'SingleNeuronFlow'
    """
    text = read_text(Path(path))
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of too many digits is a ValueError
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    try:
        check_values(table)
        return parse_config(table, allow_code=allow_code)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(table: Mapping[str, Any], *, allow_code: bool = False) -> Config:
    """Reads a sweep from the content of a TOML file, as `read_config` does. Raises ConfigError."""
    for key in table:
        if key not in KEYS:
            raise ConfigError(unknown(key, KEYS, "part of a config"))
    missing = [key for key in NEEDED if key not in table]
    if missing:
        raise ConfigError(f"a config also needs {', '.join(missing)}")
    axes: Any
    axes, padded_names = _read_axes(table)
    moves = ConfiguredDynamics(table["dynamics"])
    if moves.labels:
        axes = (*axes, {SIDE_BY_SIDE: moves.labels})
    check_grid(axes, padded_names)
    ts = _read_times(table["times"])  # before data are made, which takes longer
    problem_fn = _read_problem(table["problem"], [name for part in axes for name in _names(part)], moves, allow_code)
    if padded_names:
        with _errors_of("axes"):
            problem_fn, axes = padded(problem_fn, axes, *padded_names)
    observed = table.get("observe", ["loss"])
    if not isinstance(observed, list):
        raise ConfigError(f"observe must be a list of names and tables, got {shown(observed)}")
    return Config(
        problem_fn=problem_fn,
        axes=tuple(axes),
        dynamics=moves if moves.names or moves.labels else moves(),
        ts=ts,
        observe=tuple(_observable(item, f"observe[{i}]") for i, item in enumerate(observed)),
        store=None if "store" not in table else Path(_one_of(table, "store", str)),
        batch_size=_one_of(table, "batch_size", int),
    )


@contextlib.contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Says of errors about arguments where in the config they are."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _one_of(table: Mapping[str, Any], key: str, accepted: type) -> Any:
    value = table.get(key)
    if value is not None and (not isinstance(value, accepted) or isinstance(value, bool)):
        raise ConfigError(f"{key} must be {accepted.__name__}, got {shown(value)}")
    return value


def _observable(value: Any, where: str) -> Observable:
    node = read_object(value, kinds()["observe"], where)
    if names_in(node):
        raise ConfigError(
            f"{where} must not depend on axes, but depends on {sorted(names_in(node))}; only the "
            "problem and the dynamics may"
        )
    return node


def _read_problem(
    value: Any, axes: Sequence[str], moves: ConfiguredDynamics, allow_code: bool
) -> Callable[..., Problem]:
    made = None if isinstance(value, str) else value
    if made is not None and not isinstance(made, Mapping):
        raise ConfigError(f"problem must be a table, or a text such as 'my_module:make_problem', got {shown(value)}")
    problem = import_problem(value, allow_code=allow_code) if made is None else ConfiguredProblem(made)
    used = dict(dynamics=moves.names) | (dict(problem=problem.names) if isinstance(problem, ConfiguredProblem) else {})
    for where, names in used.items():
        for name in sorted(names):
            if name not in axes:
                raise ConfigError(f"{where}: {unknown(name, axes, 'axis')}")
    beside = {SIDE_BY_SIDE} if moves.labels else set()
    idle = [name for name in axes if name not in beside.union(*used.values())]
    if idle and "problem" in used:
        raise ConfigError(f"axes: nothing in [problem] refers to {', '.join(idle)}; use it, such as by '={idle[0]}'")
    return problem


def _read_axes(table: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The axes, and the names of those given as `{ padded = [16, 64, 256] }`."""
    zips, padded_names, made = table.get("zip", []), list[str](), 0
    if not isinstance(zips, list) or not all(isinstance(item, Mapping) for item in zips):
        raise ConfigError(f"zip must be given as [[zip]], with axes that advance together, got {shown(zips)}")

    def read(part: Any, where: str) -> dict[str, Any]:
        nonlocal made
        if not isinstance(part, Mapping):
            raise ConfigError(f"{where} must be a table of lists of values, got {shown(part)}")
        padded_names.extend(name for name, value in part.items() if isinstance(value, Mapping) and PADDED in value)
        found = {}
        for name, value in part.items():
            found[name] = _read_axis(value, f"{where}.{name}", made)
            made += len(found[name])
        return found

    single = read(table.get("axes", {}), "axes")
    with _errors_of("zip"):
        together = [Zip(**read(item, "zip")) for item in zips]
    if not single and not together:
        raise ConfigError("a config needs [axes] with at least one list of values, or [[zip]]")
    return (*([single] if single else []), *together), padded_names


def _read_axis(value: Any, where: str, made: int) -> Any:
    if isinstance(value, list):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} must be a list or a table such as {{ geomspace = [0.1, 10, 5] }}, got {shown(value)}"
        )
    widths = value.get(PADDED)
    if PADDED in value and not isinstance(widths, list):
        name = where.rpartition(".")[2]
        raise ConfigError(f"axes: widths of axis {name!r} must be a list of integers to be padded, got {shown(widths)}")
    if PADDED in value and len(value) > 1:
        raise ConfigError(f"{where} must hold {PADDED} alone, got {', '.join(value)}")
    return widths if PADDED in value else _spaced(value, where, made)


def _spaced(value: Mapping[str, Any], where: str, made: int) -> Any:
    """What `{ geomspace = [first, last, count] }` and its siblings stand for, after so many values of others."""
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
        if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
            needed = "an integer" if whole else "a number"
            raise ConfigError(f"{where}: {name} does not take {shown(number)}; it takes {needed} there")
    with _errors_of(f"{where}: {name} does not take {numbers}"):
        values = range(*given) if name == "range" else range(given[2])  # which may be too long for `len`
        count = max(0, -((values.start - values.stop) // values.step))
        if count > MAX_COUNT:
            raise ConfigError(f"{where}: {name} would make {count} values; at most {MAX_COUNT} are accepted")
        if made + count > MAX_VALUES:  # a small file may have any number of them
            raise ConfigError(f"{where}: there would be {made + count} values; at most {MAX_VALUES} are accepted")
        return values if name == "range" else SPACINGS[name](*given)


def _read_times(value: Any) -> np.ndarray:
    parts = value if isinstance(value, list) else [value]
    if sum(isinstance(part, Mapping) for part in parts) > MAX_TABLES:
        raise ConfigError(f"times hold more than {MAX_TABLES} tables")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | float | Mapping):
            raise ConfigError(
                f"times must be numbers, or tables such as {{ geomspace = [0.01, 100, 9] }}, got {shown(part)}"
            )
    found, made = [np.zeros(0)], 0
    for part in parts:
        found.append(np.atleast_1d(_spaced(part, "times", made) if isinstance(part, Mapping) else float(part)))
        made += len(found[-1])
    return np.concatenate(found).astype(float)


def _names(part: dict[str, Any] | Zip) -> list[str]:
    return [argument.name for argument in part.arguments] if isinstance(part, Zip) else list(part)
