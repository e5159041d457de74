"""Many runs: comparisons, pipelines, sweeps, tuning, advice and splits.

The public names are those of `__init__.pyi`: what your own study is built from, beyond
`idiolect.compare`, `sweep` and `tune`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
