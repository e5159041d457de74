"""Pickles of pandas frames, written opcode by opcode: no pandas of any version is needed."""

import pickle
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Name:
    module: str
    name: str


@dataclass
class Call:
    """What `module.name(*args)` gives, with a state."""

    module: str
    name: str
    args: tuple = ()
    state: Any = None


def dump(value) -> bytes:
    return b"\x80\x05" + _emit(value) + b"."


def _emit(value) -> bytes:
    if isinstance(value, Name):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        made = _emit(Name(value.module, value.name)) + _emit(value.args) + b"R"
        return made + _emit(value.state) + b"b" if value.state is not None else made
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_emit, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_emit, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_emit(k) + _emit(v) for k, v in value.items()) + b"u"
    if isinstance(value, bytearray):
        return b"\x96" + struct.pack("<Q", len(value)) + bytes(value)
    return pickle.dumps(value, 2)[2:-1]


def _dtype(kind):
    order = "|" if kind == "O8" else "<"
    return Call("numpy", "dtype", (kind, False, True), (3, order, None, None, None, -1, -1, 0))


def old_array(values, fortran=False, shape=None):
    """An ndarray as Python 3 wrote it for Python 2."""
    if isinstance(values, list):
        kind, data, found = "O8", values, (len(values),)
    else:
        text = values.tobytes("F" if fortran else "C").decode("latin1")
        kind, found = values.dtype.str[1:], values.shape
        data = Call("_codecs", "encode", (text, "latin1"))
    made = (Name("numpy", "ndarray"), (0,), b"b")
    state = (1, shape or found, _dtype(kind), fortran, data)
    return Call("numpy.core.multiarray", "_reconstruct", made, state)


def new_array(values, shape=None):
    """An ndarray by protocol 5, whose bytes stand in a buffer."""
    args = (bytearray(values.tobytes()), _dtype(values.dtype.str[1:]), shape or values.shape, "C")
    return Call("numpy.core.numeric", "_frombuffer", args)


def _index(kind, facts):
    base = "pandas.core.indexes."
    where = "range" if kind == "RangeIndex" else "base"
    return Call(base + "base", "_new_Index", (Name(base + where, kind), facts))


def _axes(names, rows):
    return [
        _index("Index", {"data": old_array(names), "name": None}),
        _index("RangeIndex", {"name": None, "start": 0, "stop": rows, "step": 1}),
    ]


def _object(module, name, state):
    made = (Name(module, name), Name("__builtin__", "object"), None)
    return Call("copy_reg", "_reconstructor", made, state)


def old_frame(names, blocks, rows):
    """A frame of pandas 0.x; `blocks` are (array, first column, column after the last)."""
    facts = {
        "axes": _axes(names, rows),
        "blocks": [
            {"values": values, "mgr_locs": Call("__builtin__", "slice", (low, high, 1))}
            for values, low, high in blocks
        ],
    }
    state = ([], [], [], {"0.14.1": facts})
    manager = _object("pandas.core.internals.managers", "BlockManager", state)
    return _object("pandas.core.frame", "DataFrame", {"_data": manager})


def new_frame(names, blocks, rows):
    """A frame of pandas 1 and 2; `blocks` are (array, positions)."""
    made = tuple(
        Call("pandas._libs.internals", "_unpickle_block", (values, old_array(np.array(at)), 2))
        for values, at in blocks
    )
    args = (made, _axes(names, rows))
    manager = Call("pandas.core.internals.managers", "BlockManager", args)
    return Call("pandas.core.frame", "DataFrame", (), {"_mgr": manager})
