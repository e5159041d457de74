"""Plain data of unknown origin become typed objects, or are refused with their place."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from idiolect.core.documents import decode, encode


@dataclass
class Inner:
    name: str
    numbers: list[float] = field(default_factory=list)


@dataclass
class Document:
    round: int
    inner: Inner
    rows: list[Inner] = field(default_factory=list)
    by_name: dict[str, Inner] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict, metadata={"key": "from"})
    more: Any = None


WHOLE = {
    "round": 3,
    "inner": {"name": "a", "numbers": [1, 2.5]},
    "rows": [{"name": "b", "numbers": []}],
    "by_name": {"c": {"name": "c", "numbers": []}},
    "from": {"0": 5},
    "more": [{"any": None}],
}


def test_a_document_comes_back_as_it_was():
    document = decode(WHOLE, Document)
    assert document.rows == [Inner("b")] and document.by_name["c"] == Inner("c")
    assert document.seeds == {"0": 5}
    assert encode(document) == WHOLE


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"round": 3.0}, "^round must be a whole number, got a number$"),
        ({"round": True}, "^round must be a whole number, got true or false$"),
        ({"inner": []}, "^inner must be an object, got a list$"),
        ({"inner": {"name": "a", "size": 1}}, "^the key 'size' in inner is not expected; known: n"),
        ({"inner": {}}, "^the key 'name' in inner is missing$"),
        ({"rows": [{"name": "a"}, {"name": None}]}, r"^rows\[1\].name must be a text, got null$"),
        ({"by_name": {"c": {"name": 1}}}, r"^by_name.c.name must be a text, got a whole number$"),
        ({"from": {"0": "5"}}, "^from.0 must be a whole number, got a text$"),
        ({"seeds": {}}, "^the key 'seeds' is not expected"),
    ],
)
def test_what_is_not_as_declared_is_refused_with_its_place(change, says):
    with pytest.raises(ValueError, match=says):
        decode({**WHOLE, **change}, Document)
