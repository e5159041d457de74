"""The consent of owners who read nothing: for tests of what comes after it."""

from __future__ import annotations

import json
from pathlib import Path

from idiolect.deploy.certificates import SITE_KEY, make_site_keys
from idiolect.deploy.config import FederationTerms
from idiolect.deploy.site.consent import Consent
from idiolect.deploy.site.rules import Rules
from idiolect.deploy.site.state import StateFolder
from idiolect.run.plan import Plan


def contract_of(form: dict) -> dict:
    """The data contract that the form of an agreement comes from."""
    if form["kind"] != "table":
        return form
    own = {name: value for name, value in form.items() if name != "preparation"}
    return {**own, "scale": "client" if form["preparation"] is None else "federated"}


def consent_to(state: Path, plan: Plan, data: dict, name: str = "") -> Consent:
    """The owner of a site agrees to these terms; site.json says whose data and rules they are."""
    description = StateFolder(state).site()
    terms = FederationTerms.of(name, plan, json.loads(json.dumps(data)))
    if not (state / SITE_KEY).exists():
        make_site_keys(state)
    rules = Rules(**description.rules)
    consent = Consent.draft(terms, "", "", description.data, rules).signed(state)
    consent.save(state)
    return consent
