"""Shared by the tests of deployments."""

import pytest


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The server looks who is there every few milliseconds."""
    for module in ("registry", "rounds"):
        monkeypatch.setattr(f"idiolect.deploy.{module}.LOOK", 0.02)
