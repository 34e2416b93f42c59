"""jaxsolve simulates how neural networks learn, and solves it exactly where an exact solution is known.

The public names are listed in `__init__.pyi`; each is imported when first used.
"""

import lazy_loader


__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
