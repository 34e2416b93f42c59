"""Runs one benchmark by name."""

import importlib
import sys

import jax


NAMES = ("foundations", "kernels", "flow", "sweeps", "faults", "diagnose")


def main() -> None:
    """`python -m benchmarks NAME`, in double precision."""
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        raise SystemExit(f"usage: python -m benchmarks {{{','.join(NAMES)}}}")
    jax.config.update("jax_enable_x64", True)
    importlib.import_module(f".{sys.argv[1]}", __package__).main()


if __name__ == "__main__":
    main()
