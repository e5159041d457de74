"""The page on speed is that of the stored figures, and versions can be compared."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import against, report
from benchmarks import run as bench

ROOT = Path(__file__).parents[2]


def test_the_page_on_speed_is_that_of_its_figures(tmp_path, monkeypatch):
    stored = json.loads(bench.LATEST.read_text())
    page = tmp_path / "speed.md"
    monkeypatch.setattr(bench.chart, "draw", lambda figures: None)
    monkeypatch.setattr(report.write, "__defaults__", (page,))
    bench.publish(stored["figures"], stored["measured"])
    assert page.read_text() == report.PAGE.read_text()


def test_figures_against_other_systems_have_no_goal():
    figures = json.loads(bench.LATEST.read_text())["figures"]
    compared = [f for f in figures if f["name"].startswith("idiolect against")]
    assert compared and all(f["goal"] is None for f in compared)


def test_the_least_of_each_part_counts_and_a_slower_version_is_marked():
    parts = against.least({"1": 2.0, "rest": 1.0}, {"1": 1.0, "2": 5.0, "rest": 3.0})
    assert parts == {"1": 1.0, "2": 5.0, "rest": 1.0}
    lines = against.lines({"round": [{"1": 1.0, "2": 3.0}, {"1": 2.0, "2": 2.2}]})
    assert lines[-1] == "| round | 2000.00 | 2100.00 | 1.050 | slower |"


def test_a_version_measures_a_figure_in_a_process_of_its_own():
    version = against.Version(ROOT / "src")
    try:
        parts = version.measure("cohort gradient, 100 logistic 60-10")
    finally:
        version.end()
    assert list(parts) == ["0"] and 0 < parts["0"] < 1
