"""The command `jaxsolve`."""

from ._main import main as main
