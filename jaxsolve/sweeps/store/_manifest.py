"""Where and with what a sweep ran, as its dataset and its store say."""

import datetime
import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from ..._revision import revision
from ..planning._fingerprint import differences
from ..planning._source import PACKAGE
from ..running._runner import Origin


FORMAT = 2  # of the store; a change that other versions cannot carry on raises it
LIBRARIES = ("jaxsolve", "jax", "jaxlib", "equinox", "diffrax", "optax", "numpy")
DEVICE = ("device", "devices", "backend")  # what a run says of its devices
BETWEEN = "; "  # devices and dynamics of one dataset


def citation() -> str:
    """How to cite the library.

    Example:
        >>> js.sweeps.citation()
        'The jaxsolve developers: jaxsolve. ... Version ...'
    """
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
    """The attributes of a dataset, of what ran on which devices, and facts of `environment` or `run_facts`."""
    facts = {
        **labels,
        "created": _now(),
        "platform": run["platform"],
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }
    revisions = [f"{name} {commit}" for name, commit in run.get("git", {}).items() if commit]
    return facts | ({"git": ", ".join(revisions)} if revisions else {})


def run_facts(*, elsewhere: bool) -> dict[str, Any]:
    """One entry of a manifest's list of runs. Lanes that run elsewhere tell later on which devices."""
    who = {"host": socket.gethostname(), "pid": os.getpid()}
    git = {"jaxsolve": revision(PACKAGE, "__init__.py"), "here": revision(Path.cwd())}
    what = {name: fact for name, fact in environment().items() if not (elsewhere and name in DEVICE)}
    return {"started": _now(), **who, **what, "git": git}


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is different from an earlier run, of what can change the last digits."""
    keys = [key for key in (*DEVICE, "versions", "xla_flags") if key in before and key in now]
    old, new = ({**{key: run[key] for key in keys}, "git": run["git"]["jaxsolve"]} for run in (before, now))
    return [line.replace("in the store", "before") for line in differences(old, new, 0.0)]


def credited(labels: Mapping[str, str], origin: Origin) -> dict[str, str]:
    """The attributes of a dataset that say what ran, and on which devices, with this one among them."""
    new = {"dynamics": origin.dynamics, "device": origin.device}
    return {name: joined(labels.get(name), text) for name, text in new.items()}


def joined(texts: str | None, text: str) -> str:
    """A list of texts, with one that may be new."""
    return BETWEEN.join(dict.fromkeys([*([] if texts is None else texts.split(BETWEEN)), text]))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
