"""The papers: their figures reproduced, their errors recomputed, their sweeps as configs.

The public names are listed in `__init__.pyi`; each is imported when first used, as configs need none of what errata do.
"""

import lazy_loader


__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
