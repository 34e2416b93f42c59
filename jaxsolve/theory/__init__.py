"""Exact solutions, one file each."""

from ._exact import exact as exact
from ._reduced_line import ReducedLine as ReducedLine, Timescale as Timescale
from ._two_layer_line import TwoLayerLine as TwoLayerLine
