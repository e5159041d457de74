"""What is used of Flower's SecAgg+ beyond its documented API: each name, and what it is needed for.

These are the functions that Flower's own SecAgg+ is made of; they are the same in 1.41 and 1.42.
Imported when they are needed; a version that lacks one is refused by name.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ...core.knobs import SettingError

_CRYPTO = "flwr.common.secure_aggregation.crypto"
NAMES = {
    "generate_key_pairs": "flwr.supercore.primitives.asymmetric",
    "generate_shared_key": f"{_CRYPTO}.symmetric_encryption",  # what two clients agree on
    "encrypt": f"{_CRYPTO}.symmetric_encryption",  # shares on their way to one client
    "decrypt": f"{_CRYPTO}.symmetric_encryption",
    "create_shares": f"{_CRYPTO}.shamir",
    "combine_shares": f"{_CRYPTO}.shamir",
    # two shares as one text
    "share_keys_plaintext_concat": "flwr.common.secure_aggregation.secaggplus_utils",
    "share_keys_plaintext_separate": "flwr.common.secure_aggregation.secaggplus_utils",
}


@lru_cache(maxsize=1)
def flower() -> Any:
    """Flower's primitives; SettingError where the package is not installed, or lacks one."""
    functions = {}
    for name, module in NAMES.items():
        try:
            functions[name] = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SettingError(
                f"secure_sums needs the package flwr between sites, and {module}.{name} cannot be "
                f"imported ({error}); pip install 'idiolect[flower]'"
            ) from None
    return SimpleNamespace(**functions)
