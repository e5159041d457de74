"""Tables and pictures, made from plain data: summaries and rows.

The public names are those of `__init__.pyi`: number formats, goals of a curve, and the style of
pictures.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
