"""The devices that the lanes of a sweep run on."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..._checks import describe


AXIS = "lanes"

# Every core has lanes of its own, so XLA must not cut loops over an array into tasks for several.
_UNCUT: dict[str, str | bool] = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


class Devices:
    """Devices of one kind, all of them of this process, which share the rows of batches equally."""

    def __init__(self, devices: Sequence[Any]):
        self.all = tuple(devices)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def on_cpu(self) -> bool:
        """Whether they are processors of the host."""
        return self.all[0].platform == "cpu"

    @property
    def streams(self) -> int:
        """Programs to run at once: one per core where all cores are one device, which lets them run in threads."""
        return cores() if self.on_cpu and len(self) == 1 else 1

    def lower(self, fn: Callable[..., Any], arguments: Sequence[Any]) -> jax.stages.Lowered:
        """Lowers a function of one device's rows, given the shapes of its arguments there, for all devices at once."""
        if len(self) == 1:
            with jax.default_device(self.all[0]):
                return jax.jit(fn).lower(*arguments)
        mesh, rows = Mesh(np.array(self.all), (AXIS,)), PartitionSpec(AXIS)
        spread = jax.shard_map(fn, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        placed = NamedSharding(mesh, rows)
        whole = lambda part: jax.ShapeDtypeStruct((len(self) * part.shape[0], *part.shape[1:]), part.dtype)
        return jax.jit(spread, in_shardings=placed, out_shardings=placed).lower(*jax.tree.map(whole, arguments))

    def compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Compiles what `lower` gave, once in a process: a sweep of the same kind makes the same program again."""
        text = hashlib.sha256(lowered.as_text().encode()).digest()
        return _compiled(_Program((text, lowered.in_tree, lowered.out_tree, self.all), lowered), self.on_cpu)


@dataclasses.dataclass(frozen=True)
class _Program:
    """A lowered program, compared by what it does, how it is called, and where it runs."""

    same: Hashable
    lowered: jax.stages.Lowered = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=16)
def _compiled(program: _Program, on_cpu: bool) -> jax.stages.Compiled:
    return program.lowered.compile(compiler_options=_UNCUT if on_cpu else None)


def read_devices(devices: Any) -> Devices:
    """The devices to run on; None means all local ones, or the one that `jax.default_device` names.

    Raises:
        TypeError: devices is not a sequence of JAX devices.
        ValueError: it is empty, or names one twice, devices of several kinds, or those of another process.
    """
    if devices is None:
        default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        return Devices([default] if isinstance(default, jax.Device) else jax.local_devices(backend=default))
    if not isinstance(devices, Sequence) or not all(isinstance(device, jax.Device) for device in devices):
        raise TypeError(f"devices must be a sequence such as jax.local_devices(), or None, got {describe(devices)}")
    if not devices:
        raise ValueError("devices is empty; give at least one, or None for all local ones")
    if len(set(devices)) != len(devices):
        raise ValueError(f"devices names one twice: {list(devices)}")
    if len({device.platform for device in devices}) > 1:
        raise ValueError(f"devices must be of one kind, got {list(devices)}")
    if any(device.process_index != jax.process_index() for device in devices):
        raise ValueError(f"devices must belong to this process, such as those of jax.local_devices(); got {devices}")
    return Devices(devices)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
