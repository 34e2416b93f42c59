"""The command `jaxsolve`."""

from .. import _extras
from . import _guard


# JAX itself imports optional packages, such as filelock, so this import is guarded, too.
with _extras.needs("cli", "the command jaxsolve"), _guard.installed_modules_only():
    from ._main import main as main
