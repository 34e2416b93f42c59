"""Many problems: grids of named axes, batched."""

from ._axes import Zip as Zip
from ._config import Config as Config, read_config as read_config
from ._hosts import Hosts as Hosts
from ._names import ConfigError as ConfigError
from ._padded import padded as padded
from ._plan import Plan as Plan, plan as plan
from ._store import write as write
from ._sweep import sweep as sweep
