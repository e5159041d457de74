"""Open tables: things by name, built in or brought by the user.

A name is one of the built-in ones, one that an installed package offers (an entry point of the
table's group, such as `idiolect.methods`), or `module:Name`, which is imported. Everything that
takes a name takes all three.

Small parts are chosen by name and options in one line, "topk(share=0.01) + qsgd(levels=16)", on the
command line, in a plan or in Python: see `PartTable`. Nothing is evaluated; only literals are read.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import keyword
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from .knobs import SettingError, brief, build, nearest

T = TypeVar("T")
Part = TypeVar("Part")
Whole = TypeVar("Whole")


class Table(Mapping[str, T], Generic[T]):
    """Names of one kind of thing: built in, and from installed packages.

    `accept` turns what was found under a name outside the package into an entry, or raises a
    SettingError; it gets the name and the object. `absent` are names that a user may know from
    elsewhere, with what comes nearest to them here.

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
        absent: Mapping[str, str] | None = None,
    ):
        self.kind = kind
        self.absent = absent or {}
        self.group = group
        self.built_in = dict(built_in)
        self._accept = accept or (lambda name, thing: thing)
        self._found: dict[str, T] = {}

    def find(self, name: str) -> T:
        """The entry of a name; an unknown one suggests the nearest."""
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._found or _ALLOWED.get() is not None:
            self._found[name] = self._accept(name, self._load(name))
        return self._found[name]

    def known(self) -> dict[str, T]:
        """The built-in entries, and those that have been asked for by name."""
        return {**self.built_in, **self._found}

    def name_of(self, thing: Any) -> str:
        """The name under which a class is found: a listed one, else `module:Name`."""
        for name, entry in self.known().items():
            if entry is thing:
                return name
        return f"{thing.__module__}:{thing.__qualname__}"

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
            if name.lower() in self.absent:
                raise SettingError(
                    f"{self.kind}: {name!r} is not implemented; nearest: "
                    f"{self.absent[name.lower()]}"
                )
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


class PartTable(Table[type[Part]], Generic[Part, Whole]):
    """Dataclasses by name, chosen with their options by a line of text; their fields are options.

    `join` makes the whole of the parts in a line, which are joined by +; a table without it takes
    one part. `split` gives the parts back. `empty` is what "" and "none" stand for, if anything.

    >>> from dataclasses import dataclass
    >>> from .knobs import Knobs, knob
    >>> @dataclass(frozen=True)
    ... class Pear(Knobs):
    ...     size: int = knob(2, "its size")
    >>> fruit = PartTable("fruit", "idiolect.example", {"pear": Pear}, Pear)
    >>> fruit.parse("pear( size = 3 )"), fruit.text(Pear(size=4))
    (Pear(size=3), 'pear(size=4)')
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, type[Part]],
        *bases: type,
        whole: type | None = None,
        join: Callable[[list[Any]], Whole] | None = None,
        split: Callable[[Any], Sequence[Part]] = lambda whole: (whole,),
        empty: Callable[[], Whole] | None = None,
    ):
        super().__init__(kind, group, built_in, self._accept_subclass)
        self._bases = bases
        self._whole = whole or bases[0]
        self._join = join or self._only
        self._split = split
        self._empty = empty

    def parse(self, spec: Any) -> Whole:
        """What a line of text stands for; the thing itself, or one part of it, is taken too."""
        nothing = spec is None or (isinstance(spec, str) and spec.strip() in ("", "none"))
        if nothing and self._empty is not None:
            return self._empty()
        if isinstance(spec, self._whole):
            return cast(Whole, spec)
        if isinstance(spec, self._bases):
            parts: list[Any] = [spec]
        elif isinstance(spec, str):
            parts = [self._part(text.strip()) for text in split_outside(spec, "+")]
        else:
            names = " or a ".join(dict.fromkeys(t.__name__ for t in (self._whole, *self._bases)))
            raise SettingError(f"{self.kind} must be text or a {names}, got {spec!r}")
        try:
            return self._join(parts)
        except Misjoined as error:
            raise SettingError(f"{self.kind} must be {error}, got {spec!r}") from None

    def text(self, whole: Whole) -> str:
        """The line of text that `parse` makes this of: options that differ from their defaults."""
        return " + ".join(map(self._part_text, self.parts(whole))) or "none"

    def parts(self, whole: Whole) -> Sequence[Part]:
        """What it is joined of, in order."""
        return () if whole is None else self._split(whole)

    def _part(self, text: str) -> Part:
        name, options = name_and_options(text, self.kind)
        return build(self.find(name), options, f"{self.kind} {name}")

    def _part_text(self, part: Any) -> str:
        changed = [
            f"{f.name}={_literal(getattr(part, f.name))}"
            for f in dataclasses.fields(part)
            if f.init and getattr(part, f.name) != f.default
        ]
        options = f"({', '.join(changed)})" if changed else ""
        return self.name_of(type(part)) + options

    def _accept_subclass(self, name: str, thing: Any) -> Any:
        if isinstance(thing, type) and issubclass(thing, self._bases):
            return thing
        bases = " or ".join(base.__name__ for base in self._bases)
        raise SettingError(f"{self.kind} must be a subclass of {bases}, got {name!r}")

    def _only(self, parts: list[Any]) -> Any:
        if len(parts) > 1:
            raise Misjoined(f"one of {', '.join(self)}")
        return parts[0]


class Misjoined(ValueError):
    """Parts that cannot be joined: what they must be."""


def split_outside(text: str, separator: str) -> list[str]:
    """Split at the separators that stand outside parentheses and brackets.

    >>> split_outside("a=(1, 2), b=3", ",")
    ['a=(1, 2)', ' b=3']
    """
    pieces = [""]
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += c
    return pieces


def name_and_options(part: str, field: str) -> tuple[str, dict[str, Any]]:
    """ "NAME(option=value, ...)" to a name and options."""
    name, _, rest = part.partition("(")
    try:
        if "(" in part and not rest.endswith(")"):
            raise ValueError
        options = keyword_options(rest[:-1], words=True)
    except ValueError:
        raise SettingError(
            f"{field} must be NAME or NAME(option=value, ...), several joined by +, "
            f"got {brief(part)}"
        ) from None
    return name.strip(), options


def keyword_options(text: str, words: bool = False) -> dict[str, Any]:
    """Options as the arguments of a call, with literals or, where allowed, bare `words` as text.

    >>> keyword_options("k=3, coding=elias", words=True)
    {'k': 3, 'coding': 'elias'}
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError("options must be name=value, name=value, ...")
        return {
            str(k.arg): k.value.id
            if words and isinstance(k.value, ast.Name)
            else ast.literal_eval(k.value)
            for k in call.keywords
        }
    except (SyntaxError, MemoryError, RecursionError) as error:  # the last two: nested too deeply
        raise ValueError(str(error)) from None


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
        # code from there stays importable: worker processes take over sys.path
        if added and not _lies_in(here, module.partition(".")[0]):
            sys.path.remove(here)


def _lies_in(folder: str, module: str) -> bool:
    """Whether a module that has been imported was found directly in a folder."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or ([spec.origin] if spec.has_location else ()))
    return any(os.path.dirname(os.path.abspath(place)) == folder for place in places)
