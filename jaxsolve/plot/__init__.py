"""Figures: functions that draw on matplotlib axes, given or new."""

from ._curves import comparison as comparison
from ._curves import trajectory as trajectory
from ._phases import Boundary as Boundary
from ._phases import phase_diagram as phase_diagram
from ._phases import phase_legend_handles as phase_legend_handles
from ._style import COLOURS as COLOURS
from ._style import MARKERS as MARKERS
