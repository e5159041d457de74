"""Client ids: what the user calls a client.

A whole number stays a whole number (client 13 is 13) and text stays text. Other ids become one of
the two:

- NumPy whole numbers become Python ints, and so do floating-point numbers if all of them are whole;
- any other object (a date, bytes, a pair) becomes its text, if that keeps different objects apart;
- True and False are refused, and so is a missing id (None or NaN);
- text that cannot be written as UTF-8 is refused, and so is text with the character NUL.

Clients are ordered as `np.unique` orders the ids: numbers by size, text by its characters. Arrays
of objects and lists of mixed types are ordered by the text of the ids.

The text of an id keys the client's random numbers, so two different ids with the same text, such as
1 and "1", are refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...core.knobs import SettingError
from ...core.text import shown

ClientId = int | str
COMPARED = 200  # characters of an id that an error shows and compares


def plain_id(client_id: Any) -> ClientId:
    """One id as a Python int or text, by the rules above.

    >>> plain_id(np.int64(13)), plain_id(13.0), plain_id("site 0"), plain_id(("site", 0))
    (13, 13, 'site 0', "('site', 0)")
    """
    fraction = isinstance(client_id, (float, np.floating)) and not float(client_id).is_integer()
    if fraction or isinstance(client_id, (bool, np.bool_)):
        raise SettingError(f"clients: an id must be a whole number or text, got {client_id}")
    if isinstance(client_id, (int, float, np.integer, np.floating)):
        return int(client_id)
    return str(client_id)


def read_ids(clients: Any) -> tuple[tuple[ClientId, ...], np.ndarray]:
    """The N distinct ids in order, and for each sample the position of its client: int64[n].

    >>> read_ids([13, 7, 13])
    ((7, 13), array([1, 0, 1]))
    """
    array = _as_array(clients)
    if array.ndim != 1:
        raise SettingError(
            f"clients must be one client id per sample, got an array of shape {array.shape}"
        )
    _refuse_missing(array)
    if array.dtype == object:
        if not all(isinstance(value, str) for value in array):
            ids, positions = _read_objects(array)
            _check_text(ids)
            return ids, positions
        _check_text(dict.fromkeys(array))  # before NumPy cuts off NULs at the end
        array = array.astype(str)
    distinct, positions = np.unique(array, return_inverse=True)
    ids = tuple(plain_id(value) for value in distinct)
    _check_text(ids)
    return ids, positions


def _check_text(ids: Iterable[ClientId]) -> None:
    """Refuse texts that could not be written to a file, or would not come back as they were."""
    for client_id in ids:
        text = str(client_id)
        if text.isprintable():  # most are; half characters and NUL are not
            continue
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingError(
                f"clients: an id must be whole characters of text, got {text!r}"
            ) from None
        if "\0" in text:
            raise SettingError(f"clients: an id must be text without NUL, got {text!r}")


def unknown_client(client_id: ClientId, ids: Sequence[ClientId]) -> SettingError:
    """The error for an id that no client has.

    >>> print(unknown_client(7, ("site 0", "site 1")))
    client: 7 is unknown; clients are named by text, such as 'site 0'
    >>> print(unknown_client(7, range(5)))
    client: 7 is unknown; clients are numbered 0 to 4
    """
    numbers = sorted(i for i in ids if isinstance(i, int))
    if isinstance(client_id, str):
        near = [str(i) for i in ids if len(str(i)) <= COMPARED]
        close = difflib.get_close_matches(client_id[:COMPARED], near, n=1, cutoff=0.5)
        if close:
            return SettingError(f"client: {_cut(client_id)} is unknown; did you mean {close[0]!r}?")
    if not numbers or (isinstance(client_id, str) and len(numbers) < len(ids)):
        example = next(i for i in ids if isinstance(i, str))
        return SettingError(
            f"client: {_cut(client_id)} is unknown; "
            f"clients are named by text, such as {_cut(example)}"
        )
    low, high = numbers[0], numbers[-1]
    hint = f"clients are numbered {low} to {high}"
    if isinstance(client_id, int) and high - low + 1 > len(numbers):  # there are gaps
        hint += f", the nearest is {min(numbers, key=lambda i: abs(i - client_id))}"
    return SettingError(f"client: {_cut(client_id)} is unknown; {hint}")


def name_form(client_id: ClientId) -> str:
    """What two spellings of one name have in common: no case, and no spaces at the ends.

    >>> name_form("NORD "), name_form("Sankt  Georg")
    ('nord', 'sankt georg')
    """
    return " ".join(str(client_id).split()).casefold()


def similar_names(ids: Iterable[ClientId]) -> list[list[ClientId]]:
    """Ids that differ only in case or spaces, together.

    >>> similar_names(["NORD", "Nord", "south"])
    [['NORD', 'Nord']]
    """
    by_form: dict[str, list[ClientId]] = {}
    for client_id in ids:
        by_form.setdefault(name_form(client_id), []).append(client_id)
    return [names for names in by_form.values() if len(names) > 1]


def _cut(client_id: ClientId) -> str:
    return repr(shown(client_id, COMPARED)) if isinstance(client_id, str) else repr(client_id)


def _as_array(clients: Any) -> np.ndarray:
    """A list as an array; of objects where types are mixed, which NumPy would turn into text."""
    if isinstance(clients, Iterator):
        clients = list(clients)
    if not isinstance(clients, (list, tuple)):
        _refuse_single(clients)
        return np.asarray(clients)
    types = set(map(type, clients))
    numbers = all(issubclass(t, (int, float, np.number)) and t is not bool for t in types)
    if numbers or (len(types) == 1 and not types & {tuple, str}):
        return np.asarray(clients)
    return np.fromiter(clients, dtype=object, count=len(clients))


def _refuse_single(clients: Any) -> None:
    """Refuse what is no list of ids."""
    kind = f"a {type(clients).__name__}"
    single = isinstance(clients, (str, bytes, dict, set, frozenset, type))
    hint = ""
    if isinstance(clients, (int, np.integer)) and not isinstance(clients, bool):
        kind = str(clients)
        hint = f" (idiolect.data.partition has functions that deal samples to {clients} clients)"
    elif hasattr(clients, "__array__") or (hasattr(clients, "__len__") and not single):
        return
    elif isinstance(clients, type):
        kind = f"the class {clients.__name__}"
    raise SettingError(f"clients must be one client id per sample, got {kind}{hint}")


def _refuse_missing(array: np.ndarray) -> None:
    """Refuse an empty id, which would become a client called "nan"."""
    if array.dtype == object:
        missing = np.array([is_missing(value) for value in array], dtype=bool)
    else:
        missing = array != array  # NaN and NaT
    if missing.any():
        raise SettingError(f"clients: sample {int(np.argmax(missing))} has no client id")


def is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA does not compare
        return True


def _read_objects(array: np.ndarray) -> tuple[tuple[ClientId, ...], np.ndarray]:
    ids = [plain_id(value) for value in array]
    _, first, positions = np.unique([str(i) for i in ids], return_index=True, return_inverse=True)
    clash = np.flatnonzero(array != array[first[positions]])
    if len(clash):
        one = array[first[positions[clash[0]]]]
        other = array[clash[0]]
        raise SettingError(f"clients: ids must differ as text, got {one!r} and {other!r}")
    return tuple(ids[i] for i in first), positions
