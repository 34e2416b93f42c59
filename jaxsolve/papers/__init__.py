"""The papers: their figures reproduced, their errors recomputed, their sweeps as configs.

The public names are listed in `__init__.pyi`; each is imported when first used, as configs need none of what errata do.
"""

import warnings

import lazy_loader


__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_imported = __getattr__


def __getattr__(name: str) -> object:
    if name == "ERRATA":  # an old name, which works for one more version
        warnings.warn("papers.ERRATA is now papers.ALL_ERRATA", DeprecationWarning, stacklevel=2)
        name = "ALL_ERRATA"
    return _imported(name)
