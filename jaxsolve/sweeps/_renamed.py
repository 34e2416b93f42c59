"""Names that this room had before."""

from typing import TYPE_CHECKING

from .._renamed import old_names


if not TYPE_CHECKING:  # a type checker would take any misspelt name of the room for one of these
    moved = ("Config", "ConfigError", "read_config")
    __getattr__ = old_names("sweeps", {"write": "sweeps.save"} | {name: f"configs.{name}" for name in moved})
