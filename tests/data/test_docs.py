"""The examples in docs/data.md do what they say."""

import doctest
from pathlib import Path

from idiolect import data
from idiolect.data.download import SOURCES

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_examples_run():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10 and result.failed == 0


def test_the_page_names_every_data_set_and_every_source():
    text = PAGE.read_text()
    for name in data.DATASETS:
        assert f"| `{name}` |" in text
    for source in SOURCES.values():
        assert all(way.ref.split("@")[0] in text for way in source.ways)


def test_the_sizes_in_the_table_are_the_sizes_loaded():
    text = PAGE.read_text()
    for name in ("synthetic", "linear", "logistic", "digits"):
        f = data.load(name)
        sizes = [f.sizes(s).unique().tolist() for s in ("train", "valid", "test")]
        assert all(len(s) == 1 for s in sizes)
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {f.clients} | {sizes[0][0]} / {sizes[1][0]} / {sizes[2][0]} |" in row
