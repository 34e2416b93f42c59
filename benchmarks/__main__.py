"""`python -m benchmarks`: what jaxsolve costs, beside what one would use instead."""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime, UTC
from pathlib import Path
from typing import Any

import jax

from ._said import BUSY, device_memory, machine, Others, peak_memory, Row
from ._timing import forget_programs


NAMES = (
    *("loops", "foundations", "first_contact", "theory", "kernels", "pytorch", "flow", "choice", "limits", "edge"),
    *("mechanics", "scaling", "diagnose", "models", "monitor", "sweeps", "throughput", "faults", "memory", "precision"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs benchmarks one after the other, in double precision, on the default device of JAX.

    Returns 1 if one of them ended by an exception (the others still run), 0 otherwise.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}; without a name, all")
    parser.add_argument("--quick", action="store_true", help="a part of each, in minutes")
    parser.add_argument("--device", choices=("cpu", "gpu", "tpu"), help="in place of the default one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the numbers, beside those of others")
    asked = parser.parse_args(arguments)
    names = [name.replace("-", "_") for name in asked.names] or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(NAMES)}")
    if asked.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    elif asked.device and asked.device != jax.default_backend():
        parser.error(f"JAX finds no {asked.device} here: its default device is a {jax.default_backend()}")
    # Of the processes that benchmarks start: the highest, by the name that JAX 0.4 knows too.
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "float32"
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32: errors are compared
    where, commit = machine(), _commit()  # what is kept below may be tracked
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    found: dict[str, Any] = {
        "machine": where,
        "benchmarks": _kept(asked.json, where),
    }
    for name in names:
        before = found["benchmarks"].get(name)
        for facts in _run(name, quick=asked.quick):
            found["benchmarks"][name] = facts | {"commit": commit, "quick": asked.quick}
            if asked.json and before is None:  # after each row, so that an interruption loses none
                _keep(asked.json, found)
        if asked.json:
            _keep(asked.json, found)
    return int(any(found["benchmarks"][name]["failed"] for name in names))


def _commit() -> str | None:
    """The commit of this clone, with `-dirty` where files have changed since; None where it is no clone."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or None


def _keep(file: Path, found: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.new")  # a kill while it is written leaves what was there
    beside.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(file)


def _kept(file: Path | None, where: dict[str, Any]) -> dict[str, Any]:
    """What the file holds of the same machine and versions, so that one benchmark can be repeated."""
    if file is None or not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    return before["benchmarks"] if before["machine"] == where else {}


def _run(name: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """What is known after each row, of a benchmark that has failed as long as it has not run to its end."""
    print(f"\n== {name}", flush=True)
    others, begin, rows = Others(), time.perf_counter(), list[dict[str, Any]]()

    def known(row: Row | None, *, failed: bool) -> dict[str, Any]:
        if row is not None:
            print(row, flush=True)
            rows.append(row.facts())
        seconds, busy, date = time.perf_counter() - begin, others.busy(), datetime.now(UTC).date().isoformat()
        facts = {"date": date, "failed": failed, "busy": busy, "seconds": seconds}
        return facts | {"peak_memory": peak_memory(), "device_memory": device_memory(), "rows": rows}

    try:
        for row in importlib.import_module(f".{name}", __package__).main(quick=quick):
            yield known(row, failed=True)
        facts = known(None, failed=False)
    except Exception as error:  # whatever it is, the other benchmarks are worth running
        traceback.print_exc()
        said = " ".join(str(error).split())[:200]
        facts = known(Row("ran to its end", 0, ">=", 1, note=f"{type(error).__name__}: {said}"), failed=True)
    noisy = f", NOISY, ratios are trusted more than times (goal: <= {BUSY:g} %)" if facts["busy"] > BUSY else ""
    print(
        f"{facts['seconds']:.0f} s in all, at most {facts['peak_memory'] / 1e9:.2f} GB held so far; "
        f"others used {facts['busy']:.0f} %{noisy}"
    )
    forget_programs()
    yield facts


if __name__ == "__main__":
    sys.exit(main())
