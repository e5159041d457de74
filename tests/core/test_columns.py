"""Tables of any width: a figure is whole, or its column is named as left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from idiolect.core.columns import Column, FittedTable, render, words

NAMES = ("clients", "sent up", "gradients per client", "memory")
LARGE = {
    "name": "an-entry-of-a-long-name",
    "text": "what it does, in words that are folded",
    "clients": "10,000,000",
    "sent up": "123,456.7 GB",
    "gradients per client": "1,234,567,890",
    "memory": "999.9 GB",
}


def columns():
    figures = [Column(name, rank, lambda r, name=name: r[name]) for rank, name in enumerate(NAMES)]
    return [words("name", "name"), *figures, words("text", "text", rank=2)]


@pytest.mark.parametrize("width", [24, 40, 50, 60, 72, 80, 100, 140, 200])
def test_a_figure_is_whole_or_its_column_is_named(width):
    text = render(FittedTable(columns(), [LARGE, LARGE]), width)
    assert all(cell_len(line) <= width for line in text.splitlines()) and "…" not in text
    table, _, note = text.partition("no room for")
    note = " ".join(note.split())
    for name in NAMES:
        assert (table.count(LARGE[name]) == 2) != (name in note), name
    assert table.count("10,000,000") == 2, "the first column of figures stays"


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=6),
    st.text("ab ", max_size=40),
    st.integers(40, 160),
)
def test_no_table_is_wider_than_the_terminal(figures, text, width):
    row = {"name": text, **{f"n{i}": f"{n:,}" for i, n in enumerate(figures)}}
    shown = [Column(f"n{i}", i, lambda r, i=i: r[f"n{i}"]) for i in range(len(figures))]
    out = render(FittedTable([words("name", "name"), *shown], [row], "title"), width)
    assert all(cell_len(line) <= width for line in out.splitlines())
    table, _, note = out.partition("no room for")
    for i in range(len(figures)):
        assert row[f"n{i}"] in table.split() or f"n{i}" in note


def test_words_are_folded_and_complete():
    text = render(FittedTable([words("name", "name"), words("text", "text")], [LARGE]), 30)
    assert LARGE["text"].replace(" ", "") in "".join(
        line[-14:] for line in text.splitlines()[3:]
    ).replace(" ", "")
