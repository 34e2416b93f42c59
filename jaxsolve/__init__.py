"""jaxsolve simulates how neural networks learn, with exact solutions where they are known.

The public names are listed in `__init__.pyi`; each is imported when first used.
"""

from ._lazy import attach


__version__ = "0.1.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
