"""Sweeps: one problem for each cell of a grid of named axes, solved in batches."""

from ._broken_power_law import broken_power_law as broken_power_law
from ._ensemble import (
    ensemble_error as ensemble_error,
    ensemble_variance as ensemble_variance,
    jackknife as jackknife,
    power_law as power_law,
)
from ._sweep import Hosts as Hosts, sweep as sweep
from .grid._axes import Zip as Zip
from .grid._padded import padded as padded
from .planning._plan import plan as plan
from .store._layout import read_manifest as read_manifest
from .store._load import load as load
from .store._memory import save as save
