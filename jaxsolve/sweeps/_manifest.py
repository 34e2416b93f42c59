"""What a store says of the sweep that made it: its plan, and where and with what it ran."""

import datetime
import hashlib
import json
import math
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ._code import PACKAGE
from ._describe import describe_value
from ._frame import Frame


OURS = "_jaxsolve"  # the folder of a store that holds what is not Zarr
MANIFEST = "manifest.json"
FORMAT = 1  # of the store; a change that old versions cannot read raises it
LIBRARIES = ("jaxsolve", "jax", "jaxlib", "equinox", "diffrax", "optax", "numpy")
DEVICE = ("device", "devices", "backend")  # what a run says of its devices
ANYTHING = "*"  # what a person writes into a manifest for what need not agree
GIT_SECONDS = 5
SHOWN = 8  # differences in one message


def plan_facts(problem_fn: Callable[..., Any], frame: Frame) -> dict[str, Any]:
    """Everything that decides the results of a sweep, as JSON."""
    config: Any = jax.config
    return {
        "dims": [axis.dim for axis in frame.axes],
        "axes": {axis.dim: {member.name: _values(member) for member in axis.members} for axis in frame.axes},
        "dynamics": {"name": frame.dynamics.name, "settings": describe_value(frame.dynamics)},
        "ts": describe_value(frame.ts),
        "observe": {item.name: describe_value(item) for item in frame.observables},
        "precision": {"x64": config.jax_enable_x64, "matmul": str(config.jax_default_matmul_precision)},
        "problem_fn": describe_value(problem_fn),
    }


def _values(member: Any) -> dict[str, Any]:
    kind = "traced" if member.traced else "static"
    return {kind: describe_value(np.asarray(member.values) if member.traced else list(member.values))}


def plan_hash(plan: dict[str, Any]) -> str:
    """A short name for a plan."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


def differences(old: Any, new: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """Where two plans differ, one line per field: its name, what is in the store, what was asked for now.

    A field that is "*" in the store agrees with everything. Numbers agree to the tolerance: another machine rounds
    `jnp.geomspace` in its own way.
    """
    if old == ANYTHING or _same(old, new, tolerance):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else str(key)
            if key not in new:
                yield f"{where}: {_short(old[key])} in the store, absent now"
            elif key not in old:
                yield f"{where}: absent in the store, {_short(new[key])} now"
            else:
                yield from differences(old[key], new[key], tolerance, where)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 4:
        wrong = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if not _same(a, b, tolerance)]
        first = wrong[0]
        yield (
            f"{path}: {len(wrong)} of {len(old)} values differ, the first is [{first}]: {_short(old[first])} in the "
            f"store, {_short(new[first])} now"
        )
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


def require_same_plan(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises ValueError, showing the fields that differ, if a store was made by another plan."""
    found = list(differences(old, new, 1e-12 if new["precision"]["x64"] else 1e-6))
    if not found:
        return
    lines = "\n".join(f"  {line}" for line in found[:SHOWN])
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    code = ""
    if any(line.startswith("problem_fn") for line in found):
        code = (
            "\nIf a change of problem_fn alters no result, or you accept results of both versions in one store, set "
            f'what differs to "{ANYTHING}" in the plan in {path / OURS / MANIFEST}.'
        )
    raise ValueError(
        f"{path} holds a sweep of another plan:\n{lines}{more}\nChoose another store, or give the arguments it was "
        f"made with.{code}"
    )


def citation() -> str:
    """How to cite the library."""
    facts = metadata.metadata("jaxsolve")
    return f"{facts['Author']}: jaxsolve. {facts['Summary']} Version {facts['Version']}."


def environment() -> dict[str, Any]:
    """Where and with what this process runs."""
    devices = jax.local_devices()
    return {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "backend": jax.default_backend(),
        "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def summary(labels: dict[str, str], run: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a dataset.

    Arguments:
        labels: what ran, and on which devices.
        run: from `environment` or `run_facts`.
    """
    facts = {
        **labels,
        "created": _now(),
        "platform": run["platform"],
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }
    revisions = [f"{name} {revision}" for name, revision in run.get("git", {}).items() if revision]
    return facts | ({"git": ", ".join(revisions)} if revisions else {})


def run_facts(*, elsewhere: bool) -> dict[str, Any]:
    """One entry of a manifest's list of runs.

    Arguments:
        elsewhere: whether the lanes run in other processes: on which devices, those tell later.
    """
    who = {"host": socket.gethostname(), "pid": os.getpid()}
    git = {"jaxsolve": git_revision(PACKAGE, "__init__.py"), "here": git_revision(Path.cwd())}
    what = {name: fact for name, fact in environment().items() if not (elsewhere and name in DEVICE)}
    return {"started": _now(), **who, **what, "git": git}


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is different from an earlier run, of what can change the last digits."""
    keys = [key for key in (*DEVICE, "versions", "xla_flags") if key in before and key in now]
    old, new = ({**{key: run[key] for key in keys}, "git": run["git"]["jaxsolve"]} for run in (before, now))
    return [line.replace("in the store", "before") for line in differences(old, new, 0.0)]


def git_revision(folder: Path, tracked: str | None = None) -> str | None:
    """The commit of a folder's repository, with `-dirty` for changes since.

    None without git, without a repository, or if it is not the one that tracks the file `tracked`.
    """
    commands = [["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]]
    if tracked is not None:
        commands.insert(0, ["ls-files", "--error-unmatch", tracked])
    said = ""
    for command in commands:
        try:
            done = subprocess.run(
                ["git", *command], cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        said = done.stdout.strip()
    return said or None


def new_manifest(plan: dict[str, Any], details: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a new store.

    Arguments:
        plan: from `plan_facts`.
        details: how the store is laid out.
    """
    head = {"format": FORMAT, "citation": citation(), "created": _now(), "plan_hash": plan_hash(plan)}
    return {**head, "plan": plan, **details, "runs": []}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
