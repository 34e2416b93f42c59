"""The fixed part of a store: its manifest, and the metadata and coordinates that make it a dataset."""

import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._extras import needs, see
from ..grid._blocks import cut, GridBlocks
from ..planning._identity import digest
from ..planning._plan import Plan
from ..running._execute import TracedGroup
from ..running._variables import LANE_VARIABLES, Variable, variables_of
from ._coding import checked, create_array
from ._files import ID, LOCK, MANIFEST, odd_entry, OURS, PARTIAL, read_regular, write_whole, WRITER
from ._memory import citation, coordinates, FORMAT, new_id, summary


log = logging.getLogger("jaxsolve")

ROOT = "zarr.json"  # the metadata of the whole store: once it is there, readers see a dataset
PATIENCE = 60.0  # seconds until files from one machine are visible to all that share its file system
NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,100}")
LOOK = 0.1  # seconds between checks


class Layout(NamedTuple):
    """The contents of a store besides its chunks."""

    manifest: dict[str, Any]  # as JSON: plan, attributes of the dataset, variables, blocks, batch sizes, runs
    variables: tuple[Variable, ...]
    blocks: GridBlocks


def new_layout(
    plan: Plan, facts: dict[str, Any], program: TracedGroup, labels: dict[str, str], run: dict[str, Any]
) -> Layout:
    """The layout of a new store. `facts` describe the plan; `labels` say what ran on which devices, if this is known.

    The program may be of any group: the lanes of all groups hold the same variables.
    """
    variables = variables_of(plan.observables, plan.dynamics, plan.ts, program.runner.out_info)
    largest = max(math.prod(item.shape) * np.dtype(item.dtype).itemsize for item in variables)
    blocks = cut(plan.axes, program.size, largest)
    head = {"citation": citation(), "plan_hash": digest(json.dumps(facts, sort_keys=True))}
    attributes = {**summary(labels, run), **head, "batch_size": program.size}
    manifest = {
        "format": FORMAT,
        "id": new_id(),
        **head,
        "plan": facts,
        "attributes": {**attributes, "manifest": f"{OURS}/{MANIFEST}"},
        "batch_size": {"asked": plan.batch_size, "used": {}},
        "variables": [dataclasses.asdict(item) for item in variables],
        "chunks": dataclasses.asdict(blocks),
        "runs": [run],
    }
    return Layout(manifest, variables, blocks)


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
    """The manifest of a store: who made it, when, where and by which plan; see `docs/sweeps.md`.

    Raises:
        FileNotFoundError: there is no store, or it is not a sweep's.
        ValueError: the manifest is damaged.

    Example:
        >>> import pathlib, tempfile
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = lambda target: js.Problem(net, jnp.eye(2), target * jnp.ones((2, 1)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "run.zarr"
        ...     _ = js.sweep(problem, {"target": [0.5, 1.0]}, js.FrozenKernel(), [1.0], store=path, progress=False)
        ...     js.sweeps.read_manifest(path)["plan"]["axes"]
        {'target': {'target': {'traced': [0.5, 1.0]}}}
    """
    file = Path(path) / OURS / MANIFEST
    if file.parent.is_symlink():
        raise ValueError(f"{file.parent} is a link, through which a store shows files that are not its own; remove it")
    data = read_regular(file)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} is damaged ({error}). Restore it from a backup, or start in another store; the arrays themselves "
            "can still be opened with xarray"
        ) from error


def has_manifest(path: Path) -> bool:
    """True if a folder is a sweep's store."""
    return (path / OURS / MANIFEST).exists()


def read_layout(path: Path) -> Layout:
    """The layout of a store in this or an earlier format. Raises ValueError if its manifest is damaged."""
    manifest = read_manifest(path)
    try:
        _ = manifest["format"], manifest["attributes"].items(), manifest["runs"][-1]
        shaped = lambda item: item | {key: tuple(item[key]) for key in ("dims", "shape")}
        variables = tuple(Variable(**shaped(item)) for item in manifest["variables"])
        blocks = GridBlocks(tuple(manifest["chunks"]["grid"]), tuple(manifest["chunks"]["block"]))
        if manifest["format"] == FORMAT:
            _ = manifest["plan"]["programs"], manifest["plan"]["versions"].items()
            _ = manifest["id"].encode()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path / OURS / MANIFEST} is damaged: it lacks {error}; start in another store") from error
    return Layout(manifest, variables, blocks)


def require_sizes(layout: Layout) -> None:
    """Raises ValueError for invalid folder names or sizes in a layout: paths of files are made from them."""
    natural = lambda sizes, least: all(type(size) is int and size >= least for size in sizes)
    grid, block, variables = layout.blocks.grid, layout.blocks.block, layout.variables
    named = all(isinstance(item.name, str) and is_storable(item.name) for item in variables)
    sized = natural((*grid, *block), 1) and all(natural(item.shape, 0) for item in variables)
    sized = sized and len(grid) == len(block) and all(b <= n for b, n in zip(block, grid, strict=True))
    if not (named and sized and "result" in {item.name for item in variables}):
        raise ValueError("its variables are not those that a sweep writes")
    if not all(np.dtype(item.dtype).kind in "biufc" for item in variables):
        raise ValueError("its variables are not numbers")


