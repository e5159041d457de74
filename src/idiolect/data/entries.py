"""What a data set is made by: a dataclass of settings with `load()`, or a function.

Every entry of the table of data sets is a dataclass whose fields are its options, so that flags,
`describe` and checks work alike for all of them. A user's function becomes one (core/callables.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

from ..core.callables import read_options, settings_class
from ..core.knobs import Knobs, SettingError, build, knob
from .federation import Federation
from .redraw import DATA, DataDraw

BUILT_IN: dict[str, type[Knobs]] = {}  # the entries of the table, by name

PUBLIC = "public"

DataSet = TypeVar("DataSet", bound=type[Knobs])


def register(name: str) -> Callable[[DataSet], DataSet]:
    """Enter a data set in the table under a name: a decorator of its dataclass."""

    def enter(entry: DataSet) -> DataSet:
        BUILT_IN[name] = entry
        return entry

    return enter


def data_set(name: str, thing: Any) -> type[Knobs]:
    """The dataclass of an entry; `thing` is a class or a function.

    >>> def noise(clients: int = 3) -> Federation:
    ...     "Random numbers."
    >>> data_set("noise", noise)(clients="5").clients
    5
    """
    if isinstance(thing, type):
        if issubclass(thing, Knobs) and callable(getattr(thing, "load", None)):
            return thing
    elif callable(thing):
        try:
            return settings_class(thing, name)
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"data set: {name!r} must take its options by name ({error})"
            ) from None
    raise SettingError(
        f"data set: {name!r} must be a subclass of Knobs with load(), or a function that returns a "
        "Federation"
    )


@dataclass(frozen=True)
class Public(Knobs):
    """The option that every data set has beside its own."""

    public: int = knob(
        0,
        "training samples that are taken from the clients and given to the server and everybody, "
        "without targets, for methods such as fedmd; 0 = none",
        low=0,
    )


def takes_public(entry: type[Knobs]) -> bool:
    """Whether `public` is this option; not where an entry has one of that name itself."""
    return PUBLIC not in {f.name for f in fields(entry)}


def make(entry: type[Knobs], options: dict[str, Any], name: str) -> Federation:
    """The federation of an entry; options that do not fit are refused by name."""
    if not takes_public(entry) or PUBLIC not in options:
        return _made(entry, options, name)
    own = {key: value for key, value in options.items() if key != PUBLIC}
    public = build(Public, {PUBLIC: options[PUBLIC]}, f"data set {name}").public
    federation = _made(entry, own, name)
    if not public:
        return federation
    draw = federation.draw
    published = federation.publish(public, draw.seed if draw else 0)
    if draw is None:
        return published
    again = partial(_under_seed, entry, options, name)
    return published.with_draw(DataDraw(draw.seed, draw.draws, again))


def _made(entry: type[Knobs], options: dict[str, Any], name: str) -> Federation:
    settings, extra = read_options(entry, options, f"data set {name}")
    load = getattr(settings, "load", None) or settings.call
    federation = load(**extra)
    if not isinstance(federation, Federation):
        raise SettingError(
            f"data set {name} must return a Federation, got a {type(federation).__name__}"
        )
    draws = getattr(settings, "seed_draws", DATA)
    if not draws or not isinstance(getattr(settings, "seed", None), int):
        return federation
    return federation.with_draw(
        DataDraw(settings.seed, draws, partial(_under_seed, entry, options, name))
    )


def _under_seed(entry: type[Knobs], options: dict[str, Any], name: str, seed: int) -> Federation:
    return make(entry, {**options, "seed": seed}, name)
