"""Figures: functions that draw on matplotlib axes, given or new."""

from ._curves import comparison as comparison, trajectory as trajectory
from ._phases import Boundary as Boundary, phase_diagram as phase_diagram, phase_legend_handles as phase_legend_handles
from ._style import (
    axis_label as axis_label,
    COLOURS as COLOURS,
    MARKERS as MARKERS,
    REGIME_COLOURS as REGIME_COLOURS,
)
