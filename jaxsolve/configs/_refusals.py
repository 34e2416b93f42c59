"""Checks that reject a config, their messages, and limits on what it may ask for.

A small file must not exhaust a large machine.
"""

import contextlib
import difflib
import inspect
import itertools
import math
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]

from .._checks import describe
from .._core import is_key
from .._programs import equations
from ..nets import Padded
from ..sweeps import Zip


LONGEST = 2000  # characters of a message
MAX_BYTES = 1_000_000  # of a file
MAX_NESTING = 32  # of brackets, and of parts of a dotted key
MAX_FORMULAS = 1000
MAX_INTEGER = 2**63 - 1  # the largest integer of TOML
MAX_LANES = 1_000_000
MAX_COMPILATIONS = 1000
MAX_SIZE = 1_000_000  # samples, inputs, units and other sizes
MAX_LAYERS = 100  # each is traced separately
MAX_NUMBERS = 20_000_000  # in an array, also in an intermediate one
LAYERS = ("depth", "b")  # the arguments that count layers
STEPS = ("steps", "_begin", "index")  # suffixes of integer arguments that are not sizes of arrays

ANY_STRING = (
    r'"""(?:\\.|(?!""").)*(?:"""|\Z)|\'\'\'(?:(?!\'\'\').)*(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"?|\'[^\'\n]*\'?|#[^\n]*'
)
STRINGS = re.compile(ANY_STRING, re.DOTALL)  # and comments; an unclosed one ends with its line, or with the file
BETWEEN_KEYS = re.compile(r"[=,\[\]{}\n]")
MORE = "for anything larger, write a function of your own"


class ConfigError(ValueError):
    """A config does not describe a sweep. The message begins with the place, such as `problem.network.width`.

    It is one line of printable characters, whatever the config holds.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "mine.toml"
        ...     _ = path.write_text('tims = [0, 1]')
        ...     try:
        ...         js.configs.read_config(path)
        ...     except js.configs.ConfigError as error:
        ...         print(str(error).split(": ")[1])
        'tims' is not a known part of a config; did you mean 'times'?
    """

    def __init__(self, message: str):
        text = " ".join(message.splitlines())
        if len(text) > LONGEST:  # the middle is left out
            text = f"{text[: LONGEST - 500]} [...] {text[-400:]}"
        ValueError.__init__(self, "".join(part if part.isprintable() else repr(part)[1:-1] for part in text))


def unknown(name: Any, known: Iterable[str], noun: str) -> str:
    """A message that a name is not a known `noun`, such as "loss", with the nearest name or all known ones."""
    names = sorted(known)
    text = str(name)
    near = difflib.get_close_matches(text, names, 1) or [other for other in names if other.lower() == text.lower()]
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"
    return f"{name!r} is not a known {noun}; {hint}"


def shown(value: Any) -> str:
    """A value of a config, as messages show it."""
    return {list: "a list", dict: "a table"}.get(type(value)) or describe(value)


def words(error: BaseException) -> str:
    """The message of an error, with its type unless it is a ValueError or TypeError with a message."""
    return str(error) if isinstance(error, ValueError | TypeError) and str(error) else f"{type(error).__name__} {error}"


@contextlib.contextmanager
def errors_of(where: str) -> Iterator[None]:
    """A context that adds the place in the config to errors. OSErrors and ConfigErrors stay unchanged."""
    try:
        yield
    except (ConfigError, OSError):
        raise
    except Exception as error:
        raise ConfigError(f"{where}: {words(error)}") from error


def read_text(path: Path) -> str:
    """The text of a config. Raises ConfigError if it is too long, OSError or UnicodeError if it cannot be read."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes; {MORE}")
    text = content.decode("utf-8-sig")  # some editors write a byte-order mark first
    bare = STRINGS.sub("", text)
    depths = itertools.accumulate(1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", bare))
    points = max(part.count(".") for part in BETWEEN_KEYS.split(bare))
    if max([points, *depths]) > MAX_NESTING:
        raise ConfigError(f"{path} is nested more than {MAX_NESTING} times")
    return text


def check_values(table: Any) -> None:
    """Raises ConfigError for dates, integers of more than 64 bits, and too many formulas."""
    waiting, formulas = [("", table)], 0
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{where}.{key}" if where else key, part) for key, part in value.items()]
        elif isinstance(value, list):
            waiting += [(where, part) for part in value]
        elif isinstance(value, str):
            formulas += value.startswith("=")
        elif isinstance(value, int):
            if abs(value) > MAX_INTEGER:
                raise ConfigError(f"{where} holds an integer of more than 64 bits")
        elif not isinstance(value, float):
            raise ConfigError(f"{where} must be a number, a string, true or false, got {type(value).__name__} {value}")
    if formulas > MAX_FORMULAS:
        raise ConfigError(f"there are {formulas} formulas, but at most {MAX_FORMULAS} are read")


def check_grid(axes: Sequence[Zip], padded: Collection[str]) -> None:
    """Raises ConfigError for too many lanes or compilations. The values of a padded axis share one program."""
    shared = lambda axis: all(item.traced or item.name in padded for item in axis.arguments)
    lanes, compilations = math.prod(map(len, axes)), math.prod(len(axis) for axis in axes if not shared(axis))
    for count, most, noun in ((lanes, MAX_LANES, "lanes"), (compilations, MAX_COMPILATIONS, "compilations")):
        if count > most:
            raise ConfigError(f"axes make {count} {noun}; at most {most} are accepted")


def check_sizes(make: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> int:
    """The product of the sizes among the arguments of a call. Raises ConfigError if one exceeds its limit."""
    product = 1
    for name, parameter in inspect.signature(make).parameters.items():
        kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
        is_size = int in kinds and all(kind in (int, type(None), Padded) for kind in kinds)  # or a tuple of sizes
        if name not in arguments or not is_size or name.endswith(STEPS):
            continue
        value = arguments[name]
        most = MAX_LAYERS if name in LAYERS else MAX_SIZE
        for size in value if isinstance(value, tuple) else (value,):
            if isinstance(size, int) and size > most:
                raise ConfigError(f"{where}.{name} is {size}; a config may ask for at most {most}, {MORE}")
            product *= max(size, 1) if isinstance(size, int) else 1
    return product


def check_memory(make: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError, before a call, if a size exceeds its limit or the call would make too large an array."""
    if check_sizes(make, arguments, where) == 1:
        return
    # With a traced key, the call does not check this machine's memory. Optimizers and the like are not arrays.
    keys = {name: value for name, value in arguments.items() if is_key(value)}
    arrays = lambda traced: eqx.filter(make(**(arguments | traced)), eqx.is_array)
    found = _largest(jax.make_jaxpr(arrays)(keys))
    if found > MAX_NUMBERS:
        raise ConfigError(
            f"{where} makes an array of {found} numbers; a config may ask for at most {MAX_NUMBERS}, {MORE}"
        )


def _largest(program: ClosedJaxpr) -> int:
    """The size of the largest array that a program makes."""
    made = (item.aval for equation in equations(program) for item in equation.outvars)
    return max((int(getattr(aval, "size", 0)) for aval in made), default=0)
