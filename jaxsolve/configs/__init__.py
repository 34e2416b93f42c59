"""Sweeps that a TOML file says."""

from ._errors import ConfigError as ConfigError
from ._read import Config as Config, read_config as read_config
