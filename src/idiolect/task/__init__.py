"""A task: model and loss as functions of rows x[K, d].

The public names are those of `__init__.pyi`: what your own task, with its own loss and
gradients, is built from.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
