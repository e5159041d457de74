"""idiolect: personalised federated learning. Every client keeps a model of its own.

The public names are those of `__init__.pyi`, with `idiolect.testing`; everything else may change.
They are imported on first use: `import idiolect` itself loads no torch and takes some 10 ms.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
