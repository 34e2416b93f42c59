"""The private names of jaxsolve that tests of sweeps need, and why: they import them from here.

Faults, waits and other devices are patched in where no public name reaches; where those places are is said only here.
"""

# What a problem chooses, to compare with what a sweep says that it runs.
from jaxsolve._core._dynamics import resolve

# What the progress says of rates and times, at times that a test sets.
from jaxsolve.sweeps import _progress
from jaxsolve.sweeps._progress import Progress

# How chunks are dealt out, for more processes than a machine can start.
from jaxsolve.sweeps._sweep import dealt

# Waits are made short, by patching their seconds.
from jaxsolve.sweeps.cluster import _dask

# What must agree between processes, where two that differ cannot be started.
from jaxsolve.sweeps.cluster._workers import Conditions

# The lanes of a group: what a sweep would run, without running it.
from jaxsolve.sweeps.grid._axes import groups, read_axes

# How a grid is cut, which holds for any grid.
from jaxsolve.sweeps.grid._blocks import cut

# A function of padded widths, which travels to workers.
from jaxsolve.sweeps.grid._padded import PaddedProblem

# Numbers in a description, and how many groups it shows.
from jaxsolve.sweeps.planning import _plan

# What identifies a program and a plan, without a store.
from jaxsolve.sweeps.planning._identity import describe_value, plan_facts, program_text

# A plan whose tracing is patched away: a complete store needs none.
from jaxsolve.sweeps.planning._plan import Plan, read_plan

# Memory that runs out, and ways of running that this device would not choose, are patched in.
from jaxsolve.sweeps.running import _execute

# Where a lane finds its place in the grid, from which its random key is made; several devices, where there is one.
from jaxsolve.sweeps.running._builder import cores, Devices, INDEX, read_devices

# One group in one way, to compare with the others; what ran, in a line; batches that do not fit into memory.
from jaxsolve.sweeps.running._execute import caption, OutOfMemory, run_group, ShrinkingProgram, trace_group, TracedGroup

# The three ways of running lanes, each on any device; batches made by hand; which lanes run first.
from jaxsolve.sweeps.running._marches import Lockstep, Looped

# Chunks filled in any order, without running anything.
from jaxsolve.sweeps.running._runner import (
    _factorizes_batches as factorizes_batches,
    Batch,
    Fused,
    LaneQueue,
    Origin,
    WINDOW,
)

# Rows of a batch, to compare bit by bit.
from jaxsolve.sweeps.running._variables import rows_of, Variable

# Waits and sizes of the store are made small, and its writing fails where it is told to.
from jaxsolve.sweeps.store import _chunks, _files, _layout, _zarr
from jaxsolve.sweeps.store._chunks import Chunks

# The lock alone.
from jaxsolve.sweeps.store._files import Lock, write_json

# The commit that a manifest notes, of repositories that no sweep would stand in.
from jaxsolve.sweeps.store._memory import commit

# A store without a sweep, and one that another process holds.
from jaxsolve.sweeps.store._zarr import HeldStore, JoinedStore


__all__ = [
    "Batch",
    "Chunks",
    "Conditions",
    "Devices",
    "ShrinkingProgram",
    "Fused",
    "HeldStore",
    "INDEX",
    "JoinedStore",
    "Lock",
    "Lockstep",
    "Looped",
    "Origin",
    "OutOfMemory",
    "PaddedProblem",
    "Plan",
    "plan_facts",
    "program_text",
    "Progress",
    "TracedGroup",
    "Variable",
    "WINDOW",
    "LaneQueue",
    "_chunks",
    "_dask",
    "_execute",
    "_files",
    "_layout",
    "_plan",
    "_progress",
    "_zarr",
    "caption",
    "commit",
    "cores",
    "cut",
    "dealt",
    "describe_value",
    "factorizes_batches",
    "groups",
    "read_axes",
    "read_devices",
    "read_plan",
    "resolve",
    "rows_of",
    "run_group",
    "trace_group",
    "write_json",
]
