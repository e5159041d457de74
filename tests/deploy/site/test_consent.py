"""Nothing is computed before the owner of a site has agreed, and nothing beyond what they read."""

import json

import numpy as np
import pytest

pytest.importorskip("cryptography")
from deploy.consents import consent_to, contract_of
from deploy.site.common import form, server_for, synthetic, table, with_table
from deploy.sites import agreement, array_form, plan_of
from engine.stand_in import Wires
from helpers import rewrite
from idiolect.cli.main import main
from idiolect.core.documents import encode
from idiolect.core.files import write_document
from idiolect.core.knobs import SettingError
from idiolect.deploy.certificates import make_authority, make_site_keys
from idiolect.deploy.config import Deployment, FederationTerms, Proposal, Terms
from idiolect.deploy.server import serve
from idiolect.deploy.site.consent import Consent, read_consent
from idiolect.deploy.site.state import StateFolder
from idiolect.host.calls import Call
from idiolect.run.plan import Plan

pytestmark = pytest.mark.consent
DATA = {**contract_of(form()), "scale": "client"}


def propose(at, plan, data, name="heart") -> bool:
    terms = FederationTerms.of(name, plan, data)
    reply = at.ask(Call("propose", vars(terms)))
    assert reply.kind == "consent", reply
    return reply.facts["agreed"]


# -- before ----------------------------------------------------------------------------------------
def test_before_the_owner_agrees_a_site_says_who_it_is_and_nothing_else(tmp_path):
    at = with_table(tmp_path / "s", table())
    assert at.ask(Call("hello")).facts["site"] == "north"
    columns = {"target": "ill", "features": ["age", "bp"]}
    assert "has not agreed" in at.refusal(
        Call("sums", {"pass": 1, "data": columns, "missing": "mean"})
    )
    assert "has not agreed" in at.refusal(agreement(plan_of("fedavg"), form()))
    assert not propose(at, plan_of("fedavg"), DATA)
    usage = at.site.usage
    assert usage.questions == [] and usage.numbers == 0 and not at.site.folder.runs()
    assert any("idiolect host agree" in line for line in at.told)


def test_what_is_proposed_is_looked_into_by_nobody_but_the_owner(tmp_path):
    at = with_table(tmp_path / "s", table())
    code = Plan("no.such.package:Method", {}, "", model="other.package:Net", settings={})
    assert not propose(at, code, DATA)
    saved = json.loads((tmp_path / "s" / "proposed.json").read_text())
    assert saved["plan"]["method"] == "no.such.package:Method"


# -- after -----------------------------------------------------------------------------------------
def test_the_terms_that_were_agreed_to_are_answered_and_no_others(tmp_path):
    at = with_table(tmp_path / "s", table())
    plan = plan_of("fedavg")
    consent_to(at.path, plan, DATA, "heart")
    assert propose(at, plan, DATA)
    assert at.ask(agreement(plan, form())).kind == "census"
    others = {
        "another method": (plan_of("ditto"), DATA),
        "other settings": (plan_of("fedavg", rounds=4), DATA),
        "other fields": (plan_of("fedavg", {"lr": 0.2}), DATA),
        "other columns": (plan, {**DATA, "features": ["age"]}),
        "sums as well": (plan, {**DATA, "scale": "federated"}),
        "other classes": (plan, {**DATA, "classes": ["no", "yes", "maybe"]}),
    }
    for name, (theirs, data) in others.items():
        assert not propose(at, theirs, data), name
        if data.get("scale") == "client":
            columns = {n: data[n] for n in ("features", "classes")}
            call = agreement(theirs, {**form(), **columns}, run=78)
            assert "has not agreed" in at.refusal(call), name
    call = agreement(plan, form(), run=79)
    call.facts["seed"] = 1
    assert "has not agreed" in at.refusal(call)


