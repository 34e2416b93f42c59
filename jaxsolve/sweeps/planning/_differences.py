"""Where two plans differ."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ._fingerprint import ANYTHING, CODE, first_problem
from ._plan import Plan


CONTAINERS = ("<dict>", "<list>", "<set>")
FIRST = "first_problem"  # a field of a manifest, beside the plan
SHOWN = 8  # differences in one message
DRAWS = {"prng": "threefry2x32", "threefry_partitionable": True}  # JAX's defaults, with which older stores were made


def differences(old: Any, new: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """Where two plans differ, one line per field: its name, what is in the store, what it is now.

    A field that is "*" in the store agrees with everything. Numbers agree to the tolerance: another machine rounds
    `jnp.geomspace` in its own way. A container of which only the type was told agrees with any: it may be a memory that
    functions fill.
    """
    if (old == ANYTHING and path) or _same(old, new, tolerance):
        return
    if any(one in CONTAINERS and isinstance(other, dict | list) for one, other in ((old, new), (new, old))):
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
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key], tolerance) for key in old)
    kinds = float, bool  # integers are not the floats, and truth values not the integers, that they equal
    return old == new and all(isinstance(old, kind) == isinstance(new, kind) for kind in kinds)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({len(value)} entries)"


def require_same_plan(path: Path, manifest: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises ValueError, showing the fields that differ, if a store was made by another plan."""
    if isinstance(old["precision"], dict):
        old = old | {"precision": DRAWS | old["precision"]}
    tolerance = 1e-12 if new["precision"]["x64"] else 1e-6
    _refuse(path, manifest, differences(old, new, tolerance))


def require_same_problem(path: Path, manifest: Path, content: dict[str, Any], plan: Plan) -> None:
    """Raises ValueError if a store was begun with another first problem, and nobody accepted another problem_fn."""
    accepted = f'"{ANYTHING}"' in json.dumps(content["plan"][CODE])
    if FIRST in content and not accepted:
        # Other devices decompose matrices in their own way, and networks may be of single precision.
        _refuse(path, manifest, differences(content[FIRST], first_problem(plan), 1e-6, FIRST))


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
