"""The papers: their figures reproduced, their errors recomputed, their sweeps as configs.

The public names are listed in `__init__.pyi`. Each is imported on first use, as configs need no imports of errata.
"""

from .._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)
