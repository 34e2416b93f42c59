"""A check for stores from other versions of libraries, whose programs differ: a lane, run again, must agree."""

import numpy as np

from ..planning._plan import Plan
from ..running._execute import ShrinkingProgram
from ..running._variables import Rows, rows_of
from ._chunks import Chunks


TOLERANCES = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}  # relative to the largest number
ROUNDED = ("steps", "wall", "trust")  # may change when only rounding does


def require_same_lane(chunks: Chunks, plan: Plan, before: dict[str, str], now: dict[str, str]) -> None:
    """Raises ValueError if one finished lane of a store, run again, differs from what the earlier versions gave."""
    found = chunks.finished()
    if found is None:
        return
    lane, old = found
    new = _run(plan, lane)
    off = {name: _distance(values, new[name]) for name, values in old.items() if name not in ROUNDED}
    wrong = [name for name, size in off.items() if not size <= TOLERANCES.get(str(old[name].dtype), 0.0)]
    if wrong:
        changed = ", ".join(
            f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name]
        )
        raise ValueError(
            f"{chunks.path} was filled by other versions ({changed}), and its lane {_place(plan, lane)}, run again, "
            f"differs in {wrong[0]!r} by {off[wrong[0]]:.1e} of the largest value: give another store, the arguments "
            "that it was made with, or those versions"
        )


def _run(plan: Plan, lane: int) -> Rows:
    wanted = np.zeros(plan.lanes, bool)
    wanted[lane] = True
    group = next(group for group in plan.groups if lane in group.lanes)
    ((part, mine),) = plan.ways(group).parts(wanted)
    program = plan.trace(part, size=1)
    program.runner.compile()
    (batch,) = ShrinkingProgram(program).run(mine)
    return rows_of(batch)


def _distance(old: np.ndarray, new: np.ndarray) -> float:
    """The largest difference, relative to the largest number; infinite if NaN or infinity is in only one of the two."""
    if old.shape != new.shape or not np.array_equal(np.isfinite(old), np.isfinite(new)):
        return np.inf
    known = np.isfinite(old)
    if not known.any():
        return 0.0
    kind = complex if old.dtype.kind == "c" else float
    old, new = old[known].astype(kind), new[known].astype(kind)
    return float(np.max(np.abs(new - old)) / max(np.max(np.abs(old)), np.finfo(float).tiny))


def _place(plan: Plan, lane: int) -> str:
    indices = np.unravel_index(lane, [len(axis) for axis in plan.axes])
    return ", ".join(
        f"{item.name} = {item.labels[index]}"
        for axis, index in zip(plan.axes, indices, strict=True)
        for item in axis.arguments
    )
