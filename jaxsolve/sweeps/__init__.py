"""Many problems: grids of named axes, batched."""

from ._axes import Zip as Zip
from ._store import write as write
from ._sweep import sweep as sweep