def test_sums_are_of_the_columns_that_were_agreed_to(tmp_path):
    at = with_table(tmp_path / "s", table())
    consent_to(at.path, plan_of("fedavg"), {**DATA, "scale": "federated"})

    def sums(features):
        columns = {"target": "ill", "features": features}
        return Call("sums", {"pass": 1, "data": columns, "missing": "mean"})

    assert "has not agreed" in at.refusal(sums(["age", "bp", "sex"]))
    assert at.ask(sums(["age", "bp"])).kind == "sums"
    # a preparation takes the place of each site's own numbers, and the other way round
    assert "has not agreed" in at.refusal(agreement(plan_of("fedavg"), form()))


def test_a_consent_that_is_taken_back_ends_a_run_under_way(tmp_path):
    at = synthetic(tmp_path / "s")
    plan = plan_of("ditto")
    consent_to(at.path, plan, array_form(at.owned.loaded))
    _, engine = server_for(at, plan)
    engine.advance()
    (at.path / "consent.json").unlink()
    with pytest.raises(SettingError, match="has not agreed to these terms"):
        engine.advance()
    assert at.site.usage.rounds == 1
    assert "has not agreed" in at.log()[-1]["verdict"]


def test_a_consent_holds_over_restarts_for_the_data_and_rules_it_was_given_for(tmp_path):
    at = synthetic(tmp_path / "s")
    plan, data = plan_of("ditto"), array_form(at.owned.loaded)
    consent_to(at.path, plan, data)
    _, engine = server_for(at, plan)
    engine.advance()
    assert at.restarted().agreed is not None
    assert at.restarted(metrics=("loss",)).agreed is None
    assert any("under other rules" in line for line in at.told)
    assert not propose(at, plan, data, "")
    consent_to(at.path, plan, data)  # while the process is at work
    assert propose(at, plan, data, "")
    assert at.ask(agreement(plan, data)).kind == "census"


def test_a_consent_that_was_changed_or_signed_with_another_key_is_none(tmp_path):
    at = synthetic(tmp_path / "s")
    plan, data = plan_of("ditto"), array_form(at.owned.loaded)
    consent_to(at.path, plan, data)

    def forged(document):
        document["terms"]["plan"]["settings"]["rounds"] = 100_000

    rewrite(at.path / "consent.json", forged)
    assert not propose(at, plan_of("ditto", rounds=100_000), data, "")
    assert "is not signed with the key" in at.site.consent.reason
    consent_to(at.path, plan, data)
    assert propose(at, plan, data, "")
    make_site_keys(at.path)
    assert not at.restarted().consent.terms()
    assert "is not signed with the key" in at.site.consent.reason


# -- the server ------------------------------------------------------------------------------------
def test_a_server_waits_for_owners_and_begins_when_they_have_agreed(tmp_path, monkeypatch):
    monkeypatch.setattr("idiolect.deploy.registry.RETRY", 0.05)
    at = synthetic(tmp_path / "s")
    data = array_form(at.owned.loaded)
    plan = Plan("fedavg", {}, "", settings={"rounds": 2, "batch": 8})
    terms = Terms(name="heart", sites=1, wait=20.0, deadline=20.0, insecure=True)
    deployment = Deployment(plan, data, terms)
    lines = []

    def tell(text):
        lines.append(text)
        if "waits for its owner to agree" in text:
            consent_to(at.path, deployment.run_plan, data, "heart")

    result = serve(Wires({101: at.site}), deployment, tmp_path / "run", tell=tell)
    assert result.summary()["rounds"] == 2
    waits = [line for line in lines if "waits for its owner to agree" in line]
    assert waits == ["north waits for its owner to agree (at the site: idiolect host agree)"]


# -- what the owner reads and types ----------------------------------------------------------------
@pytest.fixture
def federation(tmp_path):
    """federation.toml of a server, and a hospital's table."""
    frame = table(200).assign(patient_id=range(5000, 5200), notes="-")
    frame.to_csv(tmp_path / "visits.csv", index=False)
    make_authority(tmp_path / "certificates", ["fl.example.org"])
    plan = Plan("ditto", {}, "", settings={"rounds": 50, "batch": 16})
    data = {**DATA, "features": ["age", "bp", "sex"], "kinds": ["number", "number", "text"]}
    terms = Terms(name="heart", address="fl.example.org:9092")
    deployment = Deployment(plan, {**data, "scale": "federated"}, terms)
    authority = (tmp_path / "certificates" / "ca.crt").read_text()
    Proposal.of(deployment, authority).write(tmp_path / "federation.toml")
    return tmp_path / "federation.toml"


