"""What the owner agrees to, on one screen: computed from their own data, before anything leaves."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.knobs import SettingError
from ...core.text import plural, shown
from ...data.federation import SPLITS
from ...data.prepare.columns import NUMBER
from ...data.prepare.federated import combine, first_sums, means, second_sums
from ...data.read.tables import feature_columns
from ...host.service import Refused
from ...methods.wrapped import innermost
from ..config import MISSING, FederationTerms, agreed_form, kinds_of_columns
from .agreement import Agreement, Builder, TableForm
from .consent import Consent
from .data import SiteData
from .rules import ALWAYS, Rules
from .site import AgreedRun, check_terms

WIDTH = 80
LABEL = 13  # columns of what stands before a line
OTHER_ROLES = {
    "client": "whose row it is",
    "split": "train, valid or test",
    "group": "rows that belong together",
    "time": "when it was",
    "weight": "weight of a row",
}


@dataclass(frozen=True)
class Columns:
    """The columns of the owner's table."""

    target: str
    used: list[str]
    not_used: dict[str, str]  # column -> why
    suspects: dict[str, str]  # columns that are used -> why they would be left out everywhere else


@dataclass(frozen=True)
class Preview:
    """What terms come to at this site, with the owner's data and rules."""

    consent: Consent
    run: AgreedRun
    rows: int
    columns: Columns | None  # None: the data are no table
    key: str  # fingerprint of the site's key
    used: int  # rounds that this site has taken part in, ever

    # -- figures ---------------------------------------------------------------------------------
    @property
    def parts(self) -> dict[str, int]:
        """Parts of a client's message, and how many numbers each has."""
        return dict(innermost(self.run.contract.method).message(self.run.contract.task))

    @property
    def numbers(self) -> int:
        return sum(self.parts.values())

    def facts(self) -> dict[str, Any]:
        """Everything on the screen, as plain data."""
        consent, run, terms = self.consent, self.run, self.consent.terms
        rules = Rules(**consent.rules)
        return {
            "code": consent.code,
            "federation": terms.federation,
            "address": consent.address,
            "authority": consent.authority,
            "site": consent.site["site"],
            "key": self.key,
            "method": str(terms.plan.get("method")),
            "model": str(terms.plan.get("model") or "chosen from the data"),
            "parameters": run.contract.task.d,
            "rounds": run.terms.rounds,
            "rounds_left": max(rules.max_rounds - self.used, 0) if rules.max_rounds else None,
            "batch": run.terms.batch_of(0),
            "rows": self.rows,
            "clients": run.federation.clients,
            "samples": {s: int(run.federation.sizes(s).sum()) for s in SPLITS},
            "columns": None if self.columns is None else vars(self.columns),
            "sums": terms.asks_sums,
            "message": self.parts,
            "figures": list(_figures(run, rules)),
            "caps": rules.caps,
            "client_names": rules.client_names,
            "min_samples": rules.min_samples,
            "min_batch": rules.min_batch,
            "privacy": self._protection(),
        }

    # -- words -----------------------------------------------------------------------------------
    def lines(self) -> list[str]:
        """The screen, at most 80 columns wide."""
        facts = self.facts()
        text = [_entry(label, words) for label, words in self._entries(facts)]
        return [line for lines in text for line in lines]

    def _entries(self, facts: dict[str, Any]) -> list[tuple[str, str]]:
        where = f", at {facts['address']}" if facts["address"] else ""
        entries = [("Federation", f"{facts['federation'] or 'without a name'}{where}")]
        entries.append(("Its server", self._server()))
        entries.append(("Your site", f"{facts['site']}, key {facts['key']}"))
        entries.append(("Your data", self._data(facts)))
        rounds, batch = plural(facts["rounds"], "round"), facts["batch"]
        batches = f"batches of {batch}" if batch else "all samples in each step"
        summary = (innermost(self.run.contract.method).__doc__ or "").strip().split("\n")[0]
        entries.append(("Method", f"{facts['method']}: {rounds}, {batches}. {summary}"))
        model = f"{facts['model']}, {plural(facts['parameters'], 'parameter')}"
        entries.append(("Model", model))
        entries += self._columns()
        entries += self._leaves(facts)
        stays = ["rows of your data", "private models", "names of your clients"]
        if facts["client_names"] == "own":
            stays.pop()
        entries.append(("Stays here", ", ".join(stays)))
        entries.append(("You allow", _allowed(facts)))
        entries.append(("Privacy", _privacy_words(facts["privacy"])))
        if self.run.contract.sums is not None:
            sums = self.run.contract.sums
            words = (
                f"the server learns the sum of messages, of {sums.survivors:.0%} of a round's "
                f"clients or more, each clipped to norm {sums.clip:g}; it sees none by itself "
                "(docs/secure-sums.md: against whom)"
            )
            entries.append(("Sums", words))
        return [*entries, ("Terms", facts["code"])]

    def _protection(self) -> dict[str, Any] | None:
        """Who is protected from whom, and what it comes to; None without privacy."""
        terms = self.run.terms
        spent = terms.spent(self.run.federation.sizes("train").tolist())
        if terms.protection is None or spent is None:
            return None
        p = terms.protection
        rounds = terms.rounds if spent.unit == "client" else 0
        return {
            "protects": p.title,
            "unit": p.unit,
            "against": p.against,
            "trusted": p.trusted,
            "noise": p.noise,
            "clip": getattr(p, "clip", None),
            "delta": terms.delta,
            "budget": terms.epsilon,
            "at_site": p.at_client,
            # of a client that is heard in all rounds; None where gradients are counted
            "epsilon": spent.epsilon(rounds) if rounds else None,
        }

    def _server(self) -> str:
        if self.consent.authority:
            half = len(self.consent.authority) // 2 + 1  # a line each
            parts = self.consent.authority[:half], self.consent.authority[half:]
            return f"proves itself (TLS) by certificates of {' '.join(parts)}"
        if self.consent.address:
            return "WITHOUT TLS AND KEYS: everyone on the network can read and forge messages"
        return "not known: no federation.toml was given; the connection is set up by others"

    def _data(self, facts: dict[str, Any]) -> str:
        source = self.consent.site["options"].get("path") or self.consent.site["data"]
        samples = ", ".join(f"{n:,} {s}" for s, n in facts["samples"].items() if n)
        clients = plural(facts["clients"], "client")
        return f"{source}: {plural(facts['rows'], 'row')}; {clients}, samples: {samples}"

    def _columns(self) -> list[tuple[str, str]]:
        if self.columns is None:
            return []
        columns = self.columns
        classes = self.consent.terms.data["classes"]
        values = f": {', '.join(map(str, classes[:8]))}" if classes else " (a number)"
        more = f", ... ({len(classes)} classes)" if len(classes) > 8 else ""
        entries = [("Predicts", f"{columns.target}{values}{more}")]
        total = len(columns.used) + len(columns.not_used) + 1
        entries.append((f"Uses {len(columns.used)}/{total}", _names(columns.used)))
        for name, why in columns.suspects.items():
            entries.append(("  CAREFUL", f"{name} looks like no feature: {why}"))
        if columns.not_used:
            unused = [f"{name} ({why})" if why else name for name, why in columns.not_used.items()]
            entries.append(("Not used", _names(unused)))
        return entries

    def _leaves(self, facts: dict[str, Any]) -> list[tuple[str, str]]:
        once = "how many samples each client has"
        if facts["client_names"] == "own":
            once = f"NAMES OF YOUR CLIENTS, {once}"
        if facts["sums"]:
            once = f"counts, sums and squares of these columns, names of their categories; {once}"
        parts = ", ".join(f"{name} {size:,}" for name, size in facts["message"].items())
        size = plural(facts["parameters"], "parameter")
        message = f"{plural(self.numbers, 'number')} per client ({parts})"
        if facts["sums"] and set(kinds_of_columns(self.consent.terms.data).values()) != {NUMBER}:
            # the preparation of all sites names categories that this one does not have
            message += ", and more for categories that only other sites have"
        message += f"; the model has {size}"
        method = innermost(self.run.contract.method)
        if method.traits.discloses and 2 * self.numbers > facts["parameters"]:
            message += f". THIS TELLS PRIVATE MODELS: {method.traits.discloses}"
        names = ", ".join(facts["figures"]) or "none"
        figures = f"{names}, of clients with at least {facts['min_samples']} samples"
        entries = [("Leaves once", once), ("  per round", message)]
        return [*entries, ("  evaluated", figures if facts["figures"] else "no figures")]


