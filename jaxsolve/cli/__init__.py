"""The command `jaxsolve`."""

from .._extras import needs


with needs("cli", "the command jaxsolve"):
    from ._main import main as main
