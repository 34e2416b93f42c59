"""Names that this room had before. Each works for one more version."""

import warnings
from typing import Any, TYPE_CHECKING

from ._hyperparameters import Optimisers
from ._lambda_balanced import LambdaBalanced
from ._layers import StandardiseBatch, StandardiseGroups


_RENAMED: dict[str, type] = {
    "Balanced": LambdaBalanced,
    "BatchNormalise": StandardiseBatch,
    "GroupNormalise": StandardiseGroups,
    "Optimizers": Optimisers,
}

if not TYPE_CHECKING:  # a type checker would take any misspelt name of the room for one of these

    def __getattr__(name: str) -> Any:
        if name not in _RENAMED:
            raise AttributeError(f"module 'jaxsolve.nets' has no attribute {name!r}")
        new = _RENAMED[name]
        message = f"nets.{name} is now nets.{new.__name__}; the old name goes with the next version"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return new
