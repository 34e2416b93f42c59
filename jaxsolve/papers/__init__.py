"""The papers: their figures reproduced, their errors recomputed, their sweeps as configs.

The public names are listed in `__init__.pyi`; each is imported when first used, as configs need none of what errata do.
"""

from .._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)
