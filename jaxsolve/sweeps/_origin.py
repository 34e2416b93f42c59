"""Where lanes ran and how, for the attributes of a dataset."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ._execute import Program
from ._files import write_json
from ._layout import name_of
from ._manifest import OURS


BETWEEN = "; "
HOSTS = "hosts"  # the folder in which processes without the manifest say where and how they run


class Origin(NamedTuple):
    """Where and how some lanes of a group ran.

    Attributes:
        host, device: where.
        dynamics: what moved them, in a line.
        group: the number of its first lane.
        size: lanes per batch.
    """

    host: str
    device: str
    dynamics: str
    group: str
    size: int

    @staticmethod
    def here(program: Program) -> "Origin":
        """Of lanes that a program runs in this process."""
        device = program.setup.devices.all[0].device_kind
        return Origin(socket.gethostname(), device, program.caption, name_of(program.group), program.size)

    @property
    def where(self) -> str:
        """The host and the device."""
        return f"{self.host}, {self.device}"


def credited(labels: Mapping[str, str], origin: Origin) -> dict[str, str]:
    """The attributes of a dataset that say what ran, and on which devices, with this one among them."""
    new = {"dynamics": origin.dynamics, "device": origin.device}
    return {name: joined(labels.get(name), text) for name, text in new.items()}


def joined(texts: str | None, text: str) -> str:
    """A list of texts, with one that may be new."""
    return BETWEEN.join(dict.fromkeys([*([] if texts is None else texts.split(BETWEEN)), text]))


def write_origins(path: Path, index: int, origins: Sequence[Origin]) -> None:
    """Leaves word in a store for the process that holds its manifest.

    Arguments:
        path: the store.
        index: of this process.
        origins: of its lanes; they take the place of those from before.
    """
    write_json(path / OURS / HOSTS / f"{index}.json", [origin._asdict() for origin in origins])


def read_origins(path: Path) -> list[Origin]:
    """Those that other processes have left in a store."""
    files = sorted((path / OURS / HOSTS).glob("*.json"))
    return [Origin(**facts) for file in files for facts in json.loads(file.read_text())]


def remove_origins(path: Path) -> None:
    """Removes them, when the manifest has them."""
    for file in (path / OURS / HOSTS).glob("*.json"):
        file.unlink()
