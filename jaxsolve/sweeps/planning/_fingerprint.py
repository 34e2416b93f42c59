"""What tells two plans apart."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..running._builder import Builder
from ._describe import describe_value
from ._plan import Plan


ANYTHING = "*"  # what a person writes into a manifest for what need not agree
CODE, FIRST = "problem_fn", "first_problem"  # a field of a plan, and one of a manifest beside the plan
SHOWN = 8  # differences in one message


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Everything that decides the results of a sweep, as JSON."""
    config: Any = jax.config
    values = lambda item: {"traced": np.asarray(item.values)} if item.traced else {"static": list(item.values)}
    return {
        "dims": [axis.dim for axis in plan.axes],
        "axes": {axis.dim: {item.name: describe_value(values(item)) for item in axis.arguments} for axis in plan.axes},
        "dynamics": {"name": plan.name, "settings": describe_value(plan.dynamics)},
        "ts": describe_value(plan.ts),
        "observe": {item.name: describe_value(item) for item in plan.observables},
        "precision": {"x64": config.jax_enable_x64, "matmul": str(config.jax_default_matmul_precision)},
        "problem_fn": describe_value(plan.problem_fn),
    }


def first_problem(plan: Plan) -> dict[str, list[Any]]:
    """Two numbers for each array of the first cell's problem.

    They differ where what no description of a function shows has changed: files, the environment, objects of libraries.
    """
    group = plan.groups[0]
    plan.check([group])
    builder = Builder(plan.problem_fn, plan.dynamics, group)
    made = jax.jit(lambda cell: eqx.filter(builder.lane(builder.leaves(cell))[0], eqx.is_inexact_array))
    leaves = jax.tree_util.tree_leaves_with_path(made(builder.cell))
    return {jax.tree_util.keystr(path, simple=True, separator="."): _numbers(np.asarray(leaf)) for path, leaf in leaves}


def _numbers(array: np.ndarray) -> list[Any]:
    """The sum of an array's absolute values, and another sum in units of it; neither cancels."""
    flat = array.astype(complex if array.dtype.kind == "c" else float).ravel()
    size = float(np.sum(np.abs(flat)))
    mixed = float(np.sum(np.real(flat) * np.cos(np.arange(flat.size)))) / (size or 1.0)
    return [describe_value(size), describe_value(2 + mixed)]


def differences(old: Any, new: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """Where two plans differ, one line per field: its name, what is in the store, what it is now.

    A field that is "*" in the store agrees with everything. Numbers agree to the tolerance: another machine rounds
    `jnp.geomspace` in its own way.
    """
    if (old == ANYTHING and path) or _same(old, new, tolerance):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else str(key)
            if key in new and key in old:
                yield from differences(old[key], new[key], tolerance, where)
            else:
                before, now = (_short(facts[key]) if key in facts else "absent" for facts in (old, new))
                yield f"{where}: {before} in the store, {now} now"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 4:
        wrong = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if not _same(a, b, tolerance)]
        said = f"{len(wrong)} of {len(old)} values differ, the first is [{wrong[0]}]"
        yield f"{path}: {said}: {_short(old[wrong[0]])} in the store, {_short(new[wrong[0]])} now"
    else:
        yield f"{path}: {_short(old)} in the store, {_short(new)} now"


def _same(old: Any, new: Any, tolerance: float) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=tolerance)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_same(a, b, tolerance) for a, b in zip(old, new, strict=True))
    return old == new and isinstance(old, bool) == isinstance(new, bool)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({len(value)} entries)"


def require_same_plan(path: Path, manifest: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises ValueError, showing the fields that differ, if a store was made by another plan."""
    _refuse(path, manifest, differences(old, new, _tolerance(new)))


def require_same_problem(path: Path, manifest: Path, content: dict[str, Any], plan: Plan) -> None:
    """Raises ValueError if a store was begun with another first problem, and nobody accepted another problem_fn."""
    accepted = f'"{ANYTHING}"' in json.dumps(content["plan"][CODE])
    if FIRST in content and not accepted:
        _refuse(path, manifest, differences(content[FIRST], first_problem(plan), _tolerance(content["plan"]), FIRST))


def _tolerance(facts: dict[str, Any]) -> float:
    return 1e-12 if facts["precision"]["x64"] else 1e-6


def _refuse(path: Path, manifest: Path, different: Iterable[str]) -> None:
    found = list(different)
    if not found:
        return
    lines = "\n".join(f"  {line}" for line in found[:SHOWN])
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    code = (
        "\nIf a change of problem_fn alters no result, or you accept results of both versions in one store, set what "
        f'differs to "{ANYTHING}" in the plan in {manifest}.'
        if any(line.startswith((CODE, FIRST)) for line in found)
        else ""
    )
    raise ValueError(
        f"{path} holds a sweep of another plan:\n{lines}{more}\nChoose another store, or give the arguments it was "
        f"made with.{code}"
    )
