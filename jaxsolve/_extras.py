"""Libraries that a plain installation leaves out, code that may raise anything, and the page that errors lead to.

It stands alone, for the command, which starts before JAX is loaded.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


# The modules that each extra of pyproject.toml brings, as they are imported.
EXTRAS = {
    "sweeps": ("zarr", "filelock", "dask", "distributed", "cloudpickle"),
    "plot": ("matplotlib", "plotly"),
    "data": ("sklearn", "pooch"),
    "cli": ("cyclopts", "rich", "packaging"),
    "torch": ("torch",),
}


def see(section: str) -> str:
    """The end of a message that a newcomer meets early: where docs/errors.md says why, and what to do."""
    return f" (see docs/errors.md#{section})"


@contextlib.contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Raises ModuleNotFoundError, with the command that installs it, where an import inside finds no such library.

    Arguments:
        extra: one of `EXTRAS`. A module that it does not bring is missing for another reason, which stays as it is.
        purpose: what needs the library: the subject of the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS[extra]:
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs {missing}, which is not installed: pip install 'jaxsolve[{extra}]', or in a copy of the "
            f"repository pip install '.[{extra}]'" + see("an-extra-is-missing"),
            name=missing,
        ) from error


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """The value of a function, and None; or None, and what it raises.

    For what is not ours and may raise anything: networks, activations and optimizers of users, other libraries.
    """
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
