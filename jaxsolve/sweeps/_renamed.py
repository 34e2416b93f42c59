"""Names that this room had before."""

from .._renamed import old_names


__getattr__ = old_names(
    "jaxsolve.sweeps",
    {
        "Config": "jaxsolve.configs.Config",
        "ConfigError": "jaxsolve.configs.ConfigError",
        "read_config": "jaxsolve.configs.read_config",
        "write": "jaxsolve.sweeps.save",
    },
)
