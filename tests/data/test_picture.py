"""Who has what, as a table and as a picture."""

import sys

import numpy as np
import pytest
from rich.console import Console

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data import Federation


def text(federation, **options):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(data.table(federation, **options))
    return " ".join(console.export_text().split())


def test_the_table_shows_every_client_of_a_small_federation():
    f = data.load("digits", clients=6)
    shown = text(f)
    assert (
        "digits: 6 clients" in shown
        and "classes per client: 2 to 2" in shown
        and "commonest class is right" in shown
    )
    assert len(data.table(f).rows) == 6 and len(data.table(f).columns) == 15


def test_the_table_is_condensed_for_many_clients_and_many_classes():
    f = Federation.from_arrays(np.zeros((3000, 1)), np.arange(3000) % 62, np.arange(3000) // 30)
    assert len(data.table(f).rows) == 21
    assert "most frequent classes" in text(f) and "..." in text(f) and " 99 19 5 6 " in text(f)


def test_a_regression_has_a_table_of_sizes():
    assert "median 20" in text(data.load("linear", clients=3, samples=20, features=2))


@pytest.mark.parametrize(
    ("name", "options"),
    [("digits", {"clients": 8}), ("linear", {"clients": 3, "samples": 20, "features": 2})],
)
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_written(tmp_path, name, options, suffix):
    path = data.picture(data.load(name, **options), tmp_path / f"who.{suffix}")
    assert path.stat().st_size > 2000


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    f = data.load("linear", clients=2, samples=5, features=2)
    for path in (tmp_path / "none" / "x.png", tmp_path / "x.docx"):
        with pytest.raises(SettingError, match="cannot be written"):
            data.picture(f, path)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingError, match="pip install matplotlib"):
        data.picture(data.load("digits", clients=2), tmp_path / "x.png")


def test_the_majority_is_measured_on_unseen_samples():
    y, split = [0, 0, 1, 0, 1, 1], ["train"] * 3 + ["test"] * 3
    assert Federation.from_arrays(np.zeros((6, 1)), y, [0] * 6, split=split).majority_hits(
        "test"
    ).tolist() == [1]