def _entry(label: str, words: str) -> list[str]:
    """A labelled line, broken where it is long."""
    indent = " " * LABEL
    first = f"{label:<{LABEL}}"
    text = shown(words)
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent) or [first]


def _allowed(facts: dict[str, Any]) -> str:
    caps = [f"{most:,} {name}" for name, most in facts["caps"].items()]
    caps = caps if "rounds" in facts["caps"] else ["ANY NUMBER OF ROUNDS", *caps]
    words = f"{', '.join(caps)}, ever; batches of at least {facts['min_batch']}"
    remainder = facts["rounds_left"]
    if remainder is not None and remainder < facts["rounds"]:
        words += (
            f". CAREFUL: {plural(remainder, 'round')} of these are left; max_rounds allows more"
        )
    return words


def _privacy_words(facts: dict[str, Any] | None) -> str:
    """Who is protected from whom, by whose noise, and what the rounds come to."""
    if facts is None:
        return "no budget: nothing is added to messages (docs/trust.md: what they tell)"
    noise = f"noise {facts['noise']:g} times the largest influence"
    if facts["unit"] == "sample":
        who, adder = "each row of your data", "this site adds noise to every gradient"
    else:
        adder = "this site adds noise to every message"
        who = "each of your clients"
    if not facts["at_site"]:
        adder = "THE SERVER adds noise, after it has seen each message"
    rounds = "" if facts["epsilon"] is None else f"; all rounds: epsilon {facts['epsilon']:.3g}"
    budget = f", never above {facts['budget']:g}" if facts["budget"] else ""
    return (
        f"protects {who} from {facts['against']}; trusted: {facts['trusted']}. {adder} ({noise})"
        f"{rounds}{budget}, at delta {facts['delta']:g}. Not covered: samples per client, figures "
        "of evaluations"
    )


