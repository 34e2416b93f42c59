"""The command `jaxsolve`."""

from .. import _extras


with _extras.needs("cli", "the command jaxsolve"):
    from ._main import main as main
