"""The command `jaxsolve`."""

from .. import _extras
from . import _guard


# JAX imports at once what may be installed beside it, such as filelock.
with _extras.needs("cli", "the command jaxsolve"), _guard.installed_modules_only():
    from ._main import main as main
