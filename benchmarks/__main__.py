"""`python -m benchmarks`: what jaxsolve costs, beside what one would use instead."""

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import datetime, UTC
from pathlib import Path
from typing import Any

import jax

from ._said import BUSY, machine, Others, peak_memory, Row
from ._timing import forget_programs


NAMES = (
    *("foundations", "first_contact", "theory", "kernels", "pytorch", "flow", "choice", "limits", "edge", "scaling"),
    *("diagnose", "sweeps", "throughput", "faults", "memory"),
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
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(NAMES)}")
    if asked.device:
        jax.config.update("jax_platforms", asked.device)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32: errors are compared
    where = machine()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    names = asked.names or NAMES
    found: dict[str, Any] = {
        "machine": where,
        "quick": asked.quick,
        "benchmarks": _kept(asked.json, where, asked.quick),
    }
    for name in names:
        found["benchmarks"][name] = _run(name, quick=asked.quick)
        if asked.json:  # after each, so that an interruption loses one
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return int(any(found["benchmarks"][name]["failed"] for name in names))


def _kept(file: Path | None, where: dict[str, Any], quick: bool) -> dict[str, Any]:
    """What the file holds of the same machine, versions and part, so that one benchmark can be repeated."""
    if file is None or not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    return before["benchmarks"] if (before["machine"], before["quick"]) == (where, quick) else {}


def _run(name: str, *, quick: bool) -> dict[str, Any]:
    print(f"\n== {name}", flush=True)
    others, begin, rows, failed = Others(), time.perf_counter(), list[Row](), False
    try:
        for row in importlib.import_module(f".{name}", __package__).main(quick=quick):
            print(row, flush=True)
            rows.append(row)
    except Exception as error:  # whatever it is, the other benchmarks are worth running
        traceback.print_exc()
        said = " ".join(str(error).split())[:200]
        rows.append(Row("ran to its end", 0, ">=", 1, note=f"{type(error).__name__}: {said}"))
        print(rows[-1], flush=True)
        failed = True
    seconds, busy, memory = time.perf_counter() - begin, others.busy(), peak_memory()
    noisy = f", NOISY, ratios are trusted more than times (goal: <= {BUSY:g} %)" if busy > BUSY else ""
    print(f"{seconds:.0f} s in all, at most {memory / 1e9:.2f} GB held so far; others used {busy:.0f} %{noisy}")
    date, kept = datetime.now(UTC).date().isoformat(), [row.facts() for row in rows]
    forget_programs()
    facts = {"date": date, "failed": failed, "busy": busy, "seconds": seconds, "peak_memory": memory}
    return facts | {"rows": kept}


if __name__ == "__main__":
    sys.exit(main())
