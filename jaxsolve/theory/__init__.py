"""Exact solutions, one file each."""

from ._exact import exact as exact
from ._two_layer_line import ReducedLine as ReducedLine
from ._two_layer_line import Timescale as Timescale
from ._two_layer_line import TwoLayerLine as TwoLayerLine
