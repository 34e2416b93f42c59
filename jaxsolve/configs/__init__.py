"""Sweeps that a TOML file says."""

from ._read import Config as Config, read_config as read_config
from ._refusals import ConfigError as ConfigError
