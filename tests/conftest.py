"""Shared by all tests.

One thread (two test processes share two cores), no cache or run directory of the user's. Test
processes do not lose power, so what they write need not reach the disk itself.
"""

import os

import pytest

os.environ.setdefault("MKL_CBWR", "AUTO")  # as idiolect does, before torch computes

import torch


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "data-cache"))


os.fsync = lambda handle: None
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; a pipe is as wide here as anywhere
