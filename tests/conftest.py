"""Shared by all tests.

One thread (two test processes share two cores), no cache or run directory of the user's. Test
processes do not lose power, so what they write need not reach the disk itself.
"""

import itertools
import os
import signal

import pytest

os.environ.setdefault("MKL_CBWR", "AUTO")  # as idiolect does, before torch computes

import torch


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    """Names of folders for data, none of which exists: making one for every test takes long."""
    folder = tmp_path_factory.mktemp("caches")
    return (str(folder / str(number)) for number in itertools.count())


@pytest.fixture(autouse=True)
def alone(caches, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setenv("IDIOLECT_DATA", next(caches))


os.fsync = lambda handle: None
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:  # as nohup and shells in the background have it
        signal.signal(number, handler)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; a pipe is as wide here as anywhere
