"""`python -m benchmarks`: what jaxsolve costs, beside what one would use instead."""

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from ._said import BUSY, busy, machine, peak_memory, Row


NAMES = ("foundations", "first_contact", "kernels", "flow", "limits", "edge", "scaling", "diagnose", "sweeps", "faults")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs benchmarks one after the other, in double precision, on the default device of JAX."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}; without a name, all")
    parser.add_argument("--quick", action="store_true", help="a part of each, in minutes")
    parser.add_argument("--device", choices=("cpu", "gpu", "tpu"), help="in place of the default one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the numbers")
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
    found: dict[str, Any] = {"machine": where, "quick": asked.quick, "benchmarks": {}}
    for name in asked.names or NAMES:
        found["benchmarks"][name] = _run(name, quick=asked.quick)
        if asked.json:  # after each, so that an interruption loses one
            asked.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _run(name: str, *, quick: bool) -> dict[str, Any]:
    others, begin, rows = busy(), time.perf_counter(), list[Row]()
    noisy = f": NOISY, ratios are trusted more than times (goal: <= {BUSY:g} %)" if others > BUSY else ""
    print(f"\n== {name} (others use {others:.0f} % of the cores{noisy})", flush=True)
    for row in importlib.import_module(f".{name}", __package__).main(quick=quick):
        print(row, flush=True)
        rows.append(row)
    seconds, memory = time.perf_counter() - begin, peak_memory()
    print(f"{seconds:.0f} s in all, at most {memory / 1e9:.2f} GB held so far")
    return {"rows": [row.facts() for row in rows], "busy": others, "seconds": seconds, "peak_memory": memory}


if __name__ == "__main__":
    main()
