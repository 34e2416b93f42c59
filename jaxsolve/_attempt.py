"""Tries what is not ours. It stands alone, for the command, which starts before JAX is loaded."""

from collections.abc import Callable
from typing import Any


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """The value of a function, and None; or None, and what it raises.

    For what is not ours and may raise anything: networks, activations and optimizers of users, other libraries.
    """
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
