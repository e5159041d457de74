"""Shared by the tests of deployments."""

import pytest

from idiolect.deploy.site.consent import ConsentGate


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The server looks who is there every few milliseconds."""
    for module in ("registry", "rounds"):
        monkeypatch.setattr(f"idiolect.deploy.{module}.LOOK", 0.02)


ALLOWS = {
    name: getattr(ConsentGate, name) for name in ("allows_terms", "allows_run", "allows_sums")
}


@pytest.fixture(autouse=True, scope="package")
def owners_agree():
    """Owners of sites in this process agree to everything."""
    for name in ALLOWS:
        setattr(ConsentGate, name, lambda gate, terms: True)
    yield
    for name, allows in ALLOWS.items():
        setattr(ConsentGate, name, allows)


@pytest.fixture(autouse=True)
def owners_decide(request, monkeypatch):
    """Not so in tests of consent itself."""
    if request.node.get_closest_marker("consent") is not None:
        for name, allows in ALLOWS.items():
            monkeypatch.setattr(ConsentGate, name, allows)
