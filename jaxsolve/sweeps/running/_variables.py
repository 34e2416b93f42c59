"""The variables of a sweep's dataset: their names, shapes and attributes, and their rows for a batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._core import AbstractMarching, AbstractRandomAccess
from ..._results import RESULT_NAMES
from ...observe import Observable
from ..grid._axes import Zip
from ._builder import Dynamics
from ._runner import Batch, Lanes


LANE_VARIABLES = ("result", "steps", "t_end", "wall", "t_saved", "trust")
"""The variables that a sweep adds to its dataset: no observable may have these names."""
TIME = "gradient-flow time"

Rows = dict[str, np.ndarray]
"""Values by variable, one row per lane."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One variable: its dimensions and shape after the axes, the dtype of its values, and attributes such as units."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, Any]

    @property
    def missing(self) -> Any:
        """The value that marks lanes that have not run: NaN, -1 for signed integers, or 0 for other dtypes."""
        kind = np.dtype(self.dtype)
        if np.issubdtype(kind, np.inexact):
            return kind.type(np.nan)
        return kind.type(-1) if np.issubdtype(kind, np.signedinteger) else kind.type(0)

    def require(self, rows: np.ndarray) -> None:
        """Raises ValueError if rows have another shape or dtype."""
        if (tuple(rows.shape[1:]), str(rows.dtype)) != (self.shape, self.dtype):
            raise ValueError(
                f"{self.name!r} is {rows.dtype} of shape {rows.shape[1:]} here, but the store holds {self.dtype} of "
                f"shape {self.shape}; sweep them in stores of their own"
            )


def variables_of(
    observables: Sequence[Observable], dynamics: Dynamics, ts: Float[Array, " times"], lanes: Lanes
) -> tuple[Variable, ...]:
    """The variables for lanes like these (shapes and dtypes are enough); `result` is the last.

    `t_saved` is included if the saved times may differ from the given ones, `trust` if lanes may have a certificate.
    """
    # If axes or the problem choose the dynamics, groups may round times differently, and some may have certificates.
    unknown = not isinstance(dynamics, AbstractMarching | AbstractRandomAccess)
    found = [_variable(item.name, ("t", *item.dims), lanes[item.name], item.unit) for item in observables]
    if unknown or not np.array_equal(np.asarray(dynamics.times(ts)), np.asarray(ts)):
        found.append(_variable("t_saved", ("t",), lanes["t_saved"], TIME, long_name="time of the step saved"))
    if unknown or "trust" in lanes:
        vouched = "digits that the certificate vouches for; NaN without one"
        found.append(Variable("trust", (), (), "float32", {"units": "digits", "long_name": vouched}))
    wall = "wall time of the batch, shared by steps; without compilation"
    flags = {"flag_values": list(range(len(RESULT_NAMES))), "flag_meanings": " ".join(RESULT_NAMES)}
    return (
        *found,
        _variable("steps", (), lanes["steps"], "accepted steps"),
        _variable("t_end", (), lanes["t_end"], TIME),
        Variable("wall", (), (), "float64", {"units": "s", "long_name": wall}),
        Variable("result", (), (), "int8", flags),
    )


def require_dataset(observables: Sequence[Observable], outlines: Mapping[str, Any]) -> None:
    """Raises TypeError for observables that are not numbers, ValueError for a dimension with two sizes."""
    sizes: dict[str, int] = {}
    for item in observables:
        info = outlines[item.name]
        if jnp.issubdtype(info.dtype, jax.dtypes.extended) or np.dtype(info.dtype).kind not in "fiubc":
            raise TypeError(
                f"observable {item.name!r} is {info.dtype}, which a dataset cannot hold: return numbers, such as by "
                ".astype(jnp.float32) or, of a random key, jax.random.key_data"
            )
        for dim, size in zip(item.dims, info.shape[len(info.shape) - len(item.dims) :], strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    f"dimension {dim!r} of observable {item.name!r} has {size} entries, but {sizes[dim]} in another "
                    "observable: give it a name of its own"
                )


def require_own_names(axes: Sequence[Zip], observables: Sequence[Observable]) -> None:
    """Raises ValueError for names that would mean two things in the dataset."""
    names = {argument.name for axis in axes for argument in axis.arguments} | {axis.dim for axis in axes}
    known = {"t", *LANE_VARIABLES}.union(*(item.dims for item in observables))
    for item in observables:
        if item.name in known:
            raise ValueError(f"an observable may not be called {item.name!r}: the dataset has that; rename it")
    twice = names & (known | {item.name for item in observables})
    if twice:
        raise ValueError(
            f"axes may not be called {sorted(twice)}: the dataset has another variable of that name; rename the "
            "arguments of problem_fn"
        )


def rows_of(batch: Batch) -> Rows:
    """The rows of a batch, by variable."""
    # A closed form has no steps: then all lanes of the batch get the same share of the time.
    useful = np.maximum(batch.rows["steps"], 1)
    trust = np.full(len(useful), np.nan, np.float32)
    return {"trust": trust} | batch.rows | {"wall": batch.wall * useful / useful.sum()}


def _variable(name: str, dims: tuple[str, ...], values: Any, unit: str, **attrs: str) -> Variable:
    return Variable(name, dims, tuple(values.shape[1:]), str(np.dtype(values.dtype)), {"units": unit, **attrs})
