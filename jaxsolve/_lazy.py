"""Names that are imported when first used, so that `import jaxsolve` loads nothing."""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package whose stub, `__init__.pyi`, lists its public names.

    Arguments:
        package, file: `__name__` and `__file__` of the package.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    # `from . import nets` exports a module, `from ._solve import solve` an attribute of one.
    homes = {alias.asname or alias.name: node.module for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home is None:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{home}"), name)

    return find, lambda: sorted(homes), sorted(homes)
