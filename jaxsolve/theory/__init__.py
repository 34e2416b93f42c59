"""Exact solutions and predictions, one file each."""

from ._exact import exact as exact
from ._finite import classify_network as classify_network, FinitePhase as FinitePhase
from ._phases import (
    Entry as Entry,
    Exponents as Exponents,
    feature_learning_scaling as feature_learning_scaling,
    kernel_scaling as kernel_scaling,
    phase as phase,
    stable_eta as stable_eta,
    table_1 as table_1,
)
from ._reduced_line import ReducedLine as ReducedLine, Timescale as Timescale
from ._two_layer_line import TwoLayerLine as TwoLayerLine