def agree(federation, capsys, *words, code=0):
    folder = federation.parent
    own = ["--data", folder / "visits.csv", "--client", "ward", "--site", "north"]
    arguments = ["agree", federation, *own, "--state", folder / "s", *words]
    capsys.readouterr()
    try:
        result = main(["host", *map(str, arguments)])
    except SystemExit as end:
        result = end.code
    output = capsys.readouterr()
    assert result == code, output.err
    return output.out, output.err


def test_one_screen_says_everything_that_an_owner_must_know(federation, capsys):
    text, error = agree(federation, capsys, code=1)
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    words = " ".join(text.split())
    for part in (
        "Federation heart, at fl.example.org:9092",
        "proves itself (TLS) by certificates of ",
        "Your site north, key SHA256:",
        "visits.csv: 200 rows; 3 clients",
        "Method ditto: 50 rounds, batches of 16.",
        "Predicts ill: no, yes",
        "Uses 3/7 age, bp, sex",
        "Not used ward (whose row it is), patient_id (an identifier: ",
        "notes (constant)",
        "counts, sums and squares of these columns, names of their categories",
        "10 numbers per client (w 10), and more for categories that only other sites have; the "
        "model has 10 parameters",
        "accuracy, loss, of clients with at least 10 samples",
        "You allow 55 rounds, 130 evaluations, 20 questions about the data, ever",
        "Privacy no budget",
    ):
        assert part in words, part
    assert "nobody is at the terminal" in error
    assert read_consent(federation.parent / "s") is None


def test_an_owner_reads_what_a_secure_sum_shows(federation, capsys):
    pytest.importorskip("flwr")
    text = federation.read_text()
    assert "batch = 16" in text
    sums = 'batch = 16\nsecure_sums = "secagg(clip=0.5)"'
    federation.write_text(text.replace("batch = 16", sums))
    text, _ = agree(federation, capsys, code=1)
    assert len(text.splitlines()) <= 42 and max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "Sums the server learns the sum of messages, of 70% of a round's clients or" in words
    assert "each clipped to norm 0.5" in words


def test_an_identifier_among_the_columns_is_pointed_out(federation, capsys):
    text = federation.read_text()
    text = text.replace('["age", "bp", "sex"]', '["age", "bp", "patient_id"]')
    federation.write_text(text.replace('"text"]', '"number"]'))
    text, _ = agree(federation, capsys, code=1)
    words = " ".join(text.split())
    assert "CAREFUL patient_id looks like no feature: an identifier" in words


def test_the_code_of_the_terms_agrees_to_exactly_these(federation, capsys):
    state = federation.parent / "s"
    text, _ = agree(federation, capsys, code=1)
    code = text.split()[-1]
    _, error = agree(federation, capsys, "--terms", code[::-1], code=2)
    assert f"terms must be {code}" in error
    _, error = agree(federation, capsys, "--terms", code, "--max-rounds", "60", code=2)
    assert "terms must be " in error  # other rules are other terms
    assert read_consent(state) is None
    agree(federation, capsys, "--terms", code)
    consent = read_consent(state)
    assert consent.code == code and consent.terms.federation == "heart"
    assert consent.rules["max_rounds"] == 55
    capsys.readouterr()
    assert main(["host", "status", "--state", str(state)]) == 0
    assert f"Agreed to: heart, terms {code}, by " in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer, agreed", [("yes", True), ("no", False), ("", False), ("y", False)]
)
def test_an_owner_at_the_terminal_is_asked(federation, capsys, monkeypatch, answer, agreed):
    class Terminal:
        def isatty(self):
            return True

        def readline(self):
            return f"{answer}\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    agree(federation, capsys, code=0 if agreed else 1)
    assert (read_consent(federation.parent / "s") is not None) == agreed


