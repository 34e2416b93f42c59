"""Optional libraries, calls to code that may raise anything, and links from errors to the documentation.

It imports nothing else of jaxsolve, because the command line uses it before JAX is loaded.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


# The import names of the modules that each extra of pyproject.toml installs.
EXTRAS = {
    "sweeps": ("zarr", "filelock", "dask", "distributed", "cloudpickle"),
    "plot": ("matplotlib", "plotly"),
    "data": ("sklearn", "pooch"),
    "cli": ("cyclopts", "rich", "packaging"),
    "torch": ("torch",),
}


def see(section: str) -> str:
    """The end of an error message: the section of docs/errors.md that explains it and says what to do."""
    return f" (see docs/errors.md#{section})"


@contextlib.contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Raises ModuleNotFoundError, with the command that installs the library, if an import inside the context fails.

    Arguments:
        extra: one of `EXTRAS`. The error of a module that it does not install is raised unchanged.
        purpose: the subject of the message: what needs the library.
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
    """The value of a call and None, or None and the exception raised.

    For code that may raise anything: networks, activations and optimizers of users, and other libraries.
    """
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
