"""idiolect: personalised federated learning. Every client keeps a model of its own.

The public names are those of `__init__.pyi`, with `idiolect.testing`; everything else may change.
They are imported on first use: `import idiolect` itself loads no torch and takes some 10 ms.
"""

import os

import lazy_loader

# MKL's products and functions (tanh, exp, ...) then give a number the same bits wherever it lies in
# memory. MKL reads this at its first call: it is in time after `import torch`, not after computing.
os.environ.setdefault("MKL_CBWR", "AUTO")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