def test_as_json_the_screen_is_facts(federation, capsys):
    text, _ = agree(federation, capsys, "--json", code=1)
    facts = json.loads(text)
    assert facts["agreed"] is False and facts["columns"]["used"] == ["age", "bp", "sex"]
    assert facts["message"] == {"w": 10} and facts["caps"]["rounds"] == 55


def test_data_that_do_not_fit_and_rules_that_forbid_it_are_said_before_the_question(
    federation, capsys
):
    text = federation.read_text()
    federation.write_text(text.replace('"bp"', '"pressure"'))
    _, error = agree(federation, capsys, code=2)
    assert "column 'pressure' is not in this site's table" in error
    federation.write_text(text)
    _, error = agree(federation, capsys, "--sums", "false", code=2)
    assert "ask for sums of columns" in error
    _, error = agree(federation, capsys, "--min-batch", "32", code=2)
    assert "mini-batches must have at least 32 samples at this site, got 16" in error


def test_a_changed_plan_is_shown_again_with_what_is_left_of_the_rounds(federation, capsys):
    state = federation.parent / "s"
    text, _ = agree(federation, capsys, code=1)
    agree(federation, capsys, "--terms", text.split()[-1])
    proposal = Proposal.read(federation)
    plan = Plan("ditto", {}, "", settings={**proposal.plan.settings, "rounds": 70})
    description = StateFolder(state).site()
    terms = FederationTerms.of("heart", plan, proposal.data)
    write_document(state / "proposed.json", encode(terms))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["host", "agree", "--state", str(state)])
    words = " ".join(capsys.readouterr().out.split())
    assert "ditto: 70 rounds" in words and "CAREFUL: 55 rounds of these are left" in words
    assert description.rules["max_rounds"] == 55
    assert isinstance(read_consent(state), Consent)  # the earlier one stands


def test_a_site_that_runs_under_earlier_rules_is_to_be_started_again(federation, capsys):
    state = federation.parent / "s"
    text, _ = agree(federation, capsys, code=1)
    _, first = agree(federation, capsys, "--terms", text.split()[-1])
    assert f"next: send {state / 'node.pub'}" in first and "start it again" not in first
    folder = StateFolder(state)
    folder.open()  # host start is at work
    _, same = agree(federation, capsys, "--terms", text.split()[-1])
    assert "next: send" not in same and "start it again" not in same
    text, _ = agree(federation, capsys, "--max-rounds", "60", code=1)
    _, other = agree(federation, capsys, "--terms", text.split()[-1], "--max-rounds", "60")
    folder.close()
    assert "with the data or rules of before: stop it, and start it again" in other


def test_what_is_noted_of_the_data_is_said_once(federation, capsys):
    gaps = table(200)
    gaps.loc[::9, "bp"] = np.nan
    gaps.to_csv(federation.parent / "visits.csv", index=False)
    _, error = agree(federation, capsys, code=1)
    notes = [line for line in error.splitlines() if line.startswith("note: ")]
    assert notes and len(notes) == len(set(notes))


def test_one_client_is_no_remark_at_a_site(federation, capsys):
    """Those it learns with are at other sites."""
    own = ["--data", federation.parent / "visits.csv", "--client", "", "--site", "north"]
    words = ["agree", federation, *own, "--state", federation.parent / "s"]
    with pytest.raises(SystemExit):
        main(["host", *map(str, words)])
    assert "nobody to learn with" not in capsys.readouterr().err


def test_numbers_per_message_may_be_more_where_other_sites_have_other_categories(
    federation, capsys
):
    text, _ = agree(federation, capsys, code=1)
    more = "10 numbers per client (w 10), and more for categories that only other sites have"
    assert more in " ".join(text.split())
    plain = federation.read_text().replace('"bp", "sex"]', '"bp"]').replace(', "text"]', "]")
    federation.write_text(plain)
    text, _ = agree(federation, capsys, code=1)
    assert "only other sites have" not in text
