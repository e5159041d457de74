"""Tables of numbers inside a pickle of pandas frames, read without running it.

A pickle is a program that calls whatever it names. Here every name that it may use stands for an
inert record of the call (`PickledCall`), any other name is refused, and nothing is called. What
pandas and NumPy would have made of the records is then read off them; shapes are compared with the
bytes that are there before an array is made. Two forms are known: that of pandas 0.x (`_data`) and
that of pandas 1 and 2 (`_mgr`).
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.knobs import SettingError

NAMES = {
    "builtins.object",
    "builtins.slice",
    "_codecs.encode",
    "copyreg._reconstructor",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.numeric._frombuffer",
    "pandas._libs.internals._unpickle_block",
    "pandas.core.frame.DataFrame",
    "pandas.core.indexes.base.Index",
    "pandas.core.indexes.base._new_Index",
    "pandas.core.indexes.range.RangeIndex",
    "pandas.core.internals.managers.BlockManager",
}
MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # as Python 2 called them
NUMBERS = {"f8": np.dtype("<f8"), "i8": np.dtype("<i8")}
OBJECTS = "O8"
LIMIT = 1 << 28  # bytes of a pickle; the largest we know has 100 MB

Table = dict[str, Any]  # column -> array of numbers, or list of text and None


class PickledCall:
    """A call that was not made: the name is that of the class, here are its arguments and state."""

    __slots__ = ("args", "state")
    name = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> PickledCall:
        call = super().__new__(cls)
        call.args = args
        call.state = None
        return call

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _InertUnpickler(pickle._Unpickler):  # the one in Python: its memory grows with the file alone
    def __init__(self, stream: io.BytesIO):
        super().__init__(stream)
        self._known: dict[str, type[PickledCall]] = {}

    def find_class(self, module: str, name: str) -> type[PickledCall]:
        full = f"{MODULES.get(module, module)}.{name}"
        if full not in NAMES:
            raise SettingError(f"the pickle names {full[:100]!r}, which no table of numbers needs")
        if full not in self._known:
            self._known[full] = type("NamedCall", (PickledCall,), {"name": full, "__slots__": ()})
        return self._known[full]

    def persistent_load(self, pid: Any) -> Any:
        raise SettingError("the pickle refers to objects outside it")


def read(raw: bytes) -> Any:
    """What a pickle holds: plain data, with a `PickledCall` for every object.

    >>> read(pickle.dumps([1, "a"]))
    [1, 'a']
    >>> read(b"cos\\nsystem\\n(S'true'\\ntR.")
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: the pickle names 'os.system', which no table of numbers needs
    """
    if len(raw) > LIMIT:
        raise SettingError(f"the pickle has {len(raw)} bytes; at most {LIMIT} are accepted")
    try:
        return _InertUnpickler(io.BytesIO(raw)).load()
    except SettingError:
        raise
    except Exception as e:  # whatever a damaged pickle leads to
        raise SettingError(f"the pickle is damaged ({type(e).__name__}: {e})") from None


def table(frame: Any) -> Table:
    """The columns of a pickled frame."""
    try:
        axes, blocks = _manager(frame)
        names = _index(axes[0])
        rows = _index(axes[1])
        columns: list[Any] = [None] * len(names)
        for values, where in blocks:
            places = _places(where, len(names))
            values_of = _values(values)
            if len(values_of) != len(places):
                raise SettingError(f"{len(values_of)} columns for {len(places)} names")
            for place, column in zip(places, values_of, strict=True):
                if len(column) != len(rows):
                    raise SettingError(f"a column of {len(column)} values for {len(rows)} rows")
                columns[place] = column
        if any(column is None for column in columns):
            raise SettingError("a column has no values")
        return dict(zip(names, columns, strict=True))
    except SettingError as e:
        raise SettingError(f"the pickle holds no table of numbers: {e}") from None
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise SettingError(
            f"the pickle holds no table of numbers ({type(e).__name__}: {e})"
        ) from None


# -- records of pandas and NumPy -------------------------------------------------------------------
def _is(call: Any, name: str) -> bool:
    """A record of this call, or of an object of this class made by Python 2's way."""
    if not isinstance(call, PickledCall):
        return False
    if call.name == "copyreg._reconstructor":
        return bool(call.args) and getattr(call.args[0], "name", "").endswith("." + name)
    return call.name.endswith("." + name)


def _expect(call: Any, name: str) -> PickledCall:
    if not _is(call, name):
        raise SettingError(f"{name} is expected, not {getattr(call, 'name', type(call).__name__)}")
    return call


def _manager(call: Any) -> tuple[Sequence[Any], list[tuple[Any, Any]]]:
    """(axes, blocks) of a frame; a block is its values and where they belong."""
    state = _expect(call, "DataFrame").state
    if "_mgr" in state:
        blocks, axes = _expect(state["_mgr"], "BlockManager").args
        return axes, [_expect(block, "_unpickle_block").args[:2] for block in blocks]
    facts = _expect(state["_data"], "BlockManager").state[3]["0.14.1"]
    return facts["axes"], [(block["values"], block["mgr_locs"]) for block in facts["blocks"]]


def _index(call: Any) -> Sequence[Any]:
    """Names, or a range of row numbers."""
    kind, facts = _expect(call, "_new_Index").args
    if kind.name.endswith(".RangeIndex"):
        return range(facts["start"], facts["stop"], facts["step"])
    (names,) = _values(facts["data"])
    return names


def _places(call: Any, many: int) -> Sequence[int]:
    if _is(call, "slice"):
        return range(many)[slice(*call.args)]
    (places,) = _values(call)
    return [range(many)[k] for k in places.tolist()]


def _values(call: Any) -> Sequence[Any]:
    """The rows of an array: arrays of numbers, or lists of text."""
    if _is(call, "_frombuffer"):
        data, kind, shape, order = call.args
        fortran = order == "F"
    else:
        _, shape, kind, fortran, data = _expect(call, "_reconstruct").state
    dtype = _expect(kind, "dtype")
    if not 1 <= len(shape) <= 2 or any(type(n) is not int or n < 0 for n in shape):
        raise SettingError(f"an array of shape {shape}")
    name = dtype.args[0]
    if name != OBJECTS and (name not in NUMBERS or dtype.state[1] != "<"):
        raise SettingError(f"an array of {name}; accepted: {', '.join(NUMBERS)} and text")
    if name == OBJECTS:
        values: Any = [None if value != value else value for value in data]  # NaN: no text
        if any(value is not None and type(value) is not str for value in values):
            raise SettingError("an array of objects that are not all text")
        size = len(values)
    else:
        values = _bytes(data)
        size = len(values) // 8
    if size != math.prod(shape) or (name != OBJECTS and len(values) % 8):
        raise SettingError(f"an array of shape {shape} with {size} values")
    if name != OBJECTS:
        array = np.frombuffer(values, NUMBERS[name])
        return list(array.reshape(shape, order="F" if fortran else "C").reshape(-1, shape[-1]))
    if len(shape) == 1:
        return [values]
    rows, columns = shape
    return [values[i::rows] if fortran else values[i * columns :][:columns] for i in range(rows)]


def _bytes(data: Any) -> bytes:
    if _is(data, "encode"):  # as Python 3 wrote bytes for Python 2
        text, codec = data.args
        if codec != "latin1":
            raise SettingError(f"bytes in the encoding {codec!r}")
        return text.encode("latin1")
    if not isinstance(data, (bytes, bytearray)):
        raise SettingError(f"{type(data).__name__} where bytes are expected")
    return bytes(data)