def require_format(path: Path, layout: Layout) -> None:
    """Raises ValueError for a store of another format, which can be read but not continued."""
    if (found := layout.manifest["format"]) != FORMAT:
        raise ValueError(
            f"{path} is a store of format {found}, but this version of jaxsolve continues stores of format {FORMAT} "
            "only: load and report on it as it is, finish it with the version that began it, or give another store"
        )


def require_storable(plan: Plan) -> None:
    """Raises ValueError for names that cannot be folder names."""
    items = [*(argument for axis in plan.axes for argument in axis.arguments), *plan.observables]
    for name in (item.name for item in items):
        if not is_storable(name):
            why = "Zarr takes '/' for a folder" if "/" in name else "it becomes the name of a folder"
            raise ValueError(
                f"{name!r} cannot be stored: {why}. Rename it: 1 to 100 letters, digits and other signs, "
                f"not only dots, not {OURS}, and no control characters"
            )


def is_storable(name: str) -> bool:
    """True if a variable of this name can have a folder."""
    return bool(NAME.fullmatch(name) and name.strip(".")) and name != OURS


def require_names(plan: Plan, layout: Layout) -> None:
    """Raises ValueError if a manifest has other arrays than this plan: its names decide which files are written."""
    given = {item.name: item.dims for item in layout.variables}
    known = {item.name: ("t", *item.dims) for item in plan.observables}
    lanes = dict.fromkeys(LANE_VARIABLES, ()) | {"t_saved": ("t",)}
    grid, block = layout.blocks.grid, layout.blocks.block
    whole = all(isinstance(size, int) and size > 0 for size in block)
    sized = grid == tuple(len(axis) for axis in plan.axes) and len(block) == len(grid) and whole
    if not (sized and known.items() <= given.items() <= (known | lanes).items() and "result" in given):
        raise ValueError(
            f"the manifest of this store is damaged, or was made by another program: it has the arrays {sorted(given)} "
            f"in chunks of {block} of a grid {grid}; start in another store"
        )


def await_layout(path: Path) -> Layout:
    """The layout of a store that another process makes; FileNotFoundError if it is not there within a minute."""
    begin = time.monotonic()
    while not (path / ROOT).exists() or not has_manifest(path):
        if time.monotonic() - begin > PATIENCE:
            raise FileNotFoundError(
                f"{path} does not exist for this process: a store that several processes fill must be a folder that "
                "all of them can access"
            )
        time.sleep(LOOK)
    return read_layout(path)


def skeleton(plan: Plan, layout: Layout) -> dict[str, bytes]:
    """The files of a store in which nothing has run: metadata and coordinates, with the root's metadata last.

    They are made in memory, so that they can be written in this order and compared with those on disk.
    """
    import xarray

    with needs("sweeps", "a store"):
        import zarr
        from zarr.storage import MemoryStore

    files: dict[str, Any] = {}
    store = MemoryStore(files)
    data = xarray.Dataset(coords=coordinates(plan.axes, plan.ts), attrs=layout.manifest["attributes"])
    encoding: Any = {name: {"compressors": checked()} for name in data.coords}
    data.to_zarr(store, mode="w", consolidated=False, zarr_format=3, encoding=encoding)
    group = zarr.open_group(store, mode="r+")
    for item in layout.variables:
        dims = [*(axis.dim for axis in plan.axes), *item.dims]
        create_array(group, item, layout.blocks, dimension_names=dims, attributes=item.attrs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(store)
    whole = {key: value.to_bytes() for key, value in files.items()}
    # These metadata make Zarr treat our folder as an empty group and skip its contents.
    ours = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    root = whole.pop(ROOT)
    return {f"{OURS}/{ROOT}": json.dumps(ours).encode()} | whole | {ROOT: root}


def restore(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a skeleton that are missing or damaged."""
    complete = (path / ROOT).exists()
    for key, content in files.items():
        if not _is_sound(path / key, content):
            if complete:
                log.warning("%s: %s was damaged, missing, or rounded elsewhere; it is restored", path, key)
            write_whole(path / key, content)


def relabel(path: Path, attributes: dict[str, Any]) -> None:
    """Replaces all attributes of the dataset."""
    root = json.loads((path / ROOT).read_text()) | {"attributes": attributes}
    write_whole(path / ROOT, json.dumps(root, indent=2).encode())


def _is_sound(file: Path, content: bytes) -> bool:
    """True if a file is there, as this process would write it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = read_regular(file)
        return found == content or (file.name == ROOT and json.loads(found) == json.loads(content))
    return False


def require_ours(path: Path, *, resume: bool) -> None:
    """Raises FileExistsError if the path holds something that must not be touched.

    The remains of a sweep that died before it wrote a manifest may be overwritten.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file; a store is a folder. Choose another store")
    odd = odd_entry(path)
    if odd is not None:
        raise FileExistsError(
            f"{path} holds {odd}, through which something else would be read or written to; remove it, or choose "
            "another store"
        )
    if has_manifest(path):
        if not resume:
            raise FileExistsError(
                f"{path} holds a sweep already; give resume=True to continue it, or another store"
                + see("a-store-exists")
            )
        return
    begun = {path / OURS, *(path / OURS / name for name in (LOCK, WRITER, ID))}
    others = [item for item in path.rglob("*") if item not in begun and item.suffix != PARTIAL]
    if others and not has_manifest(path):  # another process may have begun in the meantime
        raise FileExistsError(
            f"{path} holds something else than a sweep's store ({others[0].relative_to(path)}, ...), which is left "
            "alone; choose another store"
        )
