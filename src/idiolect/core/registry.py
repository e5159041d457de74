"""Open tables: things by name, built in or brought by the user.

A name is one of the built-in ones, one that an installed package offers (an entry point of the
table's group, such as `idiolect.methods`), or `module:Name`, which is imported. Everything that
takes a name takes all three.
"""

from __future__ import annotations

import dataclasses
import importlib
import keyword
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from .knobs import SettingError, nearest

T = TypeVar("T")


class Table(Mapping[str, T], Generic[T]):
    """Names of one kind of thing: built in, and from installed packages.

    `accept` turns what was found under a name outside the package into an entry, or raises a
    SettingError; it gets the name and the object.

    >>> table = Table("fruit", "idiolect.example", {"apple": 1, "pear": 2})
    >>> table["apple"], list(table), table["math:pi"]
    (1, ['apple', 'pear'], 3.141592653589793)
    >>> table.find("aple")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: fruit: 'aple' is unknown; did you mean 'apple'? known: ...
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, T],
        accept: Callable[[str, Any], T] | None = None,
    ):
        self.kind = kind
        self.group = group
        self.built_in = dict(built_in)
        self._accept = accept or (lambda name, thing: thing)
        self._found: dict[str, T] = {}

    def find(self, name: str) -> T:
        """The entry of a name; an unknown one suggests the nearest."""
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._found or _ALLOWED.get() is not None:
            self._found[name] = self._accepted(name, self._load(name))
        return self._found[name]

    def _accepted(self, name: str, thing: Any) -> T:
        try:
            return self._accept(name, thing)
        except SettingError as error:
            if str(error).startswith(f"{self.kind}: "):
                raise
            raise SettingError(f"{self.kind}: {error}") from None

    def known(self) -> dict[str, T]:
        """The built-in entries, and those that have been asked for by name."""
        return {**self.built_in, **self._found}

    def name_of(self, thing: Any) -> str:
        """The name under which a class is found: a listed one, else `module:Name`."""
        for name, entry in self.known().items():
            if entry is thing:
                return name
        return f"{thing.__module__}:{thing.__qualname__}"

    def text(self, part: Any) -> str:
        """A part as it would be written: its name and the options that differ from their defaults.

        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Pear:
        ...     size: int = 2
        >>> Table("fruit", "idiolect.example", {"pear": Pear}).text(Pear(size=3))
        'pear(size=3)'
        """
        changed = [
            f"{f.name}={_literal(getattr(part, f.name))}"
            for f in dataclasses.fields(part)
            if f.init and getattr(part, f.name) != f.default
        ]
        options = f"({', '.join(changed)})" if changed else ""
        return self.name_of(type(part)) + options

    def _load(self, name: str) -> Any:
        allowed = _ALLOWED.get()
        if allowed is not None and name not in allowed:
            raise SettingError(
                f"{self.kind}: {name!r} is no built-in {self.kind}, and the owner of this process "
                "has not allowed it"
            )
        for point in entry_points(group=self.group, name=name):
            return point.load()
        module, colon, attribute = name.partition(":")
        if not colon or not attribute:
            raise nearest(name, self, self.kind)
        return _imported(self.kind, name, module, attribute)

    def __getitem__(self, name: str) -> T:
        try:
            return self.find(name)
        except SettingError as error:
            raise KeyError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or any(name == listed for listed in self)

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from (p.name for p in entry_points(group=self.group) if p.name not in self.built_in)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        names = ", ".join(self)
        return f"Table({self.kind}: {names if len(names) < 400 else names[:397] + '...'})"


def subclass_of(*bases: type) -> Callable[[str, Any], Any]:
    """What a table of classes accepts: subclasses of one of `bases`."""
    wanted = " or ".join(base.__name__ for base in bases)

    def accept(name: str, thing: Any) -> Any:
        if isinstance(thing, type) and issubclass(thing, bases):
            return thing
        raise SettingError(f"{name!r} is not accepted; it must be a subclass of {wanted}")

    return accept


def _literal(value: Any) -> str:
    """A value as it is written in a line of text: a word needs no quotes."""
    bare = isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)
    return str(value) if bare else repr(value)


_NAMED_BY: ContextVar[str] = ContextVar("named by", default="")
_ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


@contextmanager
def names_in(directory: object, trusted: bool) -> Iterator[None]:
    """While names from a directory are looked up, which may be somebody else's.

    Built-in things and those of installed packages are found. A `module:Name` would run code of the
    directory's choosing: it is refused, unless the directory is `trusted`.
    """
    token = _NAMED_BY.set("" if trusted else str(directory))
    try:
        yield
    finally:
        _NAMED_BY.reset(token)


@contextmanager
def only_names(allowed: Collection[str]) -> Iterator[None]:
    """While names from somebody else's message are looked up.

    Built-in things are found, and of all others (`module:Name`, or things of installed packages)
    those that the owner of this process has allowed, by exactly these names.

    >>> fruit = Table("fruit", "idiolect.example", {"apple": 1})
    >>> with only_names(["math:pi"]):
    ...     fruit.find("apple"), fruit.find("math:pi")
    (1, 3.141592653589793)
    """
    token = _ALLOWED.set(frozenset(allowed))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def _imported(kind: str, name: str, module: str, attribute: str) -> Any:
    """`attribute` of `module`, which may lie in the current folder."""
    if directory := _NAMED_BY.get():
        raise SettingError(
            f"{kind}: {name!r} is code outside idiolect that {directory} names; "
            "if you trust that directory, say so: --trust, or idiolect.load(..., trust=True)"
        )
    if not all(part.isidentifier() for part in module.split(".")):
        raise SettingError(f"{kind}: {name!r} cannot be imported: {module!r} is no module's name")
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:  # an installed command does not look there by itself
        sys.path.insert(0, here)
    try:
        thing: Any = importlib.import_module(module)
        for part in attribute.split("."):
            thing = getattr(thing, part)
        return thing
    except ImportError as error:
        raise SettingError(f"{kind}: {name!r} cannot be imported: {error}") from None
    except AttributeError:
        raise SettingError(f"{kind}: module {module!r} has no {attribute!r}") from None
    finally:
        if added:
            sys.path.remove(here)
