"""What is wrong with a config, in words."""

import difflib
from collections.abc import Iterable
from typing import Any

from .._checks import describe


LONGEST = 2000  # characters of a message


class ConfigError(ValueError):
    """A config does not describe a sweep. The message begins with the place, such as `problem.network.width`.

    It is one line that any terminal can show, whatever the config holds.

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
        ValueError.__init__(self, one_line(message))


def one_line(text: str) -> str:
    """A text without line breaks and what a terminal takes for commands; the middle of a long one is left out."""
    text = " ".join(text.splitlines())
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 500]} [...] {text[-400:]}"
    return "".join(part if part.isprintable() else repr(part)[1:-1] for part in text)


def unknown(name: Any, known: Iterable[str], noun: str) -> str:
    """Says that a name is unknown, and which is meant or which there are.

    Arguments:
        name: what was given.
        known: what is accepted.
        noun: what it is a name of, such as "loss".
    """
    names = sorted(known)
    text = str(name)
    near = difflib.get_close_matches(text, names, 1) or [other for other in names if other.lower() == text.lower()]
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"
    return f"{name!r} is not a known {noun}; {hint}"


def shown(value: Any) -> str:
    """A value of a config in a message."""
    return {list: "a list", dict: "a table"}.get(type(value)) or describe(value)


def words(error: BaseException) -> str:
    """What an error says; that of a library, or without words, with its kind."""
    return str(error) if isinstance(error, ValueError | TypeError) and str(error) else f"{type(error).__name__} {error}"
