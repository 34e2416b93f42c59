"""The differences between two plans, in words."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._identity import plan_facts, plan_settings
from ._plan import Plan


ANYTHING = "*"  # users write it into a manifest, for a field that need not agree
SHOWN = 8  # differences in one message
ABSENT = object()
PROGRAMS = {"problem": "the problem's program", "run": "the program of dynamics and observables"}


def differences(old: Any, new: Any, tolerance: float = 0.0, path: str = "") -> Iterator[str]:
    """The differences between two JSON values, one line per field: its name, its value in the store, its value now.

    A field that is "*" in the store agrees with everything. Floats need agree only to the tolerance: machines round
    `jnp.geomspace` differently.
    """
    if old == ANYTHING:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else str(key)
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), tolerance, where)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, tolerance, f"{path}[{index}]")
    elif not _same(old, new, tolerance):
        yield f"{path}: {_short(old)} in the store, {_short(new)} now"


def _same(old: Any, new: Any, tolerance: float) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=tolerance)
    kinds = float, bool  # 1 == 1.0 == True in Python, but they differ here
    return old == new and all(isinstance(old, kind) == isinstance(new, kind) for kind in kinds)


def _short(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({len(value)} entries)"


def _in_programs(old: Any, new: list[dict[str, Any]]) -> Iterator[str]:
    """The groups of lanes whose programs differ, one line each. Axes agree, so both plans have the same groups."""
    if old == ANYTHING:
        return
    for before, now in zip(old, new, strict=True):
        group = ", ".join(f"{name} = {value}" for name, value in now["static"].items())
        # The program of a run contains its problem, so the problem comes first.
        changed = next((said for part, said in PROGRAMS.items() if before[part] != now[part]), None)
        if changed:
            yield f"{changed} differs{f' in group {group}' if group else ''}"


def require_same_plan(path: Path, manifest: Path, old: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The facts of a plan; raises ValueError with the differences if the store has those of another one.

    Programs are compared only if the same versions traced them. The name of the problem function, or the table of a
    config, only helps to explain why programs differ.
    """
    new = plan_settings(plan)
    told = lambda facts: {key: facts[key] for key in new if key not in ("problem_fn", "versions")}
    found = list(differences(told(old), told(new), 1e-12 if new["precision"]["x64"] else 1e-6))
    if found:
        raise ValueError(_refusal(path, found))
    new = plan_facts(plan)
    found = list(_in_programs(old["programs"], new["programs"])) if old["versions"] == new["versions"] else []
    if found:
        why = differences(old["problem_fn"], new["problem_fn"], path="problem_fn")
        raise ValueError(
            f"{_refusal(path, [*found, *why])}\nIf no result is altered, or you accept results of both in one store, "
            f'set "programs" to "{ANYTHING}" in the plan in {manifest}.'
        )
    return new


def _refusal(path: Path, found: list[str]) -> str:
    lines = "\n".join(f"  {line}" for line in found[:SHOWN])
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"{path} holds a sweep of another plan:\n{lines}{more}\nChoose another store, or give the arguments it was "
        "made with."
    )
