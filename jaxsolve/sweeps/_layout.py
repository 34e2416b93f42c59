"""What a store holds besides its chunks: the manifest, and the metadata and coordinates that make it a dataset."""

import base64
import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ._axes import Group
from ._blocks import Blocks, cut
from ._files import checksum, PART, write_json, write_whole
from ._frame import Frame
from ._manifest import FORMAT, MANIFEST, new_manifest, OURS, summary
from ._store import ROOT, skeleton
from ._variables import Variable


log = logging.getLogger("jaxsolve")

LOCK = "lock"
SKELETON = "skeleton.json"
# Zarr takes the folder for an empty group, and passes over what is in it.
GROUP = {f"{OURS}/zarr.json": json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()}


class Layout(NamedTuple):
    """The fixed part of a store.

    Attributes:
        manifest: as JSON; only its `batch_size` and `runs` change later.
        variables: of the dataset.
        blocks: the lanes of each chunk.
        files: by name, all that a store holds in which nothing has run; the root's metadata come last.
    """

    manifest: dict[str, Any]
    variables: tuple[Variable, ...]
    blocks: Blocks
    files: dict[str, bytes]


def new_layout(
    frame: Frame,
    plan: dict[str, Any],
    variables: tuple[Variable, ...],
    batch_size: int,
    labels: dict[str, str],
    run: dict[str, Any],
) -> Layout:
    """The layout of a new store.

    Arguments:
        frame: of the dataset.
        plan: from `plan_facts`.
        variables: of the dataset.
        batch_size: lanes of a batch.
        labels: the attributes that may grow later.
        run: from `run_facts`.
    """
    blocks = cut(frame.axes, batch_size, max(item.lane_bytes for item in variables))
    details = {
        "batch_size": {"asked": frame.batch_size, "used": {}},
        "variables": [dataclasses.asdict(item) for item in variables],
        "chunks": dataclasses.asdict(blocks),
    }
    manifest = {**new_manifest(plan, details), "runs": [run]}
    facts = {name: manifest[name] for name in ("citation", "plan_hash")}
    attrs = {**summary(labels, run), **facts, "batch_size": batch_size, "manifest": f"{OURS}/{MANIFEST}"}
    return Layout(manifest, variables, blocks, GROUP | skeleton(frame.axes, blocks, variables, frame.ts, attrs))


def write_layout(path: Path, layout: Layout) -> None:
    """Makes a store in which nothing has run. Until its last file is there, readers see none; then, all of it."""
    _write_copies(path, layout)
    write_manifest(path, layout.manifest)
    restore(path, layout)


def attributes(layout: Layout) -> dict[str, Any]:
    """The attributes of the dataset."""
    return json.loads(layout.files[ROOT])["attributes"]


def relabel(path: Path, layout: Layout, labels: Mapping[str, Any]) -> None:
    """Gives other values to some attributes of the dataset."""
    root = json.loads(layout.files[ROOT])
    root["attributes"] |= labels
    layout.files[ROOT] = json.dumps(root, indent=2).encode()
    _write_copies(path, layout)
    write_whole(path / ROOT, layout.files[ROOT], sync=True)


def _write_copies(path: Path, layout: Layout) -> None:
    copies = {
        key: {"checksum": checksum(data), "content": base64.b64encode(data).decode()}
        for key, data in layout.files.items()
    }
    write_json(path / OURS / SKELETON, copies)


def read_layout(path: Path) -> Layout:
    """Reads the layout of a store.

    Raises:
        ValueError: its files are damaged, or a later version wrote them.
    """
    try:
        manifest = json.loads((path / OURS / MANIFEST).read_text())
        if manifest["format"] > FORMAT:
            raise ValueError(f"{path} was written by a later version of jaxsolve: {manifest['citation']}")
        variables = tuple(Variable.from_json(item) for item in manifest["variables"])
        blocks = Blocks(*(tuple(manifest["chunks"][name]) for name in ("grid", "block")))
        copies = json.loads((path / OURS / SKELETON).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(
            f"{path / OURS} is damaged: {MANIFEST} or {SKELETON} cannot be read ({error}). Restore them from a backup, "
            "or start in another store; the arrays themselves can still be opened with xarray"
        ) from error
    return Layout(manifest, variables, blocks, {key: _content(path, key, copy) for key, copy in copies.items()})


def _content(path: Path, key: str, copy: dict[str, Any]) -> bytes:
    content = base64.b64decode(copy["content"])
    if checksum(content) == copy["checksum"]:
        return content
    content = (path / key).read_bytes()
    if checksum(content) == copy["checksum"]:
        return content
    raise ValueError(f"{path / key} and its copy in {OURS}/{SKELETON} are damaged; start in another store")


def restore(path: Path, layout: Layout) -> None:
    """Writes those files of a layout that are missing or damaged."""
    complete = (path / "zarr.json").exists()
    for key, content in layout.files.items():
        file = path / key
        if not file.exists() or file.read_bytes() != content:
            if complete:
                log.warning("%s: %s was damaged or missing; it is restored", path, key)
            write_whole(file, content, sync=True)


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest, in place of an earlier one."""
    write_json(path / OURS / MANIFEST, manifest, indent=1)


def batch_size_of(manifest: dict[str, Any], frame: Frame, group: Group) -> int | None:
    """The lanes of a group to run together, from what is known of its store; None chooses."""
    if frame.batch_size is not None or not manifest:
        return frame.batch_size
    known = manifest["batch_size"]
    return known["used"].get(name_of(group), known["asked"])


def name_of(group: Group) -> str:
    """What a manifest calls a group: the number of its first lane."""
    return str(int(group.lanes[0]))


def has_manifest(path: Path) -> bool:
    """Whether a folder is a sweep's store."""
    return (path / OURS / MANIFEST).exists()


def require_ours(path: Path, *, resume: bool) -> None:
    """Raises FileExistsError where something stands that is not to be touched.

    What a sweep left that died before it wrote a manifest may be overwritten.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file; a store is a folder. Choose another store")
    if has_manifest(path):
        if not resume:
            raise FileExistsError(f"{path} holds a sweep already; give resume=True to carry it on, or another store")
        return
    begun = {path / OURS / name for name in (LOCK, SKELETON)}
    others = [item for item in path.rglob("*") if item != path / OURS and item not in begun and item.suffix != PART]
    if others and not has_manifest(path):  # another process may have begun in the meantime
        raise FileExistsError(
            f"{path} holds something else than a sweep's store ({others[0].relative_to(path)}, ...), which is left "
            "alone; choose another store"
        )
