"""Many problems: grids of named axes, batched."""

from ._axes import Zip as Zip
from ._sweep import sweep as sweep