def _names(names: Sequence[str], most: int = 40) -> str:
    rest = f", ... and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _figures(run: AgreedRun, rules: Rules) -> list[str]:
    """The figures of evaluations that leave."""
    names = [*ALWAYS, *(metric.name for metric in run.settings.metrics)]
    if not run.federation.classes:
        names.remove("accuracy")
    return [name for name in dict.fromkeys(names) if name in rules.metrics]


# -- from terms and data ---------------------------------------------------------------------------
def preview(
    consent: Consent, owned: SiteData, rules: Rules, build: Builder, key: str, used: int
) -> Preview:
    """What terms come to here; SettingError where the data do not fit them, or the rules forbid it.

    What all sites agree on by sums is stood in for by this site's own numbers.
    """
    terms = consent.terms
    try:
        form = agreed_form(terms.data)
        if terms.asks_sums:
            form["preparation"] = _own_preparation(terms, owned, rules)
        agreement = Agreement(terms.plan, 0, 0, form)
        owned.check_form(agreement.form)
        run = AgreedRun.of(agreement, None, owned, rules, build)
        check_terms(run, rules)
    except Refused as error:
        raise SettingError(str(error.__cause__ or error)) from None
    columns = _columns(owned, agreement.form) if isinstance(agreement.form, TableForm) else None
    rows = len(owned.frame) if owned.is_table else owned.loaded.samples
    return Preview(consent, run, rows, columns, key, used)


def _own_preparation(terms: FederationTerms, owned: SiteData, rules: Rules) -> dict[str, Any]:
    """The preparation that there would be if this site were the only one."""
    features = terms.data["features"]
    if not rules.sums:
        raise SettingError("sums: these terms ask for sums of columns, and you let none leave")
    samples = owned.samples(terms.data["target"], features, MISSING)
    rows = samples.frame[samples.train]
    first = first_sums(rows, features, rules.min_samples)
    second = second_sums(rows, means([first]))
    return combine(features, [first], [second], MISSING).as_dict()


def _columns(owned: SiteData, form: TableForm) -> Columns:
    """Which columns of the table are used, and why others are not."""
    reader = owned.reader
    roles = {getattr(reader, role): words for role, words in OTHER_ROLES.items()}
    kept_back = dict.fromkeys(reader.drop, "you keep it back")
    reasons = _no_features(owned, form)
    others = [n for n in map(str, owned.frame.columns) if n not in (form.target, *form.features)]
    return Columns(
        form.target,
        list(form.features),
        {n: roles.get(n) or kept_back.get(n) or reasons.get(n, "") for n in others},
        {name: reasons[name] for name in form.features if name in reasons},
    )


def _no_features(owned: SiteData, form: TableForm) -> dict[str, str]:
    """The columns that would be left out where nobody names features, and why."""
    own = owned.reading(TableForm(form.target, form.features, form.classes, None))
    options = replace(own, features=(), dates="drop")
    try:
        samples = owned.samples(form.target, form.features, MISSING)
        return feature_columns(samples, options)[1]
    except SettingError:
        return {}
