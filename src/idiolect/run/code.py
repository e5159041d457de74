"""The code that a run is made with, as hashes: a run that is resumed with other code is told so."""

from __future__ import annotations

import hashlib
import inspect
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from ..method import Method

_PACKAGE = Path(__file__).parents[1]
NO_PART = ("cli", "report")  # folders that say what is run and show what came out


def code_of(method: Method) -> dict[str, str]:
    """The package's version, a hash of the files that a run depends on, one of the method's own.

    >>> from ..methods import make_method
    >>> sorted(code_of(make_method("fedavg")))
    ['idiolect', 'method', 'source']
    """
    return {
        "idiolect": version(),
        "source": package_source(without=NO_PART),
        "method": class_source(type(method)),
    }


def version() -> str:
    """The version of this package."""
    try:
        return metadata.version("idiolect")
    except metadata.PackageNotFoundError:
        return "not installed as a package"


@cache
def package_source(without: tuple[str, ...] = ()) -> str:
    """SHA-256 over the source files of this package, by name, without some of its folders."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        if path.relative_to(_PACKAGE).parts[0] in without:
            continue
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def class_source(cls: type) -> str:
    """SHA-256 over the modules of a class and its bases, for it may use what stands beside it.

    Of a class in a script or a notebook, its own lines: the rest of a script says how to run it.
    """
    digest = hashlib.sha256()
    for one in cls.__mro__[:-1]:
        digest.update(f"{one.__module__}.{one.__qualname__}\n".encode())
        digest.update(_source(one).encode())
    return digest.hexdigest()


def _source(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    try:
        if module is not None and cls.__module__ != "__main__":
            return inspect.getsource(module)
        return inspect.getsource(cls)
    except (OSError, TypeError):  # typed in, or compiled
        return ""
