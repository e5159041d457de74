"""What every other room stands on: random streams, settings as fields, text, shared types."""

import lazy_loader

# `idiolect.streams` is this module, imported on first use
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["streams"])
