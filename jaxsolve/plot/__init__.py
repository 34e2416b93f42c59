"""Figures: functions that draw on given or new matplotlib axes."""

from ._curves import comparison as comparison, trajectory as trajectory
from ._laws import collapse as collapse, power_law as power_law
from ._maps import gram as gram, value_map as value_map
from ._neurons import neurons as neurons
from ._phases import Boundary as Boundary, phase_diagram as phase_diagram, phase_legend_handles as phase_legend_handles
from ._style import (
    axis_label as axis_label,
    COLORS as COLORS,
    MARKERS as MARKERS,
    REGIME_COLORS as REGIME_COLORS,
)
