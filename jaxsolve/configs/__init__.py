"""Sweeps described by TOML files."""

from ._read import read_config as read_config
from ._refusals import ConfigError as ConfigError
